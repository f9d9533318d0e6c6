"""Masked vectors look like noise; each test is shown to fail on a broken mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from distro_fed.secure_aggregation import masks as masks_module
from distro_fed.secure_aggregation.masks import Masks, word_type

COUNT = 300_000
LOW, HIGH = 1e-6, 1 - 1e-6


def masked_constant(value: int, width: int, keys: list[bytes]) -> NDArray[np.unsignedinteger]:
    vector = np.full(COUNT, value, word_type(width))
    masks = Masks(keys[:1], keys[1:], width)
    for block in masks_module.blocks(COUNT):
        masks.apply(vector[block])
    return vector


def cells(vector: NDArray[np.unsignedinteger], width: int) -> float:
    return float(stats.chisquare(np.bincount(vector, minlength=2**width)).pvalue)


def planes(vector: NDArray[np.unsignedinteger], width: int) -> list[float]:
    ones = [np.count_nonzero(vector >> bit & 1) for bit in range(width)]
    return [float(stats.binomtest(int(count), COUNT).pvalue) for count in ones]


def correlation(one: NDArray, other: NDArray) -> float:
    return float(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) * np.sqrt(len(one))


@contextmanager
def broken(change: Callable[[NDArray[np.uint8]], None]) -> Iterator[None]:
    fill = masks_module.KeyStream.fill

    def spoilt(self: masks_module.KeyStream, buffer: NDArray[np.uint8]) -> None:
        fill(self, buffer)
        change(buffer)

    with mock.patch.object(masks_module.KeyStream, "fill", spoilt):
        yield


KEYS = [bytes([number]) * 32 for number in range(4)]


@pytest.mark.parametrize("width", [4, 8, 10, 12])
@pytest.mark.parametrize("value", [0, 1])
def test_every_value_is_as_likely(width: int, value: int) -> None:
    vector = masked_constant(value * (2**width - 1), width, KEYS[:2])
    assert LOW < cells(vector, width) < HIGH
    assert min(planes(vector, width)) > LOW


@pytest.mark.parametrize("width", [17, 20, 24, 32])
def test_every_bit_of_wide_sums_is_as_likely(width: int) -> None:
    vector = masked_constant(5, width, KEYS[:2])
    assert min(planes(vector, width)) > LOW
    assert LOW < cells(vector >> (width - 8), 8) < HIGH


def test_neighbours_members_and_rounds_are_unrelated() -> None:
    vector = masked_constant(3, 12, KEYS[:2])
    other_member = masked_constant(3, 12, [KEYS[1], KEYS[2]])
    other_round = masked_constant(3, 12, KEYS[2:])
    assert abs(correlation(vector[1:], vector[:-1])) < 5
    assert abs(correlation(vector, other_member)) < 5
    assert abs(correlation(vector, other_round)) < 5


def test_a_mask_without_its_largest_value_is_found() -> None:
    """As with ``randint(0, 2**b - 1)``."""
    width = 4

    def without_largest(buffer: NDArray[np.uint8]) -> None:
        words = buffer.view("<u2")
        words[:] = words % (2**width - 1)

    with broken(without_largest):
        assert cells(masked_constant(0, width, KEYS[:1]), width) < LOW


def test_a_stuck_bit_is_found() -> None:
    def stuck(buffer: NDArray[np.uint8]) -> None:
        buffer[::2] |= 4

    with broken(stuck):
        assert min(planes(masked_constant(0, 12, KEYS[:1]), 12)) < LOW


def halves_of_a_block() -> float:
    vector, half = masked_constant(0, 12, KEYS[:1]), masks_module.BLOCK // 2
    return abs(correlation(vector[:half], vector[half : 2 * half]))


def test_a_stream_that_starts_again_is_found() -> None:
    def repeated(buffer: NDArray[np.uint8]) -> None:
        half = masks_module.BLOCK
        buffer[half:] = buffer[: max(buffer.size - half, 0)]

    assert halves_of_a_block() < 5
    with broken(repeated):
        assert halves_of_a_block() > 5
