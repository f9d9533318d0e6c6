"""Codes and numbers of members go into one sum, and their means come out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import EncodingError, TrainingError
from distro_fed.secure_aggregation.rules import MAX_WIDTH, sum_width
from distro_fed.secure_aggregation.update_vector import (
    LARGEST,
    UNIT,
    mean_of_sum,
    times_weight,
    to_vector,
    vector_count,
)
from distro_fed.secure_aggregation.weighting import Weighting, own_weight, proposed_bits

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


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 16), st.lists(st.integers(1, 15), min_size=1, max_size=9), st.integers(0, 2**32), st.booleans())
def test_masked_weights_give_the_weighted_mean(bits: int, weights: list[int], seed: int, common: bool) -> None:
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, 2**bits, sum(SIZES), dtype=np.uint32) for _ in weights]
    scales, metrics = rng.uniform(0, 2, (len(weights), len(SIZES))), rng.uniform(0, 10, (len(weights), 2))
    q, total = proposed_bits(Weighting.MASKED, bits), sum(weights)
    vectors = [
        to_vector(weight * one, [*(weight * scale), *more, weight], q)
        for weight, one, scale, more in zip(weights, codes, scales, metrics, strict=True)
    ]
    assert all(int(vector.max()) < 2**q for vector in vectors)
    sums = np.sum([vector.astype(np.uint64) for vector in vectors], axis=0, dtype=np.uint64)
    assert int(sums.max()) < 2 ** sum_width(q, len(weights))
    mean = mean_of_sum(
        sums, SIZES, q=q, weight=len(weights), metrics=2, masked=True, common=[0.5, 0.0, 0.5] if common else None
    )
    levels, place = 2**bits - 1, 0
    assert mean.scales == pytest.approx(list(np.average(scales, axis=0, weights=weights)), abs=1e-9)
    for size, measured, announced in zip(SIZES, mean.scales, [0.5, 0.0, 0.5], strict=True):
        scale = (announced or measured) if common else measured
        for value in range(place, place + size):
            level = sum(weight * (2 * int(one[value]) - levels) for weight, one in zip(weights, codes, strict=True))
            assert mean.coefficients[value] == pytest.approx(scale * level / (levels * total), abs=1e-6)
        place += size
    assert mean.numbers == pytest.approx(list(metrics.mean(axis=0)), abs=UNIT), "metrics are not weighted"


@pytest.mark.parametrize("bits", [1, 8, 16])
def test_the_largest_codes_and_weights_of_many_members_do_not_wrap_around(bits: int) -> None:
    q, members = proposed_bits(Weighting.MASKED, bits), 255
    codes = np.full(3, 15 * (2**bits - 1), np.uint32)
    vector = to_vector(codes, [15 * 2.0, 15.0], q)
    width = sum_width(q, members)
    assert width <= MAX_WIDTH
    wrapped = (vector.astype(np.uint64) * members) % 2**width
    mean = mean_of_sum(wrapped, [3], q=q, weight=members, metrics=0, masked=True)
    assert mean.scales == [2.0]
    assert mean.coefficients.tolist() == [2.0] * 3


@pytest.mark.parametrize("weight", [0.0, 0.4, 15.6, 1000.0])
def test_weights_that_nobody_may_have_are_no_sum(weight: float) -> None:
    vector = to_vector(np.zeros(1, np.uint32), [1.0, weight], 12)
    with pytest.raises(EncodingError, match="each may weigh 1 to 15"):
        mean_of_sum(vector, [1], q=12, weight=1, metrics=0, masked=True)


@pytest.mark.parametrize("weight", [1, 2, 15])
def test_whether_a_scale_can_be_sent_does_not_depend_on_a_masked_weight(weight: int) -> None:
    codes, largest = np.array([3, 255], np.uint8), np.nextafter(np.float32(LARGEST / 15), np.float32(0))
    weighted, scales = times_weight(codes, np.array([0.5, largest], np.float32), weight)
    assert weighted.tolist() == [3 * weight, 255 * weight]
    to_vector(weighted, scales.tolist(), 12)
    for scale in (LARGEST / 15, LARGEST, float("nan")):
        with pytest.raises(TrainingError, match=r"below 4369\.07"):
            times_weight(codes, np.array([0.5, scale], np.float32), weight)


@pytest.mark.parametrize(("examples", "weight"), [(1, 1), (149, 1), (151, 2), (1000, 10), (10**6, 15)])
def test_a_weight_comes_from_the_examples(examples: int, weight: int) -> None:
    assert own_weight(examples, 100) == weight


def test_a_sum_of_another_length_is_refused() -> None:
    with pytest.raises(EncodingError, match="belong to 38 values"):
        mean_of_sum(np.zeros(5, np.uint32), SIZES, q=4, weight=2, metrics=0)
