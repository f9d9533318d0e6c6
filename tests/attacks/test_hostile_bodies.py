"""Bodies that no honest member sends. Each must be refused by name, with memory that the body cannot choose."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression import make_compressor
from distro_fed.compression.base import Compressor, RoundKey
from distro_fed.compression.positions import encode_positions
from distro_fed.errors import CorruptBody
from distro_fed.layout import Layout, TensorSpec
from distro_fed.presets import SELECTING

LAYOUT = Layout(
    [
        TensorSpec("a", (67, 80), kind="matrix"),
        TensorSpec("b", (13,), kind="vector"),
        TensorSpec("c", (), kind="vector"),
        TensorSpec("none", (0, 4)),
        TensorSpec("d", (64, 33), kind="matrix"),
    ]
)
KEY = RoundKey(seed=3, round=1)
COMPRESSORS = [
    make_compressor("dense"),
    make_compressor("dense", dtype="bfloat16"),
    make_compressor("dense", dtype="float16"),
    *(make_compressor("quantized", bits=bits) for bits in (1, 3, 8)),
    make_compressor("topk", density=1 / 16),
    make_compressor("topk", density=1 / 16, selection="chunk", value_bits=2),
    make_compressor("dct-topk", density=1 / 16),
    make_compressor("dct-topk", density=1 / 16, value_bits=2),
    make_compressor("subspace", rank=3, bits=1),
    make_compressor("lowrank", rank=3, bits=2),
    make_compressor("tracking", rank=3, bits=1),
    make_compressor("tracking-topk", rank=3, density=1 / 8, value_bits=2),
]
SPARSE = [compressor for compressor in COMPRESSORS if compressor.name in SELECTING]
SCALED = [compressor for compressor in COMPRESSORS if compressor.name != "dense"]
each = pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c.describe())
each_sparse = pytest.mark.parametrize("compressor", SPARSE, ids=lambda c: c.describe())
each_scaled = pytest.mark.parametrize("compressor", SCALED, ids=lambda c: c.describe())


def valid_body(compressor: Compressor) -> tuple[bytes, Layout]:
    space = compressor.space(LAYOUT, KEY)
    values = torch.randn(space.numel, generator=torch.Generator().manual_seed(5)) ** 3
    return compressor.encode(values, space, 0), space


def scales_start(compressor: Compressor) -> int:
    return 8 if compressor in SPARSE else 0


def levels(compressor: Compressor) -> int:
    """Scales of a tensor in a selecting compressor, which are as many as bits of a value."""
    return getattr(compressor, "value_bits", 1)


def with_count(body: bytes, count: int) -> bytes:
    return count.to_bytes(8, "little") + body[8:]


def sparse_body(positions: bytes, count: int, space: Layout, levels: int) -> bytes:
    """Hand-made body: all scales 1, all signs negative, any position code."""
    scales, codes = b"\x80\x3f" * len(space) * levels, bytes(-(-count * levels // 8))
    return count.to_bytes(8, "little") + scales + codes + positions


@each
def test_every_truncation(compressor: Compressor) -> None:
    body, space = valid_body(compressor)
    for length in {0, 1, 7, 8, 9, len(body) // 2, *range(len(body) - 40, len(body))}:
        with pytest.raises(CorruptBody):
            compressor.decode(body[:length], space)


@each
@pytest.mark.parametrize("tail", [b"\0", b"\1", b"\xff" * 9, bytes(4096)], ids=len)
def test_trailing_bytes(compressor: Compressor, tail: bytes) -> None:
    body, space = valid_body(compressor)
    with pytest.raises(CorruptBody):
        compressor.decode(body + tail, space)


@each_sparse
def test_an_end_within_count_or_scales_is_named(compressor: Compressor) -> None:
    body, space = valid_body(compressor)
    end = 8 + 2 * len(space) * levels(compressor)
    for length in (0, 7, end - 1):
        with pytest.raises(CorruptBody, match=f"ends after {length} bytes, within its {end}"):
            compressor.decode(body[:length], space)


@each_sparse
@pytest.mark.parametrize("count", [2**60, 2**64 - 1, 2**63, 2**32, 2**31])
def test_counts_beyond_all_bounds(compressor: Compressor, count: int) -> None:
    body, space = valid_body(compressor)
    with pytest.raises(CorruptBody, match=str(count)):
        compressor.decode(with_count(body, count), space)


@each_sparse
@pytest.mark.parametrize("change", [-1, 1, -8, 8])
def test_counts_a_little_wrong(compressor: Compressor, change: int) -> None:
    body, space = valid_body(compressor)
    count = int.from_bytes(body[:8], "little")
    with pytest.raises(CorruptBody):
        compressor.decode(with_count(body, count + change), space)


@each_sparse
def test_one_position_more_than_allowed(compressor: Compressor) -> None:
    body, space = valid_body(compressor)
    count = int.from_bytes(body[:8], "little")  # random values: as many as density and layout allow
    code = encode_positions(np.arange(count + 1))
    with pytest.raises(CorruptBody, match=f"claims {count + 1} positions; density and layout allow {count}"):
        compressor.decode(sparse_body(code, count + 1, space, levels(compressor)), space)


@each_sparse
@pytest.mark.parametrize("beyond", [0, 1, 10**6, 2**40])
def test_a_position_out_of_range(compressor: Compressor, beyond: int) -> None:
    space = compressor.space(LAYOUT, KEY)
    fits = encode_positions(np.array([0, space.numel - 1]))
    compressor.decode(sparse_body(fits, 2, space, levels(compressor)), space)
    with pytest.raises(CorruptBody):
        compressor.decode(
            sparse_body(encode_positions(np.array([0, space.numel + beyond])), 2, space, levels(compressor)), space
        )


@each_sparse
def test_repeated_and_unsorted_positions_have_no_code(compressor: Compressor) -> None:
    # A gap counts what is left out between two positions: no bytes stand for a gap of -1. The nearest attempt,
    # fewer gaps than positions, is refused.
    for positions in ([5, 5], [9, 2]):
        with pytest.raises(ValueError, match="increasing"):
            encode_positions(np.array(positions))
    space = compressor.space(LAYOUT, KEY)
    with pytest.raises(CorruptBody, match="1 gaps instead of 2"):
        compressor.decode(sparse_body(encode_positions(np.array([5])), 2, space, levels(compressor)), space)


@each_sparse
def test_gaps_that_would_overflow(compressor: Compressor) -> None:
    space = compressor.space(LAYOUT, KEY)
    parameter_31 = b"\x1f" + b"\xff" * 7 + b"\x3f"  # one group, and 31 low bits for each of two gaps
    with pytest.raises(CorruptBody, match="not below"):
        compressor.decode(sparse_body(parameter_31 + b"\3", 2, space, levels(compressor)), space)
    with pytest.raises(CorruptBody, match="beyond the bound"):
        compressor.decode(sparse_body(parameter_31 + b"\0\0\0\x88", 2, space, levels(compressor)), space)


@each_scaled
@pytest.mark.parametrize("scale", [0x7FC0, 0x7F80, 0xFF80, 0xBF80, 0x8000, 0x5F81], ids=hex)
def test_scales_that_are_no_magnitude(compressor: Compressor, scale: int) -> None:
    body, space = valid_body(compressor)
    number = len(space) * levels(compressor) - 1
    last = scales_start(compressor) + 2 * number
    with pytest.raises(CorruptBody, match=f"scale {number} is"):
        compressor.decode(body[:last] + scale.to_bytes(2, "little") + body[last + 2 :], space)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_dense_values_that_are_not_finite(dtype: str, value: float) -> None:
    compressor = make_compressor("dense", dtype=dtype)
    body, space = valid_body(compressor)
    number = torch.tensor([value]).to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()
    with pytest.raises(CorruptBody, match="finite"):
        compressor.decode(body[: -len(number)] + number, space)


@pytest.mark.parametrize(
    "compressor", [c for c in SCALED if c.describe() != "quantized bits=8"], ids=lambda c: c.describe()
)
def test_padding_that_is_not_zero(compressor: Compressor) -> None:
    body, space = valid_body(compressor)
    if compressor in SPARSE:
        count = int.from_bytes(body[:8], "little") - 1
        assert count * levels(compressor) % 8, "no padding to damage"
        body = sparse_body(encode_positions(np.arange(count)), count, space, levels(compressor))
        at = 8 + 2 * len(space) * levels(compressor) + count * levels(compressor) // 8
    else:
        at = len(body) - 1
    compressor.decode(body, space)
    with pytest.raises(CorruptBody, match="padding"):
        compressor.decode(body[:at] + bytes([body[at] | 0x80]) + body[at + 1 :], space)


@each
def test_the_body_of_another_compressor(compressor: Compressor) -> None:
    space = compressor.space(LAYOUT, KEY)
    for other in COMPRESSORS:
        body, other_space = valid_body(other)
        if other is compressor or (other in SPARSE and compressor in SPARSE) or other_space != space:
            continue
        if {compressor.describe(), other.describe()} == {"dense dtype=bfloat16", "dense dtype=float16"}:
            continue  # as long as each other and every pattern is a number: the frame's header tells them apart
        with pytest.raises(CorruptBody):
            compressor.decode(body, space)


def peak_of_refusal(compressor: Compressor, body: bytes, space: Layout) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBody):
            compressor.decode(body, space)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@each_sparse
def test_a_refusal_allocates_nothing_that_the_body_asks_for(compressor: Compressor) -> None:
    # 135M parameters on paper: a count or gap that was believed would cost gigabytes
    space = Layout([TensorSpec("a", (49152, 576), kind="matrix"), TensorSpec("b", (92416, 1152), kind="matrix")])
    allowed = space.numel // 16
    scales, one = bytes(4 * levels(compressor)), bytes(1)
    hostile = [
        (2**60).to_bytes(8, "little"),
        (2**60).to_bytes(8, "little") + bytes(1000),
        allowed.to_bytes(8, "little") + scales,
        allowed.to_bytes(8, "little") + bytes(1000),
        (1000).to_bytes(8, "little") + scales + bytes(125 * levels(compressor)) + b"\xff" * 20,
        (4).to_bytes(8, "little") + scales + one + b"\x00" + b"\xff" * 30,
        (1).to_bytes(8, "little") + scales + one + b"\x1f" + b"\xff" * 3 + b"\x7f" + bytes(100) + b"\x80",
    ]
    for body in hostile:
        assert peak_of_refusal(compressor, body, space) < 100_000


@each_sparse
def test_a_long_refused_body_costs_a_multiple_of_its_own_length(compressor: Compressor) -> None:
    space = Layout([TensorSpec("a", (49152, 576), kind="matrix")])
    count = space.numel // 16
    codes = bytes(-(-count * levels(compressor) // 8))
    body = count.to_bytes(8, "little") + bytes(2 * levels(compressor)) + codes + bytes(2**21) + b"\1"
    assert peak_of_refusal(compressor, body, space) < 3 * len(body)


@each_sparse
def test_a_gap_padded_with_megabytes_of_zeros(compressor: Compressor) -> None:
    space = compressor.space(LAYOUT, KEY)
    body = sparse_body(b"\0" + bytes(2**21) + b"\1", 1, space, levels(compressor))
    with pytest.raises(CorruptBody, match="too long for 1 positions"):
        compressor.decode(body, space)
    assert peak_of_refusal(compressor, body, space) < 100_000


@pytest.mark.parametrize("name", ["dense", "quantized"])
def test_a_wrong_length_is_refused_before_anything_is_allocated(name: str) -> None:
    space = Layout([TensorSpec("a", (2**20, 128), kind="matrix")])
    assert peak_of_refusal(make_compressor(name), bytes(10_000), space) < 100_000


@each
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_mutated_bodies_are_refused_or_harmless(compressor: Compressor, data: st.DataObject) -> None:
    body, space = valid_body(compressor)
    mutated = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)) | st.integers(0, 40).map(lambda n: min(n, len(mutated))))
        kind = data.draw(st.sampled_from(["flip", "set", "insert", "delete"]))
        if kind == "insert":
            mutated[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        elif at < len(mutated):
            if kind == "flip":
                mutated[at] ^= 1 << data.draw(st.integers(0, 7))
            elif kind == "set":
                mutated[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            else:
                del mutated[at : at + data.draw(st.integers(1, 9))]
    try:
        decoded = compressor.decode(bytes(mutated), space)
    except CorruptBody:
        return
    accumulator = torch.zeros(space.numel)
    decoded.add_to(accumulator)
    decoded.add_to(accumulator, 1e9)  # a weight by examples, or a thousand members
    assert bool(torch.isfinite(accumulator).all())
