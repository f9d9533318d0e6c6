"""What goes into the masked vector: the codes of an update, and behind them numbers of which only the sum is told.

A compressed update is integer codes and one scale a tensor. Scales differ from member to member, so the sum of codes
alone is not enough; but a scale sent in clear would be known about one member alone. It is therefore summed under the
masks too, as are the metrics: a number is a count of 2**-40, and a count is ``ceil(56 / q)`` digits in base ``2**q``,
which obey the same modulus as the codes. The mean update is the mean scale times the mean code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import EncodingError, TrainingError

#: bits of a number behind the codes; with 255 members its sum still fits 64 bits
NUMBER_BITS = 56
#: what a count of one stands for
UNIT = 2.0**-40
#: a number is smaller than this
LARGEST = 2.0**NUMBER_BITS * UNIT


@dataclass(frozen=True)
class MeanUpdate:
    """What the sum of all vectors says.

    Attributes
    ----------
    coefficients : ndarray of float32, shape (sum(sizes),)
        Mean over the members.
    numbers : list of float
        Mean of each further number.
    """

    coefficients: NDArray[np.float32]
    numbers: list[float]


def vector_count(values: int, numbers: int, q: int) -> int:
    """Length of the vector for so many codes of ``q`` bits and so many numbers (scales and metrics)."""
    return values + numbers * -(-NUMBER_BITS // q)


def summable(values: Iterable[float | None]) -> list[float]:
    """Two numbers for each value: the value and 1, or two zeros if there is none.

    None, NaN, infinities, negative values and those from 65536 on count as none: a member whose metric is one of them
    is missing in the mean of that metric, and its update is not.
    """
    pairs = [(value, 1.0) if value is not None and 0 <= value < LARGEST else (0.0, 0.0) for value in values]
    return [number for pair in pairs for number in pair]


def mean_of_present(numbers: Sequence[float]) -> list[float | None]:
    """Means over the members that have a value, out of the means of what :func:`summable` gave."""
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [value / present if present else None for value, present in pairs]


def to_vector(codes: NDArray[np.unsignedinteger], numbers: Sequence[float], q: int) -> NDArray[np.unsignedinteger]:
    """Codes of one member, and behind them its numbers.

    Parameters
    ----------
    codes : ndarray of uint8 or uint16, shape (values,)
        Below ``2**q``.
    numbers : sequence of float
        First one scale for each tensor, then metrics; each 0 or more, below 65536. Rounded to 2**-40.

    Raises
    ------
    TrainingError
        If a number cannot be sent.
    """
    array = np.asarray(numbers, np.float64)
    wrong = ~((array >= 0) & (array < LARGEST))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise TrainingError(
            f"number {first} of the update is {array[first]}; scales and losses between 0 and {LARGEST:g} can be "
            "summed: training diverged; lower the learning rate"
        )
    counts = np.rint(array / UNIT).astype(np.uint64)
    shifts = np.arange(-(-NUMBER_BITS // q), dtype=np.uint64) * np.uint64(q)
    digits = (counts[:, None] >> shifts) & np.uint64(2**q - 1)
    return np.concatenate([codes, digits.reshape(-1).astype(codes.dtype)])


def mean_of_sum(
    sums: NDArray[np.unsignedinteger], sizes: Sequence[int], *, q: int, weight: int, metrics: int
) -> MeanUpdate:
    """Mean update of some members out of the weighted sum of their vectors.

    Parameters
    ----------
    sums : ndarray of unsigned integers
        ``vector_count(sum(sizes), len(sizes) + metrics, q)`` sums.
    sizes : sequence of int
        Values of each tensor.
    q, weight : int
        Bits of a code, and the weights of the members in the sum together.
    metrics : int
        How many numbers come after the scales.

    Raises
    ------
    EncodingError
        If the length is another one.
    """
    values = sum(sizes)
    expected = vector_count(values, len(sizes) + metrics, q)
    if sums.size != expected:
        raise EncodingError(f"{sums.size} sums; {expected} belong to {values} values in {len(sizes)} tensors")
    digits = sums[values:].reshape(len(sizes) + metrics, -1)
    # Python's integers: a sum of numbers has more bits than a float64
    totals = [sum(digit << (q * place) for place, digit in enumerate(row)) for row in digits.tolist()]
    numbers = [math.ldexp(total, -40) / weight for total in totals]
    levels = 2**q - 1
    coefficients = np.empty(values, np.float32)
    start = 0
    for size, scale in zip(sizes, numbers, strict=False):
        block = slice(start, start + size)
        centred = 2 * sums[block].astype(np.int64) - weight * levels
        np.multiply(centred, scale / (levels * weight), out=coefficients[block], casting="unsafe")
        start += size
    return MeanUpdate(coefficients, numbers[len(sizes) :])
