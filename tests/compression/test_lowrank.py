from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression.base import Residual, RoundKey
from distro_fed.compression.lowrank import LowRank
from distro_fed.errors import ReplicaError, SettingsError
from distro_fed.layout import Layout, TensorSpec

FIRST = RoundKey(seed=7, round=1)
MATRIX = Layout([TensorSpec("w", (40, 30), kind="matrix"), TensorSpec("norm", (30,), kind="vector")])


def after(compressor: LowRank, coefficients: torch.Tensor, layout: Layout, key: RoundKey) -> RoundKey:
    memory = compressor.remember(coefficients, layout, key)
    return RoundKey(key.seed, key.round + 1, key.version + 1, memory)


def test_sides_alternate_with_versions_not_rounds(layout: Layout) -> None:
    compressor = LowRank(rank=8)
    sizes = {name: (shape[0], shape[1]) for name, shape in (("square", (128, 64)), ("prime", (127, 131)))}
    for round_, version, side in ((1, 0, 0), (2, 1, 1), (3, 1, 1), (4, 2, 0)):
        space = compressor.space(layout, RoundKey(7, round_, version))
        shapes = {spec.name: spec.shape for spec in space}
        for name, sides in sizes.items():
            assert [shapes[f"{name}[{column}]"] for column in range(8)] == [(sides[side],)] * 8
        # no side above the rank: sent whole
        assert shapes["thin"] == (8, 576)
        assert shapes["vector"] == (576,)
        assert shapes["scalar"] == ()
        # four axes are 4 x 45, and 4 is not above the rank
        assert shapes["kernel"] == (4, 5, 3, 3)
    assert compressor.space(layout, RoundKey(7, 9, 5)) is compressor.space(layout, RoundKey(7, 2, 1))


def test_more_than_two_axes_are_a_matrix() -> None:
    layout = Layout([TensorSpec("kernel", (4, 5, 3, 3))])
    assert [spec.shape for spec in LowRank(rank=2).space(layout, RoundKey(7, 2, 1))] == [(45,), (45,)]
    compressor, delta = LowRank(rank=3), torch.randn(180)
    replica = torch.zeros(180)
    compressor.synthesise(compressor.analyse(delta, layout, FIRST), replica, layout, FIRST)
    assert torch.linalg.matrix_rank(replica.view(4, 45)) == 3


def test_nothing_to_project_is_an_error() -> None:
    with pytest.raises(SettingsError, match="rank 30 projects nothing"):
        LowRank(rank=30).space(MATRIX, FIRST)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_synthesis_of_analysis_is_the_projection(version: int) -> None:
    """Against plain matrix algebra: ``M Q Q^T`` or ``P P^T M``, and vectors as they are."""
    compressor, key = LowRank(rank=3), FIRST
    for number in range(version):
        delta = torch.randn(MATRIX.numel, generator=torch.Generator().manual_seed(number))
        key = after(compressor, compressor.analyse(delta, MATRIX, key), MATRIX, key)
    delta = torch.randn(MATRIX.numel, generator=torch.Generator().manual_seed(9))
    before = delta.clone()
    coefficients = compressor.analyse(delta, MATRIX, key)
    assert torch.equal(delta, before), "the residual needs the pseudo-gradient"
    start = torch.randn(MATRIX.numel)
    replica = start.clone()
    compressor.synthesise(coefficients.clone(), replica, MATRIX, key)
    change, matrix = replica - start, delta[:1200].view(40, 30)
    projected = change[:1200].view(40, 30)
    torch.testing.assert_close(change[1200:], delta[1200:])
    assert torch.linalg.matrix_rank(projected, atol=1e-3) == 3
    # what is left out is orthogonal to what is sent
    assert abs(float((projected * (matrix - projected)).sum())) < 1e-2 * float(matrix.norm())
    if key.memory is not None:
        basis = key.memory.view(3, -1)
        expected = basis.T @ basis @ matrix if version % 2 else matrix @ basis.T @ basis
        torch.testing.assert_close(projected, expected, atol=1e-4, rtol=1e-4)


def test_bases_turn_towards_the_largest_singular_vectors() -> None:
    """A power iteration: with the same matrix in every round the projection becomes the best of its rank."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, 20, generator=generator))[0] for size in (40, 30))
    singular = 2.0 ** -torch.arange(20.0)
    delta = torch.cat([((left * singular) @ right.T).reshape(-1), torch.zeros(30)])
    compressor, key = LowRank(rank=3), FIRST
    missed = []
    for _ in range(6):
        coefficients = compressor.analyse(delta, MATRIX, key)
        kept = torch.zeros(MATRIX.numel)
        compressor.synthesise(coefficients, kept, MATRIX, key)
        missed.append(float((delta - kept).norm()))
        key = after(compressor, coefficients, MATRIX, key)
    best = float(singular[3:].norm())
    assert missed[0] > 3 * best
    assert missed[5] < 1.01 * best


def test_an_aggregate_of_nothing_gives_a_public_basis() -> None:
    compressor = LowRank(rank=4)
    key = after(compressor, torch.zeros(compressor.space(MATRIX, FIRST).numel), MATRIX, FIRST)
    assert key.memory is not None
    basis = key.memory.view(4, 40)
    torch.testing.assert_close(basis @ basis.T, torch.eye(4), atol=5e-4, rtol=0)
    # another one in every version that needs it
    later = after(compressor, torch.zeros(compressor.space(MATRIX, FIRST).numel), MATRIX, RoundKey(7, 3, 2))
    assert later.memory is not None
    assert (basis @ later.memory.view(4, 40).T).abs().max() < 0.9


def test_memory_is_as_long_as_its_layout_says(layout: Layout) -> None:
    compressor, key = LowRank(rank=5), FIRST
    assert compressor.memory_layout(layout, 0) is None
    for version in range(1, 4):
        coefficients = torch.randn(compressor.space(layout, key).numel)
        before = coefficients.clone()
        key = after(compressor, coefficients, layout, key)
        assert torch.equal(coefficients, before)
        expected = compressor.memory_layout(layout, version)
        assert expected is not None
        assert key.memory is not None
        assert key.memory.shape == (expected.numel,)


@pytest.mark.parametrize("memory", [None, torch.zeros(7)])
def test_a_key_without_what_is_remembered_is_refused(memory: torch.Tensor | None) -> None:
    with pytest.raises(ReplicaError, match="version 1 remembers 120 values"):
        LowRank(rank=3).analyse(torch.zeros(MATRIX.numel), MATRIX, RoundKey(7, 2, 1, memory))


def test_every_column_has_a_scale(roundtrip: Callable[..., torch.Tensor]) -> None:
    """Columns of a power iteration differ by orders of magnitude; one scale would drown the small ones."""
    compressor = LowRank(rank=3, bits=1)
    space = compressor.space(MATRIX, FIRST)
    coefficients = torch.randn(space.numel)
    for column, size in enumerate((100.0, 1.0, 0.01)):
        coefficients[40 * column : 40 * column + 40] *= size
    decoded = roundtrip(compressor, coefficients, space)
    for (_, where), size in zip(space.slices(), (100.0, 1.0, 0.01, 1.0), strict=True):
        assert 0.3 * size < float(decoded[where].abs().mean()) < 2 * size


@given(bits=st.integers(1, 8), rank=st.integers(1, 6), version=st.integers(0, 3), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_round_trip(bits: int, rank: int, version: int, seed: int) -> None:
    compressor, key = LowRank(rank, bits), RoundKey(7, version + 1, version)
    space = compressor.space(MATRIX, key)
    values = torch.randn(space.numel, generator=torch.Generator().manual_seed(seed))
    decoded = torch.zeros(space.numel)
    compressor.decode(compressor.encode(values, space, seed), space).add_to(decoded)
    for _, where in space.slices():
        error = float((decoded[where] - values[where]).abs().max())
        if bits == 1:
            assert torch.equal(decoded[where].sign(), values[where].sign())
        else:
            # one step of the levels, and the scale's rounding to bfloat16
            assert error <= float(values[where].abs().max()) * 1.01 * 2 / (2**bits - 1)


def test_settings() -> None:
    for rank in (0, -3, 2**16 + 1):
        with pytest.raises(SettingsError, match=f"rank is {rank}"):
            LowRank(rank=rank)
    with pytest.raises(SettingsError, match="bits is 9"):
        LowRank(bits=9)
    assert LowRank(8, 2).parameters() == 8 << 8 | 2
    assert LowRank(8, 2).describe() == "lowrank rank=8 bits=2"
    assert LowRank.residual is Residual.IN_TENSORS
