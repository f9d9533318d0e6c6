"""What differs from ``lowrank``, whose tests cover the projection and the bases."""

from __future__ import annotations

import pytest
import torch

from distro_fed.compression.base import Residual, RoundKey
from distro_fed.compression.lowrank import LowRank
from distro_fed.compression.tracking import Tracking
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

LAYOUT = Layout([
    TensorSpec("embedding", (50, 20), kind="embedding"), TensorSpec("w", (40, 30), kind="matrix"),
    TensorSpec("norm", (30,), kind="vector"), TensorSpec("v", (12, 30), kind="matrix"),
    TensorSpec("kernel", (8, 3, 3), kind="other"),
])  # fmt: skip
MATRICES = Layout([LAYOUT.specs[1], LAYOUT.specs[3]])


@pytest.mark.parametrize(("version", "sides"), [(0, (40, 12)), (1, (30, 30)), (2, (40, 12))])
def test_only_weights_of_linear_layers_are_exchanged(version: int, sides: tuple[int, int]) -> None:
    space = Tracking(rank=2).space(LAYOUT, RoundKey(7, version + 1, version))
    assert [(spec.name, spec.shape) for spec in space] == [
        ("w[0]", sides[:1]), ("w[1]", sides[:1]), ("v[0]", sides[1:]), ("v[1]", sides[1:])
    ]  # fmt: skip


def test_on_these_it_projects_and_remembers_as_lowrank_does() -> None:
    ours, theirs = Tracking(rank=2), LowRank(rank=2)
    key = other = RoundKey(7, 1)
    place = slice(1000, 2200), slice(2230, 2590)
    replica = torch.zeros(LAYOUT.numel)
    for version in range(4):
        delta = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(version))
        matrices = torch.cat([delta[one] for one in place])
        coefficients = ours.analyse(delta, LAYOUT, key)
        assert torch.equal(coefficients, theirs.analyse(matrices, MATRICES, other))
        before, expected = replica.clone(), torch.zeros(MATRICES.numel)
        ours.synthesise(coefficients.clone(), replica, LAYOUT, key)
        theirs.synthesise(coefficients.clone(), expected, MATRICES, other)
        change = replica - before
        torch.testing.assert_close(torch.cat([change[one] for one in place]), expected)
        change[place[0]] = change[place[1]] = 0
        assert not change.any(), "nothing else of the model moves"
        memory, also = ours.remember(coefficients, LAYOUT, key), theirs.remember(coefficients, MATRICES, other)
        assert memory is not None and also is not None
        assert torch.equal(memory, also)
        known = ours.memory_layout(LAYOUT, version + 1)
        assert known is not None and known.numel == memory.numel()
        key, other = RoundKey(7, version + 2, version + 1, memory), RoundKey(7, version + 2, version + 1, also)


def test_settings() -> None:
    assert Tracking(2, 1).describe() == "tracking rank=2 bits=1"
    assert Tracking(2, 3).parameters() == 2 << 8 | 3
    assert Tracking.codec != LowRank.codec
    assert Tracking.residual is Residual.NONE
    with pytest.raises(SettingsError, match="tracking with rank 12 projects nothing"):
        Tracking(rank=12).space(Layout([LAYOUT.specs[3]]), RoundKey(7, 1))
