"""Real numbers to integers that can be summed exactly, and the sum back.

With ``L = 2**q - 1`` and a public scale ``s`` for each tensor, code ``c`` stands for ``s (2 c - L) / L``: levels from
``-s`` to ``s``, symmetric, and non-negative as integers. With two bits and more a value is rounded to one of its two
neighbouring levels at random, without bias (QSGD, Alistarh et al. 2017); a value beyond the scale becomes the outermost
level and is counted. One bit is the sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import EncodingError, TrainingError
from distro_fed.secure_aggregation.masks import BLOCK, KeyStream

MAX_BITS = 16
#: a scale is 0 or between these; some processors divide by smaller numbers as by 0
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**110

Codes = NDArray[np.unsignedinteger]


def quantise(
    values: NDArray[np.float32], sizes: Sequence[int], scales: NDArray[np.float32], q: int, seed: bytes
) -> tuple[Codes, int]:
    """Codes of a vector.

    Parameters
    ----------
    values : ndarray of float32, shape (sum(sizes),)
        All tensors one after the other; left as it is.
    sizes : sequence of int
        Values of each tensor.
    scales : ndarray of float32, shape (len(sizes),)
        Largest magnitude that is not clipped; the same at all members. 0: the tensor counts as zero.
    q : int
        Bits of a code, 1..16.
    seed : bytes
        32 bytes that nobody else knows and that serve this vector only: whoever knows how values were rounded
        learns more from a sum.

    Returns
    -------
    codes : ndarray of uint8 (q <= 8) or uint16, shape (sum(sizes),)
        0..2**q - 1.
    clipped : int
        Values whose magnitude is above the scale; with one bit always 0.

    Raises
    ------
    TrainingError
        If a value is NaN or infinite.
    EncodingError
        If shapes, scales or q do not fit together.
    """
    scales = _checked_scales(values.size, sizes, scales, q)
    codes: Codes = np.empty(values.size, np.uint8 if q <= 8 else np.uint16)
    rounding = _Rounding(seed, q)
    clipped = 0
    for block, scale in _tensor_blocks(sizes, scales):
        clipped += rounding.quantise(values[block], scale, codes[block])
    return codes, clipped


def dequantise_sum(
    sums: NDArray[np.unsignedinteger], sizes: Sequence[int], scales: NDArray[np.float32], q: int, members: int
) -> NDArray[np.float32]:
    """The sum of the members' values, from the sum of their codes.

    Parameters
    ----------
    sums : ndarray of unsigned integers, shape (sum(sizes),)
    sizes, scales, q
        As for :func:`quantise`.
    members : int
        How many codes each sum has.

    Returns
    -------
    ndarray of float32, shape (sum(sizes),)
        Each within one rounding of ``s (2 sum - members L) / L``.
    """
    scales = _checked_scales(sums.size, sizes, scales, q)
    levels = 2**q - 1
    values = np.empty(sums.size, np.float32)
    for block, scale in _tensor_blocks(sizes, scales):
        centred = 2 * sums[block].astype(np.int64) - members * levels
        np.multiply(centred, scale / levels, out=values[block], casting="unsafe")
    return values


class _Rounding:
    """Buffers and key stream for the stochastic rounding of one vector."""

    def __init__(self, seed: bytes, bits: int) -> None:
        self._stream = KeyStream(seed)
        self._levels = 2**bits - 1
        # a code of more than 8 bits and its fraction do not fit the 24 bits of float32
        noise, real = (np.uint16, np.float32) if bits <= 8 else (np.uint32, np.float64)
        self._raw = np.empty(BLOCK * np.dtype(noise).itemsize, np.uint8)
        self._words = self._raw.view(np.dtype(noise).newbyteorder("<"))
        self._place: NDArray[np.floating] = np.empty(BLOCK, real)
        self._noise: NDArray[np.floating] = np.empty(BLOCK, real)
        self._step = 2.0 ** -(8 * np.dtype(noise).itemsize)

    def quantise(self, values: NDArray[np.float32], scale: float, codes: Codes) -> int:
        size = values.size
        place, noise, words = self._place[:size], self._noise[:size], self._words[:size]
        self._stream.fill(self._raw[: words.nbytes])
        largest = np.abs(values, out=noise).max()
        if not largest < np.inf:
            raise TrainingError(f"the update holds {largest}: training diverged; lower the learning rate")
        clipped = int(np.count_nonzero(noise > scale)) if largest > scale and self._levels > 1 else 0
        if self._levels == 1:
            # the sign of zero is drawn, so that a value that nobody changed does not drift
            codes[:] = np.where(values == 0, words & 1, values > 0)
            return clipped
        middle = self._levels / 2
        if scale:
            with np.errstate(over="ignore"):  # far beyond the scale is clipped like anything beyond it
                np.divide(values, scale, out=place, dtype=place.dtype)
                place *= middle
        else:
            place[:] = 0
        np.multiply(words, self._step, out=noise, dtype=noise.dtype)
        place += noise
        place += middle + self._step / 2
        # only now: a place below levels + 1 can have been rounded up to it
        np.clip(place, 0, self._levels, out=place)
        np.copyto(codes, place, casting="unsafe")
        return clipped


def _tensor_blocks(sizes: Sequence[int], scales: NDArray[np.float32]) -> Iterator[tuple[slice, float]]:
    start = 0
    for size, scale in zip(sizes, scales.tolist(), strict=True):
        for first in range(start, start + size, BLOCK):
            yield slice(first, min(first + BLOCK, start + size)), scale
        start += size


def _checked_scales(count: int, sizes: Sequence[int], scales: NDArray[np.float32], q: int) -> NDArray[np.float32]:
    scales = np.asarray(scales, np.float32)
    if not 1 <= q <= MAX_BITS:
        raise EncodingError(f"q is {q}; a code has 1 to {MAX_BITS} bits")
    if scales.shape != (len(sizes),) or sum(sizes) != count or any(size < 0 for size in sizes):
        raise EncodingError(
            f"{count} values for {len(sizes)} tensors with {sum(sizes)} values and scales of shape {scales.shape}"
        )
    sound = (scales == 0) | ((scales >= SMALLEST_SCALE) & (scales <= LARGEST_SCALE))
    if not sound.all():
        first = int(np.argmin(sound))
        raise EncodingError(f"scale {first} is {scales[first]}; a scale is 0 or between 2**-126 and 2**110")
    return scales
