from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from distro_fed.compression.base import Residual, RoundKey
from distro_fed.compression.subspace import Subspace, basis
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

KEY = RoundKey(seed=7, round=3)
SPEC = TensorSpec("layer.weight", (96, 127), kind="matrix")


def test_space_holds_matrices_above_the_rank(layout: Layout) -> None:
    space = Subspace(rank=8).space(layout, KEY)
    assert [(spec.name, spec.shape) for spec in space] == [("square", (128, 8)), ("prime", (127, 8))]
    assert {spec.dtype for spec in space} == {"float32"}
    assert "thin" in [spec.name for spec in Subspace(rank=7).space(layout, KEY)]


def test_nothing_to_exchange_is_an_error() -> None:
    with pytest.raises(SettingsError, match="rank 8 leaves nothing"):
        Subspace(rank=8).space(Layout([TensorSpec("lora_A", (8, 576), kind="matrix")]), KEY)


@pytest.mark.parametrize("rank", [1, 8, 127])
def test_rows_are_orthonormal(rank: int) -> None:
    rows = basis(SPEC, rank, KEY)
    assert rows.shape == (rank, 127)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows @ rows.T, torch.eye(rank), atol=2e-6, rtol=0)


def test_analysis_inverts_synthesis(layout: Layout) -> None:
    compressor = Subspace(rank=4)
    space = compressor.space(layout, KEY)
    coefficients = torch.randn(space.numel)
    replica = torch.zeros(layout.numel)
    compressor.synthesise(coefficients.clone(), replica, layout, KEY)
    torch.testing.assert_close(compressor.analyse(replica, layout, KEY), coefficients, atol=1e-5, rtol=1e-5)


def test_synthesis_adds_and_leaves_other_tensors_alone(layout: Layout, delta: torch.Tensor) -> None:
    compressor = Subspace(rank=4)
    replica = delta.clone()
    compressor.synthesise(torch.ones(compressor.space(layout, KEY).numel), replica, layout, KEY)
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
    space = compressor.space(layout, KEY)
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
    assert Subspace.residual is Residual.NONE


def ranks(compressor: Subspace) -> list[int]:
    return [compressor.rank_in(RoundKey(7, number)) for number in range(1, compressor.rounds + 1)]


def test_the_rank_moves_in_equal_steps() -> None:
    assert ranks(Subspace(2, final_rank=6, rounds=5)) == [2, 3, 4, 5, 6]
    assert ranks(Subspace(8, final_rank=2, rounds=4)) == [8, 6, 4, 2]
    assert ranks(Subspace(1, final_rank=3, rounds=5)) == [1, 2, 2, 3, 3]
    assert ranks(Subspace(3, final_rank=9, rounds=1)) == [3]
    assert ranks(Subspace(3, rounds=4)) == [3, 3, 3, 3]


@pytest.mark.parametrize("round_", [-5, 0, 6, 2**32 - 1])
def test_rounds_outside_the_run_get_the_rank_of_its_ends(round_: int) -> None:
    assert Subspace(2, final_rank=6, rounds=5).rank_in(RoundKey(7, round_)) == (2 if round_ < 1 else 6)


def test_space_and_header_follow_the_rank_of_the_round(layout: Layout) -> None:
    compressor = Subspace(2, bits=3, final_rank=6, rounds=5)
    for number, rank in enumerate(ranks(compressor), start=1):
        key = RoundKey(7, number)
        space = compressor.space(layout, key)
        # the same matrices in all rounds: those above the largest rank
        assert [(spec.name, spec.shape) for spec in space] == [
            (name, (out, rank)) for name, out in (("square", 128), ("prime", 127), ("thin", 8))
        ]
        assert compressor.parameters_in(key) == rank << 8 | 3
        coefficients = torch.randn(space.numel)
        replica = torch.zeros(layout.numel)
        compressor.synthesise(coefficients.clone(), replica, layout, key)
        torch.testing.assert_close(compressor.analyse(replica, layout, key), coefficients, atol=1e-5, rtol=1e-5)


def test_rounds_share_a_basis() -> None:
    compressor = Subspace(4, basis_rounds=3)
    bases = [compressor.basis(SPEC, RoundKey(7, number)) for number in range(1, 8)]
    assert torch.equal(bases[0], basis(SPEC, 4, RoundKey(7, 1)))
    assert all(torch.equal(bases[index], bases[index // 3 * 3]) for index in range(7))
    assert not torch.equal(bases[2], bases[3])
    # a growing rank adds rows to those that are shared
    growing = Subspace(4, final_rank=5, rounds=2, basis_rounds=2)
    assert torch.equal(growing.basis(SPEC, RoundKey(7, 2))[:4], growing.basis(SPEC, RoundKey(7, 1)))


def test_description_tells_runs_apart() -> None:
    described = {
        Subspace(2, 1, final, shared, rounds).describe()
        for final, shared, rounds in ((0, 1, 9), (4, 1, 9), (4, 1, 8), (4, 2, 9), (6, 1, 9))
    }
    assert len(described) == 5
    assert Subspace(2, 1, 4, 3, 9).describe() == "subspace rank=2-4 over 9 rounds bits=1 basis-rounds=3"
    for wrong in ({"final_rank": -1}, {"final_rank": 2**17}, {"basis_rounds": 0}, {"rounds": 0}):
        with pytest.raises(SettingsError, match=str(next(iter(wrong.values())))):
            Subspace(**wrong)
