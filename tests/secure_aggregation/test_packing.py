from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.masks import BLOCK, blocks, word_type
from distro_fed.secure_aggregation.packing import pack_block, packed_size, packed_slice, unpack_block


def slow_pack(values: list[int], width: int) -> bytes:
    """Bit by bit, as the module's docstring has it."""
    columns = -(-len(values) // 8)
    padded = values + [0] * (8 * columns - len(values))
    out = bytearray(columns * width)
    for plane in range(8):
        for column in range(columns):
            for bit in range(width):
                if padded[plane * columns + column] >> bit & 1:
                    place = plane * width + bit
                    out[place // 8 * columns + column] |= 1 << place % 8
    return bytes(out)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 32), st.integers(1, 60), st.integers(0, 2**32))
def test_round_trip_and_layout(width: int, count: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**width, count, dtype=np.uint64).astype(word_type(width))
    packed = np.full(packed_size(count, width), 0xFF, np.uint8)
    pack_block(values, width, packed)
    assert packed.tobytes() == slow_pack(values.tolist(), width)
    back = unpack_block(packed, count, width)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("width", [4, 10, 16, 17, 24, 32])
@pytest.mark.parametrize("extreme", [0, -1])
def test_extremes(width: int, extreme: int) -> None:
    values = np.full(17, extreme % 2**width, np.uint64).astype(word_type(width))
    packed = np.empty(packed_size(17, width), np.uint8)
    pack_block(values, width, packed)
    np.testing.assert_array_equal(unpack_block(packed, 17, width), values)


@pytest.mark.parametrize("count", [1, 7, 9, 4097])
def test_padding_must_be_zero(count: int) -> None:
    width = 10
    values = np.zeros(-(-count // 8) * 8, np.uint16)
    values[count] = 512
    packed = np.empty(packed_size(count, width), np.uint8)
    pack_block(values, width, packed)
    with pytest.raises(EncodingError, match="padding"):
        unpack_block(packed, count, width)


@pytest.mark.parametrize("count", [0, 1, 8, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_blocks_tile_values_and_bytes(count: int) -> None:
    ends = [(block.start, block.stop) for block in blocks(count)]
    assert [start for start, _ in ends] == list(range(0, count, BLOCK))
    assert ends == [] or ends[-1][1] == count
    places = [packed_slice(block, 13) for block in blocks(count)]
    assert [place.start for place in places] == [0, *(place.stop for place in places)][: len(places)]
    assert packed_size(count, 13) == (places[-1].stop if places else 0) == -(-count // 8) * 13
