"""Pack unsigned integers of any width from 1 to 32 bits without a gap, and back.

Layout of ``count`` values of ``width = 8 q + r`` bits (``r < 8``):

1. ``q`` byte planes, lowest first: byte ``p`` of every value, ``count`` bytes each;
2. the top ``r`` bits of every value as one little-endian bit string: value ``i`` occupies bits ``i r`` to
   ``i r + r - 1``, where bit ``j`` is bit ``j mod 8`` of byte ``j // 8``. Padding bits are zero.

Eight values of ``r`` bits fill ``r`` bytes and fit one 64-bit word, so three shifts of whole words do
the work of a loop over values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import CorruptBody

_WORD = np.dtype("<u8")


def packed_size(count: int, width: int) -> int:
    """Bytes that ``count`` values of ``width`` bits take."""
    return count * (width // 8) + (count * (width % 8) + 7) // 8


def pack_bits(values: NDArray[np.unsignedinteger] | NDArray[np.bool_], width: int) -> bytes:
    """Pack unsigned integers below ``2**width``.

    Parameters
    ----------
    values : ndarray of bool, uint8 or uint32
        One dimension.
    width : int
        0 to 32; values of width 0 are all zero and take no bytes.

    Raises
    ------
    ValueError
        If a value does not fit the width.
    """
    _check_width(width)
    if values.size and int(values.max()) >> width:
        raise ValueError(f"value {int(values.max())} does not fit {width} bits")
    planes, rest = divmod(width, 8)
    columns = np.ascontiguousarray(values, dtype="<u4" if width > 8 else np.uint8).view(np.uint8)
    columns = columns.reshape(values.size, 4 if width > 8 else 1)
    parts = [columns[:, plane].tobytes() for plane in range(planes)]
    if rest:
        parts.append(_pack_short(columns[:, planes], rest))
    return b"".join(parts)


def unpack_bits(data: bytes | memoryview | NDArray[np.uint8], count: int, width: int) -> NDArray[np.unsignedinteger]:
    """Inverse of :func:`pack_bits`.

    Returns
    -------
    ndarray of uint8 (width up to 8) or uint32, shape (count,)

    Raises
    ------
    CorruptBody
        If the length is not :func:`packed_size`, or a padding bit is set.
    """
    _check_width(width)
    raw = np.frombuffer(data, np.uint8)
    if raw.size != packed_size(count, width):
        raise CorruptBody(
            f"{count} values of {width} bits take {packed_size(count, width)} bytes, but {raw.size} are here"
        )
    check_padding(raw, count, width)
    planes, rest = divmod(width, 8)
    if width <= 8:
        return raw.copy() if planes else unpack_slice(raw, 0, count, width)
    columns = np.zeros((count, 4), np.uint8)
    for plane in range(planes):
        columns[:, plane] = raw[plane * count : (plane + 1) * count]
    if rest:
        columns[:, planes] = unpack_slice(raw[planes * count :], 0, count, rest)
    return columns.view("<u4").reshape(count).astype(np.uint32, copy=False)


def unpack_slice(raw: NDArray[np.uint8], start: int, stop: int, width: int) -> NDArray[np.uint8]:
    """Values ``start`` to ``stop`` of a packed stream of at most 8 bits a value; reads only their bytes."""
    if width == 8 or width == 0 or stop <= start:
        return raw[start:stop] if width else np.zeros(max(stop - start, 0), np.uint8)
    first, last = start // 8, -(-stop // 8)
    block = raw[first * width : last * width]
    if width == 1:
        return np.unpackbits(block, bitorder="little")[start - first * 8 : stop - first * 8]
    words = np.zeros((last - first, 8), np.uint8)
    whole = block.size // width
    words[:whole, :width] = block[: whole * width].reshape(whole, width)
    if whole < last - first:
        words[whole, : block.size - whole * width] = block[whole * width :]
    values = _spread(words.view(_WORD).reshape(-1), width).view(np.uint8)
    return values[start - first * 8 : stop - first * 8]


def check_padding(raw: NDArray[np.uint8], count: int, width: int) -> None:
    """Raise :class:`CorruptBody` if a bit after the last of ``count`` values is set."""
    used = (count * (width % 8)) % 8
    if used and int(raw[-1]) >> used:
        raise CorruptBody(f"padding bits must be zero, but the last byte is 0x{int(raw[-1]):02x} ({used} bits used)")


def _check_width(width: int) -> None:
    if not 0 <= width <= 32:
        raise ValueError(f"width {width} is not in 0..32")


def _pack_short(values: NDArray[np.uint8], width: int) -> bytes:
    """Bit string of values of fewer than 8 bits."""
    if width == 1:  # the same bytes, ten times faster
        return np.packbits(values, bitorder="little").tobytes()
    words = np.zeros(-(-values.size // 8) * 8, np.uint8)
    words[: values.size] = values
    gathered = _gather(words.view(_WORD), width).view(np.uint8).reshape(-1, 8)[:, :width]
    return gathered.tobytes()[: packed_size(values.size, width)]


def _gather(words: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Move eight values from the bytes of a word into its lowest ``8 * width`` bits."""
    for lane in (8, 16, 32):
        used, step = width * lane // 8, np.uint64(lane - width * lane // 8)
        words = (words & _every_other(lane, lane)) | ((words & (_every_other(lane, used) << np.uint64(lane))) >> step)
    return words


def _spread(words: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Inverse of :func:`_gather`."""
    for lane in (32, 16, 8):
        used, step = width * lane // 8, np.uint64(lane - width * lane // 8)
        low = _every_other(lane, used)
        words = (words & low) | ((words & (low << np.uint64(used))) << step)
    return words


def _every_other(lane: int, used: int) -> np.uint64:
    """Mask of the lowest ``used`` bits in every second lane of ``lane`` bits."""
    return np.uint64(sum((2**used - 1) << place for place in range(0, 64, 2 * lane)))
