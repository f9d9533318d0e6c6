from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from distro_fed.compression.base import RoundKey
from distro_fed.compression.subspace import Subspace, basis
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

KEY = RoundKey(seed=7, round=3)
SPEC = TensorSpec("layer.weight", (96, 127), kind="matrix")


def test_space_holds_matrices_above_the_rank(layout: Layout) -> None:
    space = Subspace(rank=8).space(layout)
    assert [(spec.name, spec.shape) for spec in space] == [("square", (128, 8)), ("prime", (127, 8))]
    assert {spec.dtype for spec in space} == {"float32"}
    assert "thin" in [spec.name for spec in Subspace(rank=7).space(layout)]


def test_nothing_to_exchange_is_an_error() -> None:
    with pytest.raises(SettingsError, match="rank 8 leaves nothing"):
        Subspace(rank=8).space(Layout([TensorSpec("lora_A", (8, 576), kind="matrix")]))


@pytest.mark.parametrize("rank", [1, 8, 127])
def test_rows_are_orthonormal(rank: int) -> None:
    rows = basis(SPEC, rank, KEY)
    assert rows.shape == (rank, 127)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows @ rows.T, torch.eye(rank), atol=2e-6, rtol=0)


def test_analysis_inverts_synthesis(layout: Layout) -> None:
    compressor = Subspace(rank=4)
    space = compressor.space(layout)
    coefficients = torch.randn(space.numel)
    replica = torch.zeros(layout.numel)
    compressor.synthesise(coefficients.clone(), replica, layout, KEY)
    torch.testing.assert_close(compressor.analyse(replica, layout, KEY), coefficients, atol=1e-5, rtol=1e-5)


def test_synthesis_adds_and_leaves_other_tensors_alone(layout: Layout, delta: torch.Tensor) -> None:
    compressor = Subspace(rank=4)
    replica = delta.clone()
    compressor.synthesise(torch.ones(compressor.space(layout).numel), replica, layout, KEY)
    for spec, where in layout.slices():
        change = replica[where] - delta[where]
        if compressor.exchanges(spec):
            expected = torch.ones(spec.shape[0], 4) @ basis(spec, 4, KEY)
            torch.testing.assert_close(change.view(spec.shape), expected, atol=1e-6, rtol=1e-5)
        else:
            assert not change.any()


def test_basis_depends_on_seed_round_and_name() -> None:
    reference = basis(SPEC, 4, KEY)
    assert torch.equal(reference, basis(SPEC, 4, RoundKey(7, 3)))
    others = [
        basis(SPEC, 4, RoundKey(7, 4)),
        basis(SPEC, 4, RoundKey(8, 3)),
        basis(TensorSpec("other", (96, 127), kind="matrix"), 4, KEY),
    ]
    for other in others:
        # two random 4-dimensional subspaces of 127 dimensions share 4 * 4 / 127 of their energy
        assert (reference @ other.T).square().sum().item() < 1.5


def test_bases_of_many_rounds_span_everything_evenly() -> None:
    rounds = torch.cat([basis(SPEC, 4, RoundKey(7, number)) for number in range(400)])
    assert torch.linalg.matrix_rank(rounds[:200]) == 127
    energy = torch.linalg.eigvalsh(rounds.T @ rounds) / (1600 / 127)
    # eigenvalues of 1600 random directions in 127 dimensions: (1 +- sqrt(127 / 1600))**2
    assert energy.min().item() > 0.3
    assert energy.max().item() < 2.0


def test_first_values_never_change() -> None:
    rows = basis(TensorSpec("w", (8, 8), kind="matrix"), 2, RoundKey(0, 1))
    half, low, high, steep, flat = 8**-0.5, 0.0975452, 0.4903926, 0.4157348, 0.2777851
    expected = torch.tensor(
        [
            [-half, -half, -half, half, -half, -half, -half, half],
            [low, -low, -steep, -flat, -high, steep, -flat, -high],
        ]
    )
    torch.testing.assert_close(rows, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bits", [1, 8])
def test_body_is_quantised(
    bits: int, layout: Layout, roundtrip: Callable[..., torch.Tensor], delta: torch.Tensor
) -> None:
    compressor = Subspace(rank=4, bits=bits)
    space = compressor.space(layout)
    coefficients = compressor.analyse(delta, layout, KEY)
    out = roundtrip(compressor, coefficients, space)
    assert torch.equal(out.sign(), coefficients.sign()) if bits == 1 else (out - coefficients).norm() < 0.1 * out.norm()


def test_settings() -> None:
    for rank in (0, -3, 2**16 + 1):
        with pytest.raises(SettingsError, match=f"rank is {rank}"):
            Subspace(rank=rank)
    with pytest.raises(SettingsError, match="bits is 9"):
        Subspace(bits=9)
    with pytest.raises(SettingsError, match="128"):
        basis(SPEC, 128, KEY)
    assert Subspace(8, 1).parameters() == 8 << 8 | 1
    assert Subspace(8, 1).describe() == "subspace rank=8 bits=1"
    assert not Subspace.keeps_space
