from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distro_fed.errors import EncodingError, TrainingError
from distro_fed.secure_aggregation.masks import BLOCK
from distro_fed.secure_aggregation.quantise import dequantise_sum, quantise

SEED = bytes(range(32))


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


@settings(deadline=None)
@given(st.integers(2, 16), st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=50), st.integers(0, 255))
def test_error_is_less_than_one_step(q: int, values: list[float], seed: int) -> None:
    vector, scale = f32(*values), 1.5
    codes, clipped = quantise(vector, [len(values)], f32(scale), q, bytes([seed]) * 32)
    assert codes.dtype == (np.uint8 if q <= 8 else np.uint16)
    assert int(codes.max()) < 2**q
    back = dequantise_sum(codes, [len(values)], f32(scale), q, 1)
    step = 2 * scale / (2**q - 1)
    assert np.abs(back - np.clip(vector, -scale, scale)).max() <= step * 1.001
    assert clipped == np.count_nonzero(np.abs(vector) > scale)


@pytest.mark.parametrize("q", [2, 3, 8, 9, 12, 16])
@pytest.mark.parametrize("value", [0.0, 0.1, -0.77, 0.999])
def test_rounding_has_no_bias(q: int, value: float) -> None:
    count = 200_000
    codes, _ = quantise(np.full(count, value, np.float32), [count], f32(1.0), q, SEED)
    levels = 2**q - 1
    place = (float(np.float32(value)) + 1) * levels / 2
    fraction = place - np.floor(place)
    spread = np.sqrt(max(fraction * (1 - fraction), 1e-4) / count)
    assert set(np.unique(codes)) <= {int(place), int(place) + 1}
    assert abs(codes.mean(dtype=np.float64) - place) < 5 * spread + 1e-5 + 2**-15 * (q > 12)


@pytest.mark.parametrize("q", range(1, 17))
def test_the_outermost_value_never_leaves_the_range(q: int) -> None:
    """``floor(L + u)`` in float32 is ``L + 1`` for ``u`` near 1."""
    count = 2 * BLOCK
    codes, clipped = quantise(np.full(count, 0.3, np.float32), [count], f32(0.3), q, SEED)
    assert (codes == 2**q - 1).all()
    low, _ = quantise(np.full(count, -0.3, np.float32), [count], f32(0.3), q, SEED)
    assert (low == 0).all()
    assert clipped == 0


def test_far_beyond_the_scale() -> None:
    codes, clipped = quantise(f32(3e38, -3e38, 1e-30), [3], f32(2.0**-126), 8, SEED)
    assert codes.tolist() == [255, 0, 255]
    assert clipped == 3


def test_one_bit_is_the_sign_and_the_sign_of_zero_is_drawn() -> None:
    vector = np.concatenate([f32(2, -0.001, 1e-40), np.zeros(10_000, np.float32)])
    codes, clipped = quantise(vector, [vector.size], f32(1e-3), 1, SEED)
    assert codes[:3].tolist() == [1, 0, 1]
    assert 4500 < int(codes[3:].sum()) < 5500
    assert clipped == 0
    assert dequantise_sum(codes[:2], [2], f32(0.5), 1, 1).tolist() == [0.5, -0.5]


def test_each_tensor_has_its_scale() -> None:
    codes, clipped = quantise(f32(1, 1, 1, 1), [1, 0, 2, 1], f32(1, 5, 0.5, 0), 4, SEED)
    assert codes[:3].tolist() == [15, 15, 15]
    assert clipped == 3
    back = dequantise_sum(codes, [1, 0, 2, 1], f32(1, 5, 0.5, 0), 4, 1)
    assert back.tolist() == [1, 0.5, 0.5, 0]


def test_same_seed_same_codes_and_other_seed_other_codes() -> None:
    vector = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    one, again = (quantise(vector, [1000], f32(3), 4, SEED)[0] for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert (one != quantise(vector, [1000], f32(3), 4, bytes(32))[0]).any()


def test_a_long_vector_is_the_same_block_by_block_and_is_left_alone() -> None:
    count = BLOCK + 7
    vector = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    before = vector.copy()
    codes, _ = quantise(vector, [count], f32(6), 8, SEED)
    np.testing.assert_array_equal(vector, before)
    back = dequantise_sum(codes, [count], f32(6), 8, 1)
    assert np.abs(back - vector).max() <= 12 / 255 * 1.001


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(1, 12), st.integers(0, 2**32))
def test_the_sum_of_codes_is_the_sum_of_values(q: int, members: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    sums = generator.integers(0, 2**q, (members, 9)).sum(0).astype(np.uint32)
    scale = np.float32(generator.uniform(1e-3, 10))
    got = dequantise_sum(sums, [9], np.array([scale]), q, members)
    levels = 2**q - 1
    exact = [float(Fraction(float(scale)) * Fraction(2 * int(s) - members * levels, levels)) for s in sums]
    np.testing.assert_allclose(got, exact, rtol=2**-22)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("q", [1, 8])
def test_what_is_not_finite_is_not_sent(bad: float, q: int) -> None:
    with pytest.raises(TrainingError, match="diverged"):
        quantise(f32(0, bad, 1), [3], f32(1), q, SEED)


@pytest.mark.parametrize(
    ("sizes", "scales", "q"),
    [
        ([3], f32(1), 0),
        ([3], f32(1), 17),
        ([2], f32(1), 8),
        ([3], f32(1, 1), 8),
        ([4, -1], f32(1, 1), 8),
        ([3], f32(np.nan), 8),
        ([3], f32(np.inf), 8),
        ([3], f32(-1), 8),
        ([3], f32(1e-40), 8),
        ([3], f32(1e38), 8),
    ],
)
def test_what_does_not_fit_together(sizes: list[int], scales: NDArray[np.float32], q: int) -> None:
    with pytest.raises(EncodingError):
        quantise(f32(1, 2, 3), sizes, scales, q, SEED)
    with pytest.raises(EncodingError):
        dequantise_sum(np.zeros(3, np.uint32), sizes, scales, q, 1)
