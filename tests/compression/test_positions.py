from __future__ import annotations

from math import lgamma, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distro_fed.compression.positions import GROUP, decode_positions, encode_positions
from distro_fed.errors import CorruptBody


def entropy_bound(n: int, k: int) -> float:
    """Bits per position of the best code for all sets of k positions below n."""
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2) / k


def random_positions(n: int, k: int, seed: int = 0) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False)).astype(np.int64)


@settings(deadline=None)
@given(st.integers(0, 5000), st.floats(0, 1), st.integers(0, 2**32))
def test_round_trip_of_random_sets(n: int, fraction: float, seed: int) -> None:
    positions = random_positions(n, int(n * fraction), seed)
    back = decode_positions(encode_positions(positions), positions.size, n)
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, positions)


@settings(deadline=None)
@given(st.sets(st.integers(0, 2**40 - 1), max_size=30))
def test_round_trip_of_any_gaps(members: set[int]) -> None:
    positions = np.array(sorted(members), np.int64)
    np.testing.assert_array_equal(decode_positions(encode_positions(positions), positions.size, 2**40), positions)


@pytest.mark.parametrize(
    "inverse", [8, 9, 10.5, 12, 16, 23, 32, 45, 64, 91, 128, 256, 512, 724, 1024, 2048, 3000, 4096]
)
def test_within_three_percent_of_the_bound(inverse: float) -> None:
    n = 2**23
    k = int(n / inverse)
    bits = len(encode_positions(random_positions(n, k))) * 8 / k
    assert bits < 1.03 * entropy_bound(n, k)


def test_uneven_density_costs_less_than_its_average() -> None:
    dense, n = random_positions(2**14, 2**12), 2**24
    sparse = random_positions(n, 2**12, seed=1)
    positions = np.concatenate([dense, sparse[sparse >= 2**14]])
    assert len(encode_positions(positions)) * 8 / positions.size < 0.8 * entropy_bound(n, positions.size)


def test_a_group_with_one_huge_gap_stays_small() -> None:
    positions = np.concatenate([np.arange(GROUP - 1), [2**30]])
    assert len(encode_positions(positions)) < 2000


@pytest.mark.parametrize("positions", [[3, 3], [4, 2], [-1, 5]])
def test_the_encoder_refuses_disorder(positions: list[int]) -> None:
    with pytest.raises(ValueError, match="strictly increasing"):
        encode_positions(np.array(positions, np.int64))


def test_the_bound_is_exclusive() -> None:
    code = encode_positions(np.array([1, 99], np.int64))
    assert decode_positions(code, 2, 100).tolist() == [1, 99]
    with pytest.raises(CorruptBody, match="99"):
        decode_positions(code, 2, 99)


@pytest.mark.parametrize("count", [0, 999, 1001, 2**60, -1])
def test_another_count_is_refused(count: int) -> None:
    code = encode_positions(random_positions(10000, 1000))
    with pytest.raises(CorruptBody):
        decode_positions(code, count, 2**61)


def test_every_truncation_and_every_extension_is_refused() -> None:
    code = encode_positions(random_positions(3000, 600))
    for length in range(len(code)):
        with pytest.raises(CorruptBody):
            decode_positions(code[:length], 600, 3000)
    with pytest.raises(CorruptBody):
        decode_positions(code + b"\0", 600, 3000)
    with pytest.raises(CorruptBody):
        decode_positions(b"\0", 0, 3000)


def test_sums_that_overflow_are_refused() -> None:
    # parameter 31 and 2**20 gaps near 2**61: the sum passes 2**63
    bound, count = 2**61, 12
    unary = np.zeros(0, np.uint8)
    unary = np.concatenate([np.append(np.zeros(2**20, np.uint8), 1)] * count)
    code = b"\x1f" + b"\xff" * (3 * count) + np.packbits(np.ones(7 * count, np.uint8), bitorder="little").tobytes()
    code += np.packbits(unary, bitorder="little").tobytes()
    with pytest.raises(CorruptBody):
        decode_positions(code, count, 2**53)
    assert decode_positions(code, count, bound)[-1] == count * (2**51 + 2**31) - 1
