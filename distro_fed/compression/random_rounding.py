"""Rounding at random to the lower or the upper neighbour, without bias, from a seed: the same codes on every machine.

The noise is the key stream of AES-128 in counter mode (NIST SP 800-38A section 6.5) with the seed as key: processors
compute it several times faster than any other generator at hand, its bytes are fixed by the standard, and whoever does
not know the seed cannot tell which way a value was rounded.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from distro_fed.compression.blocks import blocks

#: bits of the noise: a value is rounded up with a probability that is a multiple of ``2**-16``
FRACTION_BITS = 16
_HALF = 2.0 ** (FRACTION_BITS - 1)
#: values in a block, whose four temporaries stay in a processor's second cache
_BLOCK = 2**15
#: steps whose places have room in a float32 beside the noise
_MOST_NARROW = 255
_ZEROS = memoryview(bytes(2 * _BLOCK))


class RandomRounding:
    """Rounds one piece of a vector after the other.

    Parameters
    ----------
    seed : int
        0 <= seed < 2**64.
    """

    def __init__(self, seed: int) -> None:
        key = seed.to_bytes(16, "little")
        self._stream: CipherContext = Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor()
        self._noise = np.empty(_BLOCK, "<u2")
        self._places: NDArray[np.floating] = np.empty(_BLOCK, np.float32)
        self._fixed: NDArray[np.signedinteger] = np.empty(_BLOCK, np.int32)

    def coins(self, count: int) -> NDArray[np.uint8]:
        """``count`` times 0 or 1."""
        out = np.empty(count, np.uint8)
        for block in blocks(0, count, _BLOCK):
            np.bitwise_and(self._next_noise(block.stop - block.start), 1, out=out[block], casting="unsafe")
        return out

    def codes(self, values: NDArray[np.float32], scale: float, steps: int, out: NDArray[np.unsignedinteger]) -> None:
        """Code of each value: the lower or the upper of the two nearest of ``steps + 1`` levels.

        Level ``c`` is ``scale * (2 c - steps) / steps``. The mean of a code over all noise differs from its exact
        place between the levels by less than ``2**-15`` of a step.

        Parameters
        ----------
        values : ndarray of float32, shape (count,)
            Each from ``-scale`` to ``scale``.
        scale : float
            A normal float32 above 0.
        steps : int
            1 to 65535.
        out : ndarray of uint8 (up to 255 steps) or uint16, shape (count,)
            Overwritten.
        """
        if steps > _MOST_NARROW and self._places.dtype != np.float64:
            self._places, self._fixed = np.empty(_BLOCK, np.float64), np.empty(_BLOCK, np.int64)
        real = self._places.dtype.type
        half = real(steps * _HALF)
        middle = real(steps * _HALF + 0.5)  # and a half, since what follows cuts off
        for block in blocks(0, values.size, _BLOCK):
            size = block.stop - block.start
            places, fixed = self._places[:size], self._fixed[:size]
            # a quotient of at most 1 times a number is at most that number, so no code is out of range
            np.divide(values[block], real(scale), out=places)
            np.multiply(places, half, out=places)
            np.add(places, middle, out=places)
            np.copyto(fixed, places, casting="unsafe")
            np.add(fixed, self._next_noise(size), out=fixed)
            np.right_shift(fixed, FRACTION_BITS, out=fixed)
            np.copyto(out[block], fixed, casting="unsafe")

    def _next_noise(self, count: int) -> NDArray[np.uint16]:
        """Uniform integers; overwritten by the next call."""
        words: NDArray[np.uint16] = self._noise[:count]
        self._stream.update_into(_ZEROS[: 2 * count], words.view(np.uint8).data)
        return words
