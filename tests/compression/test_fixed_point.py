"""Sixteen bits a value, for sums of integers that stand for dense updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distro_fed.compression import make_compressor, quantized, random_rounding
from distro_fed.compression.quantized import FixedPoint, Quantized
from distro_fed.compression.round_code import RoundCode
from distro_fed.compression.scales import pack_scales
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

SPACE = Layout([TensorSpec("a", (301,)), TensorSpec("empty", (0,)), TensorSpec("b", (20,))])
STEP = 2 / 65535


def decoded(update: torch.Tensor, seed: int = 0) -> torch.Tensor:
    code, out = FixedPoint(), torch.zeros(SPACE.numel)
    code.decode(code.encode(update, SPACE, seed), SPACE).add_to(out)
    return out


def test_every_value_comes_back_within_a_step() -> None:
    update = torch.linspace(-1, 1, SPACE.numel)
    out = decoded(update)
    assert float((out - update).abs().max()) <= STEP * 1.01
    assert float((out - update).abs().max()) > STEP / 2


def test_rounding_is_unbiased() -> None:
    update = torch.linspace(-1, 1, SPACE.numel)
    update[150] = 0.0  # between two levels
    mean = torch.stack([decoded(update, seed) for seed in range(400)]).double().mean(0)
    assert float((mean - update).abs().max()) < 5 * (STEP / 2) / 400**0.5


def test_the_extremes_are_codes() -> None:
    update = torch.full((SPACE.numel,), -1.0)
    update[::2] = 1.0
    codes, _ = FixedPoint().integers(FixedPoint().encode(update, SPACE, 0), SPACE)
    assert codes.dtype == np.dtype("<u2")
    assert codes[::2].tolist() == [65535] * len(codes[::2])
    assert codes[1::2].tolist() == [0] * len(codes[1::2])


def test_blocks_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    update = torch.linspace(-1, 1, SPACE.numel)
    whole = decoded(update)
    monkeypatch.setattr(quantized, "BLOCK", 24)
    assert torch.equal(decoded(update), whole)
    monkeypatch.setattr(random_rounding, "_BLOCK", 16)
    assert float((decoded(update) - whole).abs().max()) <= STEP * 1.01


def test_common_scales_clip() -> None:
    scales = pack_scales(np.float32([0.5, 1.0, 1.0]))
    coded = RoundCode(FixedPoint(), SPACE, scales).encode(torch.full((SPACE.numel,), 0.75), 0)
    out = torch.zeros(SPACE.numel)
    FixedPoint().decode(coded.meant, SPACE).add_to(out)
    assert out[:301].tolist() == [0.5] * 301
    assert out[301:].numpy() == pytest.approx(0.75, abs=STEP)
    assert coded.clipped == pytest.approx(301 / 321)


def test_it_stands_for_dense_alone() -> None:
    code = make_compressor("dense").integer_code()
    assert code is not None and code.bits == 16
    with pytest.raises(SettingsError, match="bits is 16"):
        Quantized(16)
