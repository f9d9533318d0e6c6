from __future__ import annotations

from functools import partial

import pytest
import torch

from distro_fed.agreement import Agreement
from distro_fed.compression.base import Residual, RoundKey
from distro_fed.compression.lowrank import LowRank
from distro_fed.compression.orthonormal import orthonormal_rows, seeded_rows
from distro_fed.compression.tracking import Tracking
from distro_fed.errors import ReplicaError, SettingsError
from distro_fed.layout import Layout, TensorSpec

LAYOUT = Layout([
    TensorSpec("embedding", (50, 20), kind="embedding"), TensorSpec("w", (40, 30), kind="matrix"),
    TensorSpec("norm", (30,), kind="vector"), TensorSpec("v", (12, 30), kind="matrix"),
    TensorSpec("kernel", (8, 3, 3), kind="other"),
])  # fmt: skip
MATRICES = {"w": slice(1000, 2200), "v": slice(2230, 2590)}
SIDES = {"w": (40, 30), "v": (12, 30)}


def delta(seed: int) -> torch.Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed))


def after(compressor: Tracking, updates: int, seed: int = 7) -> RoundKey:
    """The key of the round after some updates at random."""
    key = RoundKey(seed, 1)
    for number in range(updates):
        coefficients = torch.randn(compressor.space(LAYOUT, key).numel, generator=torch.Generator().manual_seed(number))
        key = RoundKey(seed, number + 2, number + 1, compressor.remember(coefficients, LAYOUT, key))
    return key


@pytest.mark.parametrize("version", [0, 1, 2])
def test_both_factors_of_linear_layers_are_exchanged_and_nothing_else(version: int) -> None:
    space = Tracking(rank=2).space(LAYOUT, RoundKey(7, version + 1, version))
    assert [(spec.name, spec.shape) for spec in space] == [
        ("w[out 0]", (40,)), ("w[out 1]", (40,)), ("w[in 0]", (30,)), ("w[in 1]", (30,)),
        ("v[out 0]", (12,)), ("v[out 1]", (12,)), ("v[in 0]", (30,)), ("v[in 1]", (30,)),
    ]  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_matrix_changes_by_both_factors_on_their_bases(version: int) -> None:
    compressor = Tracking(rank=2)
    key = after(compressor, version)
    coefficients = torch.randn(compressor.space(LAYOUT, key).numel)
    replica = delta(0)
    moved = replica.clone()
    compressor.synthesise(coefficients, moved, LAYOUT, key)
    moved -= replica
    start = 0
    for spec, left, right in compressor.bases(LAYOUT, key):
        out, in_ = SIDES[spec.name]
        outer = coefficients[start : start + 2 * out].view(2, out)
        inner = coefficients[start + 2 * out : start + 2 * (out + in_)].view(2, in_)
        start += 2 * (out + in_)
        expected = sum(torch.outer(outer[row], right[row]) + torch.outer(left[row], inner[row]) for row in range(2))
        torch.testing.assert_close(moved[MATRICES[spec.name]].view(out, in_), expected, rtol=1e-4, atol=1e-5)
        moved[MATRICES[spec.name]] = 0
    assert start == coefficients.numel()
    assert not moved.any(), "nothing else of the model moves"


@pytest.mark.parametrize("version", [0, 2])
def test_analysis_projects_on_what_can_be_sent(version: int) -> None:
    """What it leaves out is orthogonal to every change that could be sent, and a change that can be sent stays."""
    compressor = Tracking(rank=2)
    key = after(compressor, version)

    def project(change: torch.Tensor) -> torch.Tensor:
        projected = torch.zeros(LAYOUT.numel)
        compressor.synthesise(compressor.analyse(change, LAYOUT, key), projected, LAYOUT, key)
        return projected

    once = project(delta(1))
    torch.testing.assert_close(project(once), once, rtol=0, atol=5e-3)  # bases are rounded to 12 bits
    left_out = delta(1) - once
    sent = torch.zeros(LAYOUT.numel)
    compressor.synthesise(torch.randn(compressor.space(LAYOUT, key).numel), sent, LAYOUT, key)
    for where in MATRICES.values():
        assert abs(float(left_out[where] @ sent[where])) < 2e-3 * float(left_out[where].norm() * sent[where].norm())


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_a_basis_is_that_of_a_sum_of_which_older_factors_count_less(decay: float) -> None:
    """Against sums kept in lists, one matrix and side after the other."""
    compressor, key = Tracking(rank=2, decay=decay), RoundKey(7, 1)
    sums = {name: [torch.zeros(2, side) for side in sides] for name, sides in SIDES.items()}
    for version in range(5):
        for spec, *bases in compressor.bases(LAYOUT, key):
            for side, summed, rows in zip(("out", "in"), sums[spec.name], bases, strict=True):
                spare = partial(seeded_rows, f"{spec.name}[{side}]", summed.shape[1], 2, 7, version)
                expected = orthonormal_rows(summed.numpy(), spare) if version else spare()
                assert torch.equal(rows, torch.from_numpy(expected))
        coefficients = compressor.analyse(delta(version), LAYOUT, key)
        start = 0
        for pair in sums.values():
            for index, summed in enumerate(pair):
                pair[index] = summed * decay + coefficients[start : start + summed.numel()].view(2, -1)
                start += summed.numel()
        memory = compressor.remember(coefficients, LAYOUT, key)
        known = compressor.memory_layout(LAYOUT, version + 1)
        assert memory is not None and known is not None
        assert known.numel == memory.numel()
        parts = dict(zip((spec.name for spec in known), memory.split([spec.numel for spec in known]), strict=True))
        for name, pair in sums.items():
            for side, summed in zip(("out", "in"), pair, strict=True):
                assert torch.equal(parts[f"{name}[sum {side}]"], summed.reshape(-1))
        key = RoundKey(7, version + 2, version + 1, memory)


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_bases_turn_to_updates_of_any_size(size: float) -> None:
    """Nothing else is in the sums, which small updates would have to outweigh first."""
    compressor, key = Tracking(rank=1), RoundKey(7, 1)
    left, right = delta(0)[:40], delta(1)[:30]
    change = torch.zeros(LAYOUT.numel)
    change[MATRICES["w"]] = torch.outer(left, right).reshape(-1) * size
    for version in range(3):
        memory = compressor.remember(compressor.analyse(change, LAYOUT, key), LAYOUT, key)
        key = RoundKey(7, version + 2, version + 1, memory)
    bases = {spec.name: pair for spec, *pair in compressor.bases(LAYOUT, key)}["w"]
    for rows, side in zip(bases, (left, right), strict=True):
        assert abs(float(rows @ side)) > 0.95 * float(side.norm()), "and is nearly a random one at first"


def test_the_two_sides_of_a_square_matrix_start_apart() -> None:
    layout = Layout([TensorSpec("q", (30, 30), kind="matrix")])
    ((_, left, right),) = Tracking(rank=1).bases(layout, RoundKey(7, 1))
    assert abs(float(left @ right.T)) < 0.9


def test_rounds_without_a_move_give_public_bases() -> None:
    compressor, key = Tracking(rank=2), RoundKey(7, 1)
    nothing = torch.zeros(compressor.space(LAYOUT, key).numel)
    key = RoundKey(7, 2, 1, compressor.remember(nothing, LAYOUT, key))
    for spec, *bases in compressor.bases(LAYOUT, key):
        for rows, side in zip(bases, spec.shape, strict=True):
            torch.testing.assert_close(rows @ rows.T, torch.eye(2), atol=5e-4, rtol=0)
            assert rows.shape == (2, side)


@pytest.mark.parametrize("memory", [None, torch.zeros(7)])
def test_a_key_without_what_is_remembered_is_refused(memory: torch.Tensor | None) -> None:
    compressor, key = Tracking(rank=2), RoundKey(7, 2, 1, memory)
    with pytest.raises(ReplicaError, match="version 1 remembers 448 values"):
        compressor.analyse(delta(0), LAYOUT, key)
    with pytest.raises(ReplicaError, match="version 1 remembers 448 values"):
        compressor.remember(torch.zeros(compressor.space(LAYOUT, key).numel), LAYOUT, key)


def test_up_and_downlink_must_give_the_same_bases() -> None:
    Agreement(LAYOUT, Tracking(2, 1), Tracking(2, 2))
    with pytest.raises(SettingsError, match="do not give the next round the same basis"):
        Agreement(LAYOUT, Tracking(2, 1), Tracking(2, 1, decay=0.5))
    for other in (Tracking(1, 1), LowRank(2, 1)):
        with pytest.raises(SettingsError, match="have different spaces"):
            Agreement(LAYOUT, Tracking(2, 1), other)


def test_settings() -> None:
    assert Tracking(2, 1, 0.9).describe() == "tracking rank=2 bits=1 decay=58/64"
    assert Tracking(2, 3, 1.0).parameters() == 64 << 25 | 2 << 8 | 3 < 2**32
    assert Tracking.codec != LowRank.codec
    assert Tracking.residual is Residual.IN_COEFFICIENTS
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(SettingsError, match=f"decay of the basis is {wrong}"):
            Tracking(decay=wrong)
    with pytest.raises(SettingsError, match="rank is 0"):
        Tracking(rank=0)
    with pytest.raises(SettingsError, match="bits is 9"):
        Tracking(bits=9)
    with pytest.raises(SettingsError, match="none of the 1 tensors is the weight of a linear layer with both sides"):
        Tracking(rank=12).space(Layout([LAYOUT.specs[3]]), RoundKey(7, 1))
