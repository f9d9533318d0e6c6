"""What goes into the masked vector: the codes of an update, and after them a few counts as digits.

Whatever is said about one member alone would be known about it alone; so its number of clipped values, and its weight
if weights are masked, are summed under the masks like everything else. A count of 40 bits is ``ceil(40 / q)`` digits in
base ``2**q``, which obey the same modulus as the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.encoding import digest
from distro_fed.secure_aggregation.quantise import Codes, dequantise_sum, quantise
from distro_fed.secure_aggregation.weighting import Weighting

COUNT_BITS = 40


@dataclass(frozen=True)
class Payload:
    """Codes of one member.

    Attributes
    ----------
    codes : ndarray of uint8 or uint16, shape (payload_count(...),)
    clipped : int
        Values beyond their scale; for this member's own log.
    """

    codes: Codes
    clipped: int


@dataclass(frozen=True)
class PayloadSum:
    """What the sum of all payloads says.

    Attributes
    ----------
    values : ndarray of float32, shape (sum(sizes),)
        Sum of the members' values, each times its share of the largest weight.
    clipped : int
        Values beyond their scale, of all members together.
    weight : int
        Sum of the members' own weights if they are masked, otherwise 0.
    """

    values: NDArray[np.float32]
    clipped: int
    weight: int


def model_and_scales_digest(model: bytes, scales: NDArray[np.float32]) -> bytes:
    """32 bytes over all that an update depends on and that may change with every round.

    Parameters
    ----------
    model : bytes
        Whatever identifies the values that training starts from, such as the replica's chain digest.
    scales : ndarray of float32
        Public scales of this round.
    """
    return digest("model", model, np.ascontiguousarray(scales, "<f4").tobytes())


def payload_count(values: int, q: int, weighting: Weighting) -> int:
    """Length of the masked vector for ``values`` values."""
    return values + _counts(q, weighting) * _digits(q)


def encode_payload(
    values: NDArray[np.float32],
    sizes: Sequence[int],
    scales: NDArray[np.float32],
    *,
    q: int,
    seed: bytes,
    weighting: Weighting = Weighting.UNIFORM,
    share: float = 1.0,
    weight: int = 0,
) -> Payload:
    """Code one member's update.

    Parameters
    ----------
    values, sizes, scales, q, seed
        As for :func:`~distro_fed.secure_aggregation.quantise.quantise`.
    weighting : Weighting
    share : float
        The member's weight over the largest one, 0 < share <= 1 (:mod:`.weighting`).
    weight : int
        The member's own weight, if weights are masked.

    Raises
    ------
    TrainingError, EncodingError
        As ``quantise``; also if a weighting other than uniform meets one bit a value.
    """
    if not 0 < share <= 1:
        raise EncodingError(f"share {share} of the largest weight is not in (0, 1]")
    if weighting is not Weighting.UNIFORM and q == 1:
        raise EncodingError(f"one bit a value with weighting {weighting.word!r}: a sign cannot be weighted; use q >= 2")
    scales = np.asarray(scales, np.float32)
    # share * value against scale is value against scale / share
    codes, clipped = quantise(values, sizes, scales if share == 1 else scales / np.float32(share), q, seed)
    counts = [clipped, weight] if weighting is Weighting.MASKED else [clipped]
    digits = [_to_digits(count, q) for count in counts]
    return Payload(np.concatenate([codes, *(part.astype(codes.dtype) for part in digits)]), clipped)


def decode_payload_sum(
    sums: NDArray[np.unsignedinteger],
    sizes: Sequence[int],
    scales: NDArray[np.float32],
    *,
    q: int,
    members: int,
    weighting: Weighting = Weighting.UNIFORM,
) -> PayloadSum:
    """Inverse of :func:`encode_payload` for the sum of ``members`` payloads.

    Raises
    ------
    EncodingError
        If the length of ``sums`` is not the one that sizes, q and weighting give.
    """
    values = sum(sizes)
    if sums.size != payload_count(values, q, weighting):
        raise EncodingError(f"{sums.size} sums; {payload_count(values, q, weighting)} belong to {values} values")
    tail = sums[values:].reshape(_counts(q, weighting), _digits(q)).astype(object)
    counts = [int(sum(digit << (q * place) for place, digit in enumerate(row))) for row in tail.tolist()]
    return PayloadSum(
        values=dequantise_sum(sums[:values], sizes, scales, q, members),
        clipped=counts[0],
        weight=counts[1] if weighting is Weighting.MASKED else 0,
    )


def _counts(q: int, weighting: Weighting) -> int:
    return 2 if weighting is Weighting.MASKED else 1


def _digits(q: int) -> int:
    return -(-COUNT_BITS // q)


def _to_digits(count: int, q: int) -> NDArray[np.uint16]:
    if not 0 <= count < 2**COUNT_BITS:
        raise EncodingError(f"count {count} is not in 0..2**{COUNT_BITS} - 1")
    return np.array([(count >> (q * place)) & (2**q - 1) for place in range(_digits(q))], np.uint16)
