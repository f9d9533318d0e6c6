from __future__ import annotations

import pytest
import torch

from distro_fed.agreement import Agreement
from distro_fed.compression.base import Residual, RoundKey
from distro_fed.compression.tracking import Tracking
from distro_fed.compression.tracking_topk import TrackingTopK
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

LAYOUT = Layout([TensorSpec("w", (40, 30), kind="matrix"), TensorSpec("norm", (30,), kind="vector")])
KEY = RoundKey(7, 1)


def test_its_factors_are_those_of_tracking() -> None:
    """The same coefficients move a model in the same way, round after round; they only are sent differently."""
    whole, largest = Tracking(rank=2, decay=0.5), TrackingTopK(rank=2, decay=0.5)
    key = KEY
    for version in range(3):
        assert largest.space(LAYOUT, key).numel == whole.space(LAYOUT, key).numel == 140
        coefficients = torch.randn(140, generator=torch.Generator().manual_seed(version))
        moved = [torch.zeros(LAYOUT.numel) for _ in range(2)]
        memory = []
        for coder, replica in zip((whole, largest), moved, strict=True):
            coder.synthesise(coefficients.clone(), replica, LAYOUT, key)
            remembered = coder.remember(coefficients, LAYOUT, key)
            assert remembered is not None
            memory.append(remembered)
        assert torch.equal(*moved)
        assert torch.equal(*memory)
        key = RoundKey(7, version + 2, version + 1, memory[0])


def test_a_factor_is_a_tensor_with_scales_of_its_own() -> None:
    space = TrackingTopK(rank=2).space(LAYOUT, KEY)
    assert [(spec.name, spec.shape) for spec in space] == [("w[out]", (2, 40)), ("w[in]", (2, 30))]


@pytest.mark.parametrize("value_bits", [1, 2])
def test_the_largest_values_of_all_factors_are_sent(value_bits: int) -> None:
    coder = TrackingTopK(rank=2, density=0.1, value_bits=value_bits)
    space = coder.space(LAYOUT, KEY)
    coefficients = torch.randn(space.numel, generator=torch.Generator().manual_seed(0)) ** 3
    sent = torch.zeros(space.numel)
    coder.decode(coder.encode(coefficients, space, 0), space).add_to(sent)
    expected = set(coefficients.abs().topk(14).indices.tolist())
    assert set(sent.nonzero().flatten().tolist()) == expected
    chosen = sorted(expected)
    assert torch.equal(sent[chosen].sign(), coefficients[chosen].sign())
    if value_bits == 1:
        for where in (slice(0, 80), slice(80, 140)):
            part = sent[where][sent[where] != 0].abs()
            mean = coefficients[where][sent[where] != 0].abs().mean()
            torch.testing.assert_close(part, mean.expand_as(part), rtol=2**-8, atol=0)


def test_up_and_downlink_may_select_differently_but_not_on_other_bases() -> None:
    Agreement(LAYOUT, TrackingTopK(2, 0.1), TrackingTopK(2, 0.3, value_bits=2))
    with pytest.raises(SettingsError, match="do not give the next round the same basis"):
        Agreement(LAYOUT, TrackingTopK(2), TrackingTopK(2, decay=0.5))
    with pytest.raises(SettingsError, match="have different spaces"):
        Agreement(LAYOUT, TrackingTopK(2), TrackingTopK(1))


def test_densities_that_select_differently_are_different_runs() -> None:
    """Also where the header of a frame rounds them to the same number."""
    layout = Layout([TensorSpec("w", (2**18, 2**16), kind="matrix")])
    one, two = (TrackingTopK(32, density) for density in (0.123456, 0.1234563))
    assert one.parameters() == two.parameters()
    assert Agreement(layout, one, one).run != Agreement(layout, two, two).run


def test_settings() -> None:
    assert TrackingTopK(4, 1 / 33, 2, 0.9).describe() == "tracking-topk rank=4 density=1/33 value-bits=2 decay=58/64"
    assert TrackingTopK(256, 1.0, 2, 1.0).parameters() == 64 << 25 | 255 << 17 | 1 << 16 | 0xFFFF < 2**32
    assert TrackingTopK(1, 1 / 64, 1, 0.0).parameters() == 1024
    assert TrackingTopK.residual is Residual.IN_COEFFICIENTS
    for wrong in ({"rank": 0}, {"rank": 257}, {"density": 0.0}, {"value_bits": 3}, {"decay": 1.5}):
        (name,) = wrong
        with pytest.raises(SettingsError, match=f"{name}.* is {wrong[name]}"):
            TrackingTopK(**wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="tracking-topk with rank 30 exchanges nothing"):
        TrackingTopK(rank=30).space(LAYOUT, KEY)
