"""From codes to the packed masked vector, block by block: memory stays at the input, the output and one block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.masks import BLOCK, Masks, Words, blocks, word_type
from distro_fed.secure_aggregation.packing import pack_block, packed_size, packed_slice, unpack_block

#: integers of one member, before they are masked
Codes = NDArray[np.unsignedinteger]


def check_codes(codes: Codes, count: int, bits: int) -> None:
    """Raise :class:`EncodingError` unless ``codes`` are ``count`` unsigned integers below ``2**bits``."""
    if codes.dtype.kind != "u" or codes.shape != (count,):
        raise EncodingError(f"codes are {codes.dtype} of shape {codes.shape}; {count} unsigned integers were proposed")
    if int(codes.max()) >> bits:
        raise EncodingError(f"code {int(codes.max())} does not fit the {bits} bits that were proposed")


def masked_blocks(codes: Codes, width: int, masks: Masks, weight: int = 1) -> Iterator[NDArray[np.uint8]]:
    """Add masks to weighted codes modulo ``2**width`` and pack the result, block by block.

    Parameters
    ----------
    codes : ndarray of unsigned integers, shape (count,)
        Left as they are.
    width : int
        Bits of the modulus.
    masks : Masks
        Not walked yet.
    weight : int
        Of every code; the largest code times it is below ``2**width``.

    Yields
    ------
    ndarray of uint8
        The next bytes of ``packed_size(count, width)``; overwritten when the next ones are asked for.
    """
    longest = min(BLOCK, codes.size)
    buffer, packed = np.empty(longest, word_type(width)), np.empty(packed_size(longest, width), np.uint8)
    for block in blocks(codes.size):
        size = block.stop - block.start
        words: Words = buffer[:size]
        np.copyto(words, codes[block], casting="same_kind")
        if weight != 1:
            np.multiply(words, words.dtype.type(weight), out=words)
        masks.apply(words)
        out = packed[: packed_size(size, width)]
        pack_block(words, width, out)
        yield out


class VectorSum:
    """Sum of masked vectors modulo ``2**width``; holds one vector however many are added.

    Parameters
    ----------
    count : int
        Values in a vector.
    width : int
        Bits of the modulus.
    """

    def __init__(self, count: int, width: int) -> None:
        self._width = width
        self._sums: Words = np.zeros(count, word_type(width))

    def add(self, packed: bytes | memoryview) -> None:
        """Add one packed vector; nothing is added if it is not sound.

        Raises
        ------
        EncodingError
            If its length or its padding is wrong.
        """
        count, width = self._sums.size, self._width
        raw = np.frombuffer(packed, np.uint8)
        if raw.size != packed_size(count, width):
            raise EncodingError(
                f"{count} values of {width} bits take {packed_size(count, width)} bytes, but {raw.size} came"
            )
        # the last block first: the only one that has padding, which may be refused
        for block in reversed(list(blocks(count))):
            values = unpack_block(raw[packed_slice(block, width)], block.stop - block.start, width)
            self._sums[block] += values

    def remove(self, masks: Masks) -> NDArray[np.unsignedinteger]:
        """Apply what cancels the masks, and hand the sums over; the object must not be used after that."""
        for block in blocks(self._sums.size):
            masks.apply(self._sums[block])
        return self._sums
