"""Shamir's t-of-n secret sharing (CACM 22(11), 1979) over the integers modulo the largest 256-bit prime.

A secret is 32 bytes, read as a little-endian number below the prime; so is a share. One set of Lagrange weights serves
all secrets that the same members hold shares of.
"""

from __future__ import annotations

from collections.abc import Sequence

from distro_fed.errors import EncodingError

#: 2**256 - 189, the largest prime below 2**256
PRIME = 2**256 - 189
SHARE_BYTES = 32


def split(secret: bytes, points: Sequence[int], coefficients: Sequence[int]) -> list[bytes]:
    """Shares of a secret: values of the polynomial with the secret as constant term.

    Parameters
    ----------
    secret : bytes
        32 bytes; a number below :data:`PRIME`.
    points : sequence of int
        Where the polynomial is taken, one for each share: different, 1 <= point < :data:`PRIME`.
    coefficients : sequence of int
        Of degree 1 upwards, uniform and secret; ``threshold - 1`` of them.

    Raises
    ------
    EncodingError
        If the secret is out of range or a point is 0, negative or there twice.
    """
    _check_points(points)
    constant = read_share(secret)
    shares = []
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * point % PRIME
        shares.append(((value + constant) % PRIME).to_bytes(SHARE_BYTES, "little"))
    return shares


def lagrange_weights(points: Sequence[int]) -> list[int]:
    """Weights that take the values at ``points`` to the value at 0.

    Raises
    ------
    EncodingError
        If a point is 0, negative or there twice.
    """
    _check_points(points)
    weights = []
    for own in points:
        numerator = denominator = 1
        for other in points:
            if other != own:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - own) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights


def combine(shares: Sequence[bytes], weights: Sequence[int]) -> bytes:
    """The secret behind shares; ``weights`` are the :func:`lagrange_weights` of their points, in the same order.

    With a wrong share, or fewer than the threshold, the result is some other number: compare it with a commitment.

    Raises
    ------
    EncodingError
        If a share is not a number below the prime.
    """
    total = sum(weight * read_share(share) for weight, share in zip(weights, shares, strict=True))
    return (total % PRIME).to_bytes(SHARE_BYTES, "little")


def read_share(share: bytes | memoryview) -> int:
    """The number that a share or a secret is.

    Raises
    ------
    EncodingError
        If it is not 32 bytes below the prime.
    """
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise EncodingError(f"a share is a number of {SHARE_BYTES} bytes below 2**256 - 189; {len(share)} bytes came")
    return value


def _check_points(points: Sequence[int]) -> None:
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise EncodingError(f"points {list(points)} must be positive and different")
