from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.shamir import PRIME, combine, lagrange_weights, read_share, split

RANDOM = random.Random(1)


def number(value: int) -> bytes:
    return value.to_bytes(32, "little")


def slow_split(secret: int, coefficients: list[int], point: int) -> int:
    return sum(c * pow(point, k, PRIME) for k, c in enumerate([secret, *coefficients])) % PRIME


def slow_combine(shares: dict[int, int]) -> int:
    """Constant term by Gaussian elimination of the Vandermonde system: no Lagrange formula in it."""
    points = sorted(shares)
    rows = [[pow(x, k, PRIME) for k in range(len(points))] + [shares[x]] for x in points]
    for column in range(len(rows)):
        inverse = pow(rows[column][column], PRIME - 2, PRIME)
        rows[column] = [value * inverse % PRIME for value in rows[column]]
        for other in range(len(rows)):
            if other != column:
                factor = rows[other][column]
                rows[other] = [(a - factor * b) % PRIME for a, b in zip(rows[other], rows[column], strict=True)]
    return rows[0][-1]


def test_the_prime_is_prime() -> None:
    exponent, doublings = PRIME - 1, 0
    while exponent % 2 == 0:
        exponent, doublings = exponent // 2, doublings + 1
    for _ in range(30):
        power = pow(RANDOM.randrange(2, PRIME - 1), exponent, PRIME)
        powers = [power := power * power % PRIME if step else power for step in range(doublings)]
        assert powers[0] == 1 or PRIME - 1 in powers
    assert 2**255 < PRIME < 2**256


@pytest.mark.parametrize("size", range(1, 8))
def test_every_set_of_threshold_members_rebuilds(size: int) -> None:
    for threshold in range(1, size + 1):
        secret = number(RANDOM.randrange(PRIME))
        coefficients = [RANDOM.randrange(PRIME) for _ in range(threshold - 1)]
        shares = split(secret, range(1, size + 1), coefficients)
        for points in itertools.combinations(range(1, size + 1), threshold):
            assert combine([shares[point - 1] for point in points], lagrange_weights(points)) == secret


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.data())
def test_against_a_slow_reference(threshold: int, data: st.DataObject) -> None:
    secret = data.draw(st.integers(0, PRIME - 1))
    coefficients = data.draw(st.lists(st.integers(0, PRIME - 1), min_size=threshold - 1, max_size=threshold - 1))
    points = data.draw(st.lists(st.integers(1, 255), min_size=threshold, max_size=threshold, unique=True))
    shares = split(number(secret), points, coefficients)
    assert [int.from_bytes(share, "little") for share in shares] == [
        slow_split(secret, coefficients, point) for point in points
    ]
    slow = slow_combine({x: int.from_bytes(share, "little") for x, share in zip(points, shares, strict=True)})
    assert slow == secret == int.from_bytes(combine(shares, lagrange_weights(points)), "little")


def test_one_share_less_fits_every_secret() -> None:
    """For any other secret there is a polynomial through the same shares: they say nothing about it."""
    threshold, points = 4, [2, 5, 7]
    shares = split(number(12345), points, [RANDOM.randrange(PRIME) for _ in range(threshold - 1)])
    for _ in range(5):
        other = RANDOM.randrange(PRIME)
        # the value at one more point that makes `other` the constant term
        weights = lagrange_weights([*points, 9])
        known = sum(w * int.from_bytes(s, "little") for w, s in zip(weights[:-1], shares, strict=True))
        value = (other - known) * pow(weights[-1], -1, PRIME) % PRIME
        assert combine([*shares, number(value)], weights) == number(other)


def test_a_wrong_share_gives_another_secret() -> None:
    shares = split(number(5), [1, 2, 3], [7, 9])
    changed = [shares[0], shares[1], number(int.from_bytes(shares[2], "little") ^ 1)]
    assert combine(changed, lagrange_weights([1, 2, 3])) != number(5)


@pytest.mark.parametrize("points", [[0, 1], [1, 1], [-1, 2], [1, PRIME], [1, PRIME + 1]])
def test_points_that_are_none(points: list[int]) -> None:
    with pytest.raises(EncodingError, match="positive and different"):
        lagrange_weights(points)
    with pytest.raises(EncodingError, match="positive and different"):
        split(number(1), points, [1])


@pytest.mark.parametrize("share", [b"", bytes(31), bytes(33), number(PRIME), b"\xff" * 32])
def test_shares_that_are_none(share: bytes) -> None:
    with pytest.raises(EncodingError, match="below 2"):
        read_share(share)
    with pytest.raises(EncodingError, match="below 2"):
        combine([share], [1])


def test_cross_check_with_shamirs() -> None:
    shamirs = pytest.importorskip("shamirs")
    secret, points = RANDOM.randrange(PRIME), [1, 2, 3, 4, 5]
    ours = split(number(secret), points, [RANDOM.randrange(PRIME) for _ in range(2)])
    theirs = [shamirs.share(x, int.from_bytes(y, "little"), PRIME) for x, y in zip(points, ours, strict=True)]
    assert shamirs.interpolate(theirs[1:4]) == secret
    made = shamirs.shares(secret, quantity=5, modulus=PRIME, threshold=3)
    chosen = made[:3]
    weights = lagrange_weights([share.index for share in chosen])
    assert combine([number(share.value) for share in chosen], weights) == number(secret)
