from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from distro_fed.compression import quantized
from distro_fed.compression.quantized import FixedPoint, Quantized
from distro_fed.errors import CorruptBody, SettingsError, TrainingError
from distro_fed.layout import Layout, TensorSpec

ONE = Layout([TensorSpec("a", (20_000,))])


@pytest.mark.parametrize("bits", range(1, 9))
def test_size(bits: int, layout: Layout, delta: torch.Tensor) -> None:
    assert len(Quantized(bits).encode(delta, layout, 0)) == 2 * len(layout) + -(-layout.numel * bits // 8)


def test_one_bit_is_sign_times_mean(
    layout: Layout, delta: torch.Tensor, roundtrip: Callable[..., torch.Tensor]
) -> None:
    out = roundtrip(Quantized(1), delta, layout)
    for spec, where in layout.slices():
        if spec.numel:
            scale = delta[where].abs().mean().bfloat16().float()
            assert torch.equal(out[where], delta[where].sign() * scale)


def test_one_bit_draws_the_sign_of_zero(roundtrip: Callable[..., torch.Tensor]) -> None:
    x = torch.zeros(20_000)
    x[:100] = 50.0
    out = roundtrip(Quantized(1), x, ONE)
    assert bool((out[:100] > 0).all())
    assert abs(out[100:].sign().mean().item()) < 0.05
    assert torch.equal(out, roundtrip(Quantized(1), x, ONE, 0))
    assert not torch.equal(out, roundtrip(Quantized(1), x, ONE, 1))


@pytest.mark.parametrize("bits", range(2, 9))
def test_rounding_is_unbiased_and_stays_between_neighbours(bits: int, roundtrip: Callable[..., torch.Tensor]) -> None:
    x = torch.linspace(-1, 1, 101)
    layout = Layout([TensorSpec("a", (101,))])
    outs = torch.stack([roundtrip(Quantized(bits), x, layout, seed) for seed in range(600)])
    gap = 2 / (2**bits - 1)
    assert float((outs - x).abs().max()) <= gap * (1 + 1e-5)
    assert float((outs.mean(0) - x).abs().max()) < 5 * (gap / 2) / 600**0.5
    assert torch.equal(outs[:, -1], torch.ones(600)), "the largest value is a level"


@pytest.mark.parametrize("bits", range(1, 9))
def test_all_codes_are_used(bits: int, roundtrip: Callable[..., torch.Tensor]) -> None:
    assert roundtrip(Quantized(bits), torch.linspace(-1, 1, 20_000), ONE).unique().numel() == 2**bits


def test_zero_tensors_stay_zero(layout: Layout, roundtrip: Callable[..., torch.Tensor]) -> None:
    for bits in (1, 4):
        assert not roundtrip(Quantized(bits), torch.zeros(layout.numel), layout).any()


@pytest.mark.parametrize("code", [Quantized(2), Quantized(8), FixedPoint()], ids=lambda code: code.describe())
def test_codes_of_a_zero_tensor_mean_nothing_whatever_scale_they_are_read_with(code: Quantized) -> None:
    """Under masks they are added to codes of members whose scale is not 0."""
    codes, _ = code.integers(code.encode(torch.zeros(20_000), ONE, 3), ONE)
    centred = codes.astype(float) - (2**code.bits - 1) / 2
    assert abs(centred).max() == 0.5
    assert abs(centred.mean()) < 0.02


def test_denormals(roundtrip: Callable[..., torch.Tensor]) -> None:
    out = roundtrip(Quantized(4), torch.full((20_000,), 1e-42), ONE)
    assert float(out.abs().max()) <= 2.0**-126


def test_blocks_leave_no_seam(
    layout: Layout, delta: torch.Tensor, roundtrip: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    coders = [Quantized(bits) for bits in (1, 3, 8)]
    whole = [roundtrip(coder, delta, layout) for coder in coders]
    monkeypatch.setattr(quantized, "BLOCK", 24)
    for coder, expected in zip(coders, whole, strict=True):
        assert torch.equal(roundtrip(coder, delta, layout), expected)


def test_weight_and_sum_are_two_roundings(layout: Layout, delta: torch.Tensor) -> None:
    compressor, weight = Quantized(3), 0.37
    decoded = compressor.decode(compressor.encode(delta, layout, 0), layout)
    plain, out = torch.zeros(layout.numel), delta.clone()
    decoded.add_to(plain)
    decoded.add_to(out, weight)
    assert torch.equal(out, delta + plain * torch.tensor(weight))


@pytest.mark.parametrize("bits", [0, 9, -1])
def test_bits_out_of_range(bits: int) -> None:
    with pytest.raises(SettingsError, match=f"bits is {bits}"):
        Quantized(bits)


@pytest.mark.parametrize("bits", [1, 4])
def test_nan_is_not_sent(bits: int, layout: Layout, delta: torch.Tensor) -> None:
    delta[layout.offsets[4]] = float("nan")
    with pytest.raises(TrainingError, match="'vector'"):
        Quantized(bits).encode(delta, layout, 0)


def test_wrong_length_is_refused(layout: Layout, delta: torch.Tensor) -> None:
    body = Quantized(3).encode(delta, layout, 0)
    for damaged in (body[:-1], body + b"\0", b""):
        with pytest.raises(CorruptBody, match="take"):
            Quantized(3).decode(damaged, layout)
