"""What goes into the masked vector: the codes of an update, and behind them numbers of which only the sum is told.

A compressed update is integer codes and one scale a tensor. All members code with the same scales, which the server
announces with the round, so the sum of codes says exactly what the mean update is. What is summed beside it are the
scales that each member measured, of whose means the server makes the scales of the next round (sent in clear they would
be known about one member alone), and the metrics: a number is a count of 2**-40, and a count is ``ceil(56 / q)`` digits
in base ``2**q``, which obey the same modulus as the codes.

Where weights are masked, a member multiplies its codes and its scales by its own weight, of four bits, and the weight
is the last number. A scale has room for the largest weight there, at every member: whether an update can be sent must
not depend on a weight that nobody is to know.

Where no scale could be announced, for a tensor or for all in a round, each member codes with the one that it measured,
and the mean scale times the mean code stands for the mean update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import EncodingError, TrainingError
from distro_fed.secure_aggregation.weighting import LARGEST_MASKED, MASKED_BITS

#: bits of a number behind the codes; with 255 members its sum still fits 64 bits
NUMBER_BITS = 56
#: what a count of one stands for
UNIT = 2.0**-40
#: a number is smaller than this
LARGEST = 2.0**NUMBER_BITS * UNIT
#: metrics of an update, two numbers each, in this order
METRICS = ("train-loss", "held-out-loss", "clipped")


@dataclass(frozen=True)
class MeanUpdate:
    """What the sum of all vectors says.

    Attributes
    ----------
    coefficients : ndarray of float32, shape (sum(sizes),)
        Mean over the members.
    scales : list of float
        Mean of the scales that were measured, one for each tensor.
    numbers : list of float
        Mean of each further number.
    """

    coefficients: NDArray[np.float32]
    scales: list[float]
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
    codes : ndarray of unsigned integers, shape (values,)
        Below ``2**q``; weighted if weights are masked.
    numbers : sequence of float
        First one scale for each tensor, then metrics, then the weight if it is masked; each 0 or more, below 65536.
        Rounded to 2**-40.

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
    return np.concatenate([codes, digits.reshape(-1).astype(np.min_scalar_type(2**q - 1))])


def times_weight(
    codes: NDArray[np.unsignedinteger], scales: NDArray[np.float32], weight: int
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Codes and scales of a member whose weight is masked.

    Raises
    ------
    TrainingError
        If a scale leaves no room for the largest weight. The weight at hand is not looked at: the server sees that a
        member fails, and can make scales grow by announcing huge ones.
    """
    wrong = ~(scales < LARGEST / LARGEST_MASKED)
    if wrong.any():
        raise TrainingError(
            f"a scale of the update is {scales[wrong][0]}; those below {LARGEST / LARGEST_MASKED:g} can be summed with "
            "masked weights: training diverged; lower the learning rate"
        )
    return np.multiply(codes, weight, dtype=np.uint32), scales.astype(np.float64) * weight


def mean_of_sum(
    sums: NDArray[np.unsignedinteger],
    sizes: Sequence[int],
    *,
    q: int,
    weight: int,
    metrics: int,
    common: Sequence[float] | None = None,
    masked: bool = False,
) -> MeanUpdate:
    """Mean update of some members out of the weighted sum of their vectors.

    Parameters
    ----------
    sums : ndarray of unsigned integers
        ``vector_count(sum(sizes), len(sizes) + metrics + masked, q)`` sums.
    sizes : sequence of int
        Values of each tensor.
    q, weight : int
        Bits of a value, and the weights of the members in the sum together; their number if weights are masked.
    metrics : int
        How many numbers come after the scales.
    common : sequence of float, optional
        Scales that all members coded with; for tensors where it is 0, and by default, each took its own.
    masked : bool
        Whether weights are masked. Then scales and coefficients are weighted means, and those of metrics are not.

    Raises
    ------
    EncodingError
        If the length is another one, or a masked weight was none.
    """
    values = sum(sizes)
    count = len(sizes) + metrics + masked
    expected = vector_count(values, count, q)
    if sums.size != expected:
        raise EncodingError(f"{sums.size} sums; {expected} belong to {values} values in {len(sizes)} tensors")
    digits = sums[values:].reshape(count, -1)
    # Python's integers: a sum of numbers has more bits than a float64
    totals = [sum(digit << (q * place) for place, digit in enumerate(row)) for row in digits.tolist()]
    amounts = [math.ldexp(total, -40) for total in totals]
    members = weight
    if masked:
        weight = round(amounts.pop())
        if not members <= weight <= members * LARGEST_MASKED:
            raise EncodingError(f"{members} members weigh {weight} together; each may weigh 1 to {LARGEST_MASKED}")
    scales = [amount / weight for amount in amounts[: len(sizes)]]
    levels = 2 ** (q - MASKED_BITS if masked else q) - 1
    coefficients = np.empty(values, np.float32)
    start = 0
    for size, announced, measured in zip(sizes, common or [0.0] * len(sizes), scales, strict=True):
        scale = announced or measured
        block = slice(start, start + size)
        centred = 2 * sums[block].astype(np.int64) - weight * levels
        np.multiply(centred, scale / (levels * weight), out=coefficients[block], casting="unsafe")
        start += size
    return MeanUpdate(coefficients, scales, [amount / members for amount in amounts[len(sizes) :]])
