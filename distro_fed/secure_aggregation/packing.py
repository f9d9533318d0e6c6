"""Values of 1 to 32 bits without a gap between them.

A vector is cut into blocks of 131,072 values, the last padded with zeros to a multiple of 8. A block of ``8 g`` values
is eight planes of ``g`` values; value ``j`` of plane ``i`` occupies the bits ``i width`` to ``(i + 1) width - 1`` of
column ``j``, and byte ``k`` of all columns is stored before byte ``k + 1`` of any. So packing is a few shifts of long
contiguous arrays, several times faster than bits in the order of the values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.masks import Words, word_type

_PLANES = 8


def packed_size(count: int, width: int) -> int:
    """Bytes of ``count`` values of ``width`` bits."""
    return -(-count // _PLANES) * width


def packed_slice(block: slice, width: int) -> slice:
    """Bytes of a block of :func:`~distro_fed.secure_aggregation.masks.blocks` within the packed vector."""
    return slice(packed_size(block.start, width), packed_size(block.stop, width))


def pack_block(values: Words, width: int, out: NDArray[np.uint8]) -> None:
    """Pack one block.

    Parameters
    ----------
    values : ndarray
        At most :data:`BLOCK` values below ``2**width``, of ``word_type(width)``.
    out : ndarray of uint8
        ``packed_size(values.size, width)`` bytes; overwritten.
    """
    columns = -(-values.size // _PLANES)
    if values.size % _PLANES:
        padded = np.zeros(columns * _PLANES, values.dtype)
        padded[: values.size] = values
        values = padded
    planes = values.reshape(_PLANES, columns)
    rows = out.reshape(width, columns)
    for byte in range(width):
        first_bit = 8 * byte
        first, *others = range(first_bit // width, -(-(first_bit + 8) // width))
        rows[byte] = _shifted(planes[first], first * width - first_bit)  # its lowest eight bits
        for plane in others:
            rows[byte] |= _shifted(planes[plane], plane * width - first_bit).astype(np.uint8)


def unpack_block(packed: NDArray[np.uint8], count: int, width: int) -> Words:
    """Inverse of :func:`pack_block` for ``count`` values.

    Raises
    ------
    EncodingError
        If a padding value is not zero.
    """
    dtype = word_type(width)
    columns = -(-count // _PLANES)
    rows = packed.reshape(width, columns)
    values = np.zeros((_PLANES, columns), dtype)
    lowest_bits = dtype.type(2**width - 1)
    for plane in range(_PLANES):
        first_bit = plane * width
        for byte in range(first_bit // 8, -(-(first_bit + width) // 8)):
            values[plane] |= _shifted(rows[byte].astype(dtype), 8 * byte - first_bit)
        values[plane] &= lowest_bits
    flat: Words = values.reshape(-1)
    if flat[count:].any():
        raise EncodingError(f"padding after {count} values must be zero")
    return flat[:count]


def _shifted(values: Words, left: int) -> Words:
    amount = values.dtype.type(abs(left))
    shifted: Words = np.left_shift(values, amount) if left >= 0 else np.right_shift(values, amount)
    return shifted
