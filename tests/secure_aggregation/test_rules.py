from __future__ import annotations

import math

import pytest

from distro_fed.secure_aggregation.rules import (
    ServerModel,
    largest_sum,
    members_needed,
    sum_width,
    threshold,
)


@pytest.mark.parametrize(
    ("size", "malicious", "honest"), [(3, 3, 2), (4, 3, 3), (5, 4, 3), (16, 11, 9), (100, 67, 51), (255, 171, 128)]
)
def test_threshold(size: int, malicious: int, honest: int) -> None:
    assert threshold(size, ServerModel.MALICIOUS) == malicious
    assert threshold(size, ServerModel.HONEST_BUT_CURIOUS) == honest


def test_two_thresholds_share_an_honest_member() -> None:
    for size in range(3, 256):
        colluders = math.ceil(size / 3) - 1
        assert 2 * threshold(size, ServerModel.MALICIOUS) > size + colluders
        assert 2 * threshold(size, ServerModel.HONEST_BUT_CURIOUS) > size


@pytest.mark.parametrize("bits", [1, 2, 8, 16, 24])
def test_the_widest_sum_fits_and_one_bit_less_would_not_do(bits: int) -> None:
    for size in range(2, 256):
        width = sum_width(bits, size)
        assert width == bits + math.ceil(math.log2(size))
        assert largest_sum(bits, size) < 2**width <= 2**32
        assert size * 2**bits > 2 ** (width - 1)


def test_the_larger_minimum_counts() -> None:
    assert members_needed(3, 4) == members_needed(4, 3) == 4
