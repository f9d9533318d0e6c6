"""What differs from ``lowrank``, whose tests cover the projection."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from distro_fed.agreement import Agreement
from distro_fed.compression.base import Residual, RoundKey
from distro_fed.compression.lowrank import LowRank, seeded_rows
from distro_fed.compression.orthonormal import orthonormal_rows
from distro_fed.compression.tracking import Tracking
from distro_fed.errors import ReplicaError, SettingsError
from distro_fed.layout import Layout, TensorSpec

LAYOUT = Layout([
    TensorSpec("embedding", (50, 20), kind="embedding"), TensorSpec("w", (40, 30), kind="matrix"),
    TensorSpec("norm", (30,), kind="vector"), TensorSpec("v", (12, 30), kind="matrix"),
    TensorSpec("kernel", (8, 3, 3), kind="other"),
])  # fmt: skip
MATRICES = Layout([LAYOUT.specs[1], LAYOUT.specs[3]])
PLACES = slice(1000, 2200), slice(2230, 2590)


def delta(seed: int) -> torch.Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("version", "sides"), [(0, (40, 12)), (1, (30, 30)), (2, (40, 12))])
def test_only_weights_of_linear_layers_are_exchanged(version: int, sides: tuple[int, int]) -> None:
    space = Tracking(rank=2).space(LAYOUT, RoundKey(7, version + 1, version))
    assert [(spec.name, spec.shape) for spec in space] == [
        ("w[0]", sides[:1]), ("w[1]", sides[:1]), ("v[0]", sides[1:]), ("v[1]", sides[1:])
    ]  # fmt: skip


def test_with_the_last_update_alone_it_projects_as_lowrank_does() -> None:
    ours, theirs = Tracking(rank=2, decay=0.0), LowRank(rank=2)
    key = other = RoundKey(7, 1)
    replica = torch.zeros(LAYOUT.numel)
    for version in range(4):
        change = delta(version)
        coefficients = ours.analyse(change, LAYOUT, key)
        expected = theirs.analyse(torch.cat([change[one] for one in PLACES]), MATRICES, other)
        assert torch.equal(coefficients, expected)
        before, moved = replica.clone(), torch.zeros(MATRICES.numel)
        ours.synthesise(coefficients.clone(), replica, LAYOUT, key)
        theirs.synthesise(coefficients.clone(), moved, MATRICES, other)
        change = replica - before
        torch.testing.assert_close(torch.cat([change[one] for one in PLACES]), moved)
        change[PLACES[0]] = change[PLACES[1]] = 0
        assert not change.any(), "nothing else of the model moves"
        memories = ours.remember(coefficients, LAYOUT, key), theirs.remember(coefficients, MATRICES, other)
        key, other = (RoundKey(7, version + 2, version + 1, memory) for memory in memories)


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_the_basis_is_that_of_a_sum_of_which_older_factors_count_less(decay: float) -> None:
    """Against sums kept in lists, one matrix and side after the other."""
    compressor, key = Tracking(rank=2, decay=decay), RoundKey(7, 1)
    sums = {spec.name: [torch.zeros(2, side) for side in spec.shape] for spec in MATRICES}
    for version in range(6):
        for spec, rows in compressor.bases(LAYOUT, key):
            used = sums[spec.name][1 - version % 2]
            spare = partial(seeded_rows, spec.name, used.shape[1], 2, 7, version)
            expected = orthonormal_rows(used.numpy(), spare)
            seeded = seeded_rows(spec.name, spec.shape[1], 2, 7, 0)
            assert torch.equal(rows, torch.from_numpy(expected if version else seeded))
        coefficients = compressor.analyse(delta(version), LAYOUT, key)
        start = 0
        for spec in MATRICES:
            size = 2 * spec.shape[version % 2]
            factor = coefficients[start : start + size].view(2, -1)
            sums[spec.name][version % 2] = sums[spec.name][version % 2] * decay + factor
            start += size
        memory = compressor.remember(coefficients, LAYOUT, key)
        known = compressor.memory_layout(LAYOUT, version + 1)
        assert memory is not None and known is not None
        assert known.numel == memory.numel()
        parts = dict(zip((spec.name for spec in known), memory.split([spec.numel for spec in known]), strict=True))
        for name, pair in sums.items():
            for side, one in zip(("out", "in"), pair, strict=True):
                assert torch.equal(parts[f"{name}[{side}]"], one.reshape(-1))
        key = RoundKey(7, version + 2, version + 1, memory)


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_the_basis_turns_to_updates_of_any_size(size: float) -> None:
    """Nothing else is in the sums, which small updates would have to outweigh first."""
    compressor, key = Tracking(rank=1), RoundKey(7, 1)
    left, right = delta(0)[:40], delta(1)[:30]
    change = torch.zeros(LAYOUT.numel)
    change[PLACES[0]] = torch.outer(left, right).reshape(-1) * size
    change[PLACES[1]] = delta(2)[:360]
    for version in range(3):
        memory = compressor.remember(compressor.analyse(change, LAYOUT, key), LAYOUT, key)
        key = RoundKey(7, version + 2, version + 1, memory)
        side = (left, right)[version % 2]
        basis = {spec.name: rows for spec, rows in compressor.bases(LAYOUT, key)}["w"]
        assert abs(float(basis @ side)) > 0.999 * float(side.norm())


def test_rounds_without_a_move_give_a_public_basis() -> None:
    compressor, key = Tracking(rank=2), RoundKey(7, 1)
    nothing = torch.zeros(compressor.space(LAYOUT, key).numel)
    key = RoundKey(7, 2, 1, compressor.remember(nothing, LAYOUT, key))
    for spec, rows in compressor.bases(LAYOUT, key):
        torch.testing.assert_close(rows @ rows.T, torch.eye(2), atol=5e-4, rtol=0)
        assert rows.shape == (2, spec.shape[0])


@pytest.mark.parametrize("memory", [None, torch.zeros(7)])
def test_a_key_without_what_is_remembered_is_refused(memory: torch.Tensor | None) -> None:
    compressor, key = Tracking(rank=2), RoundKey(7, 2, 1, memory)
    with pytest.raises(ReplicaError, match="version 1 remembers 328 values"):
        compressor.analyse(delta(0), LAYOUT, key)
    with pytest.raises(ReplicaError, match="version 1 remembers 328 values"):
        compressor.remember(torch.zeros(compressor.space(LAYOUT, key).numel), LAYOUT, key)


def test_up_and_downlink_must_give_the_same_basis() -> None:
    Agreement(LAYOUT, Tracking(2, 1), Tracking(2, 2))
    for other in (Tracking(2, 1, decay=0.5), LowRank(2, 1)):
        with pytest.raises(SettingsError, match="do not give the next round the same basis"):
            Agreement(MATRICES, Tracking(2, 1), other)


def test_settings() -> None:
    assert Tracking(2, 1, 0.9).describe() == "tracking rank=2 bits=1 decay=58/64"
    assert Tracking(2, 3, 1.0).parameters() == 64 << 25 | 2 << 8 | 3 < 2**32
    assert Tracking.codec != LowRank.codec
    assert Tracking.residual is Residual.NONE
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(SettingsError, match=f"decay of the basis is {wrong}"):
            Tracking(decay=wrong)
    with pytest.raises(SettingsError, match="rank is 0"):
        Tracking(rank=0)
    with pytest.raises(SettingsError, match="none of the 1 tensors is the weight of a linear layer with both sides"):
        Tracking(rank=12).space(Layout([LAYOUT.specs[3]]), RoundKey(7, 1))
