"""Codes and numbers of members go into one sum, and their means come out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import EncodingError, TrainingError
from distro_fed.secure_aggregation.update_vector import LARGEST, UNIT, mean_of_sum, to_vector, vector_count

SIZES = [7, 1, 30]


def members(count: int, q: int, seed: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Codes, scales and metrics of some members."""
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, 2**q, sum(SIZES)).astype(np.uint8) for _ in range(count)]
    return codes, rng.uniform(0, 2, (count, len(SIZES))), rng.uniform(0, 10, (count, 2))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 2**32))
def test_means_are_those_of_a_plain_reference(q: int, count: int, seed: int) -> None:
    codes, scales, metrics = members(count, q, seed)
    vectors = [to_vector(one, [*scale, *more], q) for one, scale, more in zip(codes, scales, metrics, strict=True)]
    assert all(vector.size == vector_count(sum(SIZES), len(SIZES) + 2, q) for vector in vectors)
    assert all(int(vector.max()) < 2**q for vector in vectors)
    sums = np.sum([vector.astype(np.uint32) for vector in vectors], axis=0, dtype=np.uint32)
    mean = mean_of_sum(sums, SIZES, q=q, weight=count, metrics=2)
    levels = 2**q - 1
    place = 0
    for tensor, size in enumerate(SIZES):
        scale = sum(float(one[tensor]) for one in scales) / count
        for value in range(place, place + size):
            expected = scale * sum(2 * int(one[value]) - levels for one in codes) / (levels * count)
            assert mean.coefficients[value] == pytest.approx(expected, abs=1e-6)
        place += size
    assert mean.numbers == pytest.approx(list(metrics.mean(axis=0)), abs=UNIT)


@pytest.mark.parametrize("number", [-1e-9, float("nan"), float("inf"), LARGEST])
def test_numbers_that_cannot_be_summed_are_named(number: float) -> None:
    with pytest.raises(TrainingError, match="number 1"):
        to_vector(np.zeros(3, np.uint8), [0.0, number], 4)


def test_the_largest_number_of_many_members_does_not_wrap_around() -> None:
    vectors = [to_vector(np.zeros(0, np.uint8), [LARGEST - 1], 8) for _ in range(255)]
    sums = np.sum([vector.astype(np.uint32) for vector in vectors], axis=0, dtype=np.uint32)
    assert mean_of_sum(sums, [], q=8, weight=255, metrics=1).numbers[0] == pytest.approx(LARGEST - 1)


def test_a_sum_of_another_length_is_refused() -> None:
    with pytest.raises(EncodingError, match="belong to 38 values"):
        mean_of_sum(np.zeros(5, np.uint32), SIZES, q=4, weight=2, metrics=0)
