from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression.scales import pack_scales, tensor_scales, unpack_scales
from distro_fed.errors import CorruptBody, TrainingError
from distro_fed.layout import Layout, TensorSpec

LAYOUT = Layout([TensorSpec("a", (2, 2)), TensorSpec("none", (0,)), TensorSpec("b", ())])


def raw(*bits: int) -> np.ndarray:
    return np.frombuffer(np.array(bits, "<u2").tobytes(), np.uint8)


def test_mean_and_largest_magnitude() -> None:
    flat = torch.tensor([1.0, -2.0, 3.0, -6.0, -0.5])
    assert tensor_scales(flat, LAYOUT, "mean").tolist() == [3.0, 0.0, 0.5]
    assert tensor_scales(flat, LAYOUT, "max").tolist() == [6.0, 0.0, 0.5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2.0**64])
def test_a_value_that_must_not_be_sent_names_its_tensor(bad: float) -> None:
    with pytest.raises(TrainingError, match="'b'"):
        tensor_scales(torch.tensor([1.0, 1, 1, 1, bad]), LAYOUT, "mean")


@settings(deadline=None)
@given(st.floats(0, 2.0**63, width=32))
def test_rounding(value: float) -> None:
    scale = np.array([value], np.float32)
    nearest = unpack_scales(np.frombuffer(pack_scales(scale), np.uint8), 1)[0]
    torch_says = torch.tensor([value]).bfloat16().float().item()
    assert nearest == torch_says
    up = unpack_scales(np.frombuffer(pack_scales(scale, up=True), np.uint8), 1)[0]
    assert up >= value
    assert up <= max(value * (1 + 2**-7), 2.0**-126)
    assert (up == 0) == (value == 0)


@pytest.mark.parametrize(
    "bits", [0x7FC0, 0x7F80, 0x8000, 0xBF80, 0x5F81], ids=["nan", "inf", "-0", "-1", "above 2**64"]
)
def test_refused_scales(bits: int) -> None:
    with pytest.raises(CorruptBody, match="scale 1"):
        unpack_scales(raw(0x3F80, bits), 2)


def test_the_limit_itself_is_accepted_and_the_length_exact() -> None:
    assert unpack_scales(raw(0x5F80), 1)[0] == 2.0**64
    with pytest.raises(CorruptBody, match="2 scales"):
        unpack_scales(raw(0x3F80), 2)
