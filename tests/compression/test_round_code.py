"""Codes with scales that all members of a round share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression import make_compressor
from distro_fed.compression.quantized import Quantized
from distro_fed.compression.round_code import RoundCode
from distro_fed.compression.scales import pack_scales, tensor_scales, unpack_scales
from distro_fed.errors import TrainingError, UnusableScales
from distro_fed.layout import Layout, TensorSpec

SPACE = Layout([TensorSpec("a", (11,)), TensorSpec("empty", (0, 2)), TensorSpec("b", (3, 4)), TensorSpec("c", ())])


def scales(*values: float) -> bytes:
    return pack_scales(np.float32(values))


def decoded(code: RoundCode, coefficients: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, float | None]:
    coded = code.encode(coefficients, seed)
    out = torch.zeros(SPACE.numel)
    code.decode(coded).add_to(out)
    return out, coded.clipped


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 8),
    st.lists(st.sampled_from([0.25, 0.5, 1.0, 3.0]), min_size=4, max_size=4),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_the_sum_of_codes_is_the_mean_of_updates(bits: int, common: list[float], members: int, seed: int) -> None:
    """Against a slow plain reference, value for value."""
    code, announced = Quantized(bits), scales(*common)
    generator = torch.Generator().manual_seed(seed)
    updates = [torch.randn(SPACE.numel, generator=generator) for _ in range(members)]
    coded = [RoundCode(code, SPACE, announced).encode(update, seed + i) for i, update in enumerate(updates)]
    total = sum(code.integers(one.sent, SPACE)[0].astype(np.int64) for one in coded)
    levels = 2**bits - 1
    mean = torch.zeros(SPACE.numel)
    for one in coded:
        RoundCode(code, SPACE, announced).decode(one).add_to(mean, 1 / members)
    for (_, where), scale in zip(SPACE.slices(), common, strict=True):
        for place in range(where.start, where.stop):
            exact = scale * (2 * int(np.asarray(total)[place]) - members * levels) / (levels * members)
            assert float(mean[place]) == pytest.approx(exact, abs=1e-5)
            nearest = [min(max(float(update[place]), -scale), scale) for update in updates]
            if bits > 1:
                assert abs(exact - sum(nearest) / members) <= 2 * scale / levels + 1e-5
            else:
                signs = sum(1 if float(update[place]) > 0 else -1 for update in updates)
                assert exact == pytest.approx(scale * signs / members)


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_what_is_measured_is_told_whatever_is_used(bits: int) -> None:
    update = torch.linspace(-1, 1, SPACE.numel)
    statistic = tensor_scales(update, SPACE, "mean" if bits == 1 else "max")
    code = RoundCode(Quantized(bits), SPACE, scales(0.5, 1.0, 2.0, 4.0))
    told = Quantized(bits).integers(code.encode(update, 0).sent, SPACE)[1]
    assert told == pytest.approx(statistic, rel=2**-7)
    assert Quantized(bits).integers(code.encode(update, 0).meant, SPACE)[1].tolist() == [0.5, 1.0, 2.0, 4.0]


def test_with_the_scales_that_were_measured_nothing_changes() -> None:
    update = torch.linspace(-1, 1, SPACE.numel)
    for bits in (1, 5):
        own = RoundCode(Quantized(bits), SPACE).encode(update, 7)
        again = RoundCode(Quantized(bits), SPACE, own.sent[: 2 * len(SPACE)]).encode(update, 7)
        assert again.sent == again.meant == own.sent
        assert again.clipped == 0.0 and own.clipped is None


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_what_is_beyond_the_scale_is_clipped_and_counted(bits: int) -> None:
    update = torch.zeros(SPACE.numel)
    update[:3] = torch.tensor([5.0, -5.0, 0.5])
    update[SPACE.numel - 1] = 1e-3
    out, clipped = decoded(RoundCode(Quantized(bits), SPACE, scales(0.5, 1.0, 1.0, 1e-4)), update)
    assert out[:3].tolist() == [0.5, -0.5, 0.5]
    assert out[SPACE.numel - 1] == pytest.approx(1e-4, rel=2**-7)
    assert clipped == pytest.approx(3 / SPACE.numel)


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_where_no_scale_is_known_a_member_takes_its_own(bits: int) -> None:
    update = torch.linspace(-1, 1, SPACE.numel)
    update[SPACE.numel - 1] = 0.0
    coded = RoundCode(Quantized(bits), SPACE, scales(0.0, 0.0, 2.0, 0.0)).encode(update, 0)
    own = RoundCode(Quantized(bits), SPACE).encode(update, 0)
    assert coded.clipped == 0.0
    (used, measured) = (Quantized(bits).integers(body, SPACE)[1].tolist() for body in (coded.meant, own.sent))
    assert used == [measured[0], 0.0, 2.0, 0.0]
    out, alone = torch.zeros(SPACE.numel), torch.zeros(SPACE.numel)
    Quantized(bits).decode(coded.meant, SPACE).add_to(out)
    Quantized(bits).decode(own.sent, SPACE).add_to(alone)
    assert out[:11].tolist() == alone[:11].tolist()
    assert out[SPACE.numel - 1] == 0, "what did not move stays"


def test_one_bit_clips_nothing() -> None:
    out, clipped = decoded(RoundCode(Quantized(1), SPACE, scales(0.5, 0.0, 1.0, 2.0)), torch.full((SPACE.numel,), 9.0))
    assert clipped == 0.0
    assert out.tolist() == [0.5] * 11 + [1.0] * 12 + [2.0]


def test_clipping_leaves_the_coefficients_as_they_are() -> None:
    update = torch.full((SPACE.numel,), 9.0)
    decoded(RoundCode(Quantized(4), SPACE, scales(0.5, 0.0, 1.0, 2.0)), update)
    assert bool((update == 9).all())


def test_a_value_that_is_not_finite_is_an_error_with_common_scales_too() -> None:
    update = torch.zeros(SPACE.numel)
    update[2] = float("nan")
    with pytest.raises(TrainingError, match="'a'"):
        RoundCode(Quantized(1), SPACE, scales(1, 1, 1, 1)).encode(update, 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(scales(1, 1, 1), "4 scales take 8 bytes"), (scales(1, 1, 1, float("nan")), "scale 3 is nan"),
     (scales(1, -1, 1, 1), "scale 1 is -1"), (scales(1, 1, float("inf"), 1), "scale 2 is inf"), (b"\0", "but 1 are")],
)  # fmt: skip
def test_scales_that_cannot_be_used_are_named(wrong: bytes, words: str) -> None:
    with pytest.raises(UnusableScales, match=words):
        RoundCode(Quantized(4), SPACE, wrong)


@pytest.mark.parametrize("name", ["topk", "dct-topk", "tracking-topk", "dense"])
def test_compressors_without_one_scale_a_tensor(name: str) -> None:
    with pytest.raises(UnusableScales, match=name):
        RoundCode(make_compressor(name), SPACE, scales(1, 1, 1, 1))


def test_scales_of_two_bytes_come_back() -> None:
    packed = scales(0.5, 3.0)
    assert unpack_scales(np.frombuffer(packed, np.uint8), 2).tolist() == [0.5, 3.0]
