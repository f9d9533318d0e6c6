from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression.bits import check_padding, pack_bits, packed_size, unpack_bits, unpack_slice
from distro_fed.errors import CorruptBody


@settings(deadline=None)
@given(st.integers(0, 32), st.integers(0, 200), st.integers(0, 2**32))
def test_round_trip_and_size(width: int, count: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**width, count, dtype=np.uint64)
    values = values.astype(np.uint8 if width <= 8 else np.uint32)
    packed = pack_bits(values, width)
    assert len(packed) == packed_size(count, width) == -(-count * width // 8)
    back = unpack_bits(packed, count, width)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 100), st.data())
def test_a_slice_is_the_slice_of_all(width: int, count: int, data: st.DataObject) -> None:
    values = np.random.default_rng(count).integers(0, 2**width, count, dtype=np.uint64).astype(np.uint8)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    raw = np.frombuffer(pack_bits(values, width), np.uint8)
    np.testing.assert_array_equal(unpack_slice(raw, start, stop, width), values[start:stop])


def test_layout_of_bits() -> None:
    # width 3: 1, 2, 7 -> ...111 010 001, lowest bit first
    assert pack_bits(np.array([1, 2, 7], np.uint8), 3) == bytes([0b11010001, 0b1])
    # width 12: a plane of low bytes, then the upper four bits
    assert pack_bits(np.array([0xABC, 0x123], np.uint32), 12) == bytes([0xBC, 0x23, 0x1A])
    assert pack_bits(np.array([True, False, True]), 1) == b"\x05"


def test_a_value_too_large_is_an_error() -> None:
    with pytest.raises(ValueError, match="8 does not fit 3 bits"):
        pack_bits(np.array([8], np.uint8), 3)
    with pytest.raises(ValueError, match="width 33"):
        pack_bits(np.array([8], np.uint8), 33)


@pytest.mark.parametrize("width", [1, 3, 8, 11])
@pytest.mark.parametrize("change", [-1, 1])
def test_length_is_exact(width: int, change: int) -> None:
    packed = pack_bits(np.ones(20, np.uint32 if width > 8 else np.uint8), width)
    damaged = packed + b"\0" if change > 0 else packed[:-1]
    with pytest.raises(CorruptBody, match="20 values"):
        unpack_bits(damaged, 20, width)


@pytest.mark.parametrize("width", [1, 3, 11])
def test_padding_must_be_zero(width: int) -> None:
    packed = bytearray(pack_bits(np.zeros(5, np.uint32 if width > 8 else np.uint8), width))
    packed[-1] |= 0x80
    with pytest.raises(CorruptBody, match="padding"):
        unpack_bits(bytes(packed), 5, width)
    check_padding(np.frombuffer(bytes(packed), np.uint8), 8, 8)
