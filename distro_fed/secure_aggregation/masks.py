"""Masks: AES-256 in counter mode (NIST SP 800-38A section 6.5) under keys that serve one vector.

Uniform 16- or 32-bit words, cut to the lowest b bits, are uniform in ``Z_{2^b}``; adding them wraps around by itself. A
mask is never held as a whole: :class:`Masks` adds the next piece of every mask to one block after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

#: values in a block, a multiple of 8, as packing needs: block and key stream stay in a processor's cache
BLOCK = 2**17

Words = NDArray[np.unsignedinteger]


def word_type(width: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """Smallest word for sums of ``width`` bits, little-endian."""
    return np.dtype("<u2") if width <= 16 else np.dtype("<u4")


def blocks(count: int) -> Iterator[slice]:
    """Slices of :data:`BLOCK` values that cover ``[0, count)``; the last may be shorter."""
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))


class KeyStream:
    """The bytes that AES-256-CTR gives for one key, from counter 0 on."""

    def __init__(self, key: bytes) -> None:
        self._encryptor: CipherContext = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def fill(self, buffer: NDArray[np.uint8]) -> None:
        """Overwrite ``buffer`` with the next bytes."""
        if buffer.size:
            self._encryptor.update_into(_ZEROS[: buffer.size], buffer.data)


class Masks:
    """All masks of one vector, walked block by block from its start.

    Parameters
    ----------
    plus, minus : iterable of bytes
        32-byte keys of the masks to add and to subtract.
    width : int
        Bits b of the modulus.
    """

    def __init__(self, plus: Iterable[bytes], minus: Iterable[bytes], width: int) -> None:
        self._plus = [KeyStream(key) for key in plus]
        self._minus = [KeyStream(key) for key in minus]
        dtype = word_type(width)
        self._lowest_bits = dtype.type(2**width - 1)
        self._buffer = np.empty(BLOCK * dtype.itemsize, np.uint8)
        self._words: Words = self._buffer.view(dtype)

    def apply(self, block: Words) -> None:
        """Add the next piece of every mask to ``block``, in place, modulo ``2**b``.

        Parameters
        ----------
        block : ndarray
            Of :func:`word_type`, at most :data:`BLOCK` values. All blocks but the last are full.
        """
        words = self._words[: block.size]
        raw = self._buffer[: block.nbytes]
        for stream in self._plus:
            stream.fill(raw)
            np.add(block, words, out=block)
        for stream in self._minus:
            stream.fill(raw)
            np.subtract(block, words, out=block)
        np.bitwise_and(block, self._lowest_bits, out=block)


_ZEROS = memoryview(bytes(4 * BLOCK))
