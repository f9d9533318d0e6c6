from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from distro_fed.compression.dense import Dense
from distro_fed.errors import CorruptBody, SettingsError, TrainingError
from distro_fed.layout import Layout, TensorSpec

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


@pytest.mark.parametrize("dtype", WIDTHS)
def test_values_are_those_of_the_dtype(
    dtype: str, layout: Layout, delta: torch.Tensor, roundtrip: Callable[..., torch.Tensor]
) -> None:
    compressor = Dense(dtype)
    assert len(compressor.encode(delta, layout, 0)) == WIDTHS[dtype] * layout.numel
    torch.testing.assert_close(
        roundtrip(compressor, delta, layout), delta.to(getattr(torch, dtype)).float(), rtol=0, atol=0
    )


def test_weight_and_sum_are_two_roundings() -> None:
    layout = Layout([TensorSpec("a", (1000,))])
    x, start, weight = torch.randn(1000), torch.randn(1000), 1 / 3
    out = start.clone()
    Dense().decode(Dense().encode(x, layout, 0), layout).add_to(out, weight)
    expected = start.numpy() + (x.numpy() * torch.tensor(weight).numpy())
    assert torch.equal(out, torch.from_numpy(expected))


def test_parameters_tell_dtypes_apart() -> None:
    assert len({Dense(dtype).parameters() for dtype in WIDTHS}) == 3
    assert Dense("bfloat16").describe() == "dense dtype=bfloat16"


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(SettingsError, match="float64"):
        Dense("float64")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2.0**64])
def test_what_is_not_finite_is_not_sent(bad: float) -> None:
    layout = Layout([TensorSpec("a", (3,)), TensorSpec("b", (1,))])
    with pytest.raises(TrainingError, match="'b'"):
        Dense().encode(torch.tensor([1.0, 2, 3, bad]), layout, 0)


def test_float16_says_when_it_is_too_narrow() -> None:
    with pytest.raises(TrainingError, match="bfloat16"):
        Dense("float16").encode(torch.tensor([1e6]), Layout([TensorSpec("a", (1,))]), 0)


def test_wrong_length_is_refused(layout: Layout, delta: torch.Tensor) -> None:
    body = Dense().encode(delta, layout, 0)
    for damaged in (body[:-1], body + b"\0", b""):
        with pytest.raises(CorruptBody, match="take"):
            Dense().decode(damaged, layout)


def test_an_empty_layout() -> None:
    empty = Layout([TensorSpec("a", (0,))])
    assert Dense().encode(torch.zeros(0), empty, 0) == b""
    Dense().decode(b"", empty).add_to(torch.zeros(0))
