from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distro_fed.compression.orthonormal import coarse, orthonormal_rows
from distro_fed.compression.public_rows import public_rows
from distro_fed.errors import SettingsError

Rows = NDArray[np.float32]


def make(rows: NDArray[np.floating]) -> Rows:
    return orthonormal_rows(rows, lambda: coarse(public_rows("spare", rows.shape[1], rows.shape[0])))


def assert_orthonormal(rows: Rows) -> None:
    np.testing.assert_allclose(rows.astype(float) @ rows.T.astype(float), np.eye(rows.shape[0]), atol=5e-4)


def normal(rank: int, size: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((rank, size)).astype(np.float32)


@given(
    rank=st.integers(1, 9),
    more=st.integers(0, 60),
    seed=st.integers(0, 100),
    scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e18]),
)
@settings(deadline=None, max_examples=60)
def test_same_span_as_a_qr(rank: int, more: int, seed: int, scale: float) -> None:
    rows = normal(rank, rank + more, seed) * np.float32(scale)
    made = make(rows)
    assert_orthonormal(made)
    reference, _ = np.linalg.qr(rows.T.astype(float))
    # rows are in the span of the reference, one after the other
    for count in range(1, rank + 1):
        inside = made[:count].astype(float) @ reference[:, :count]
        np.testing.assert_allclose(np.square(inside).sum(1), 1.0, atol=2e-3)


@pytest.mark.parametrize("rank", [1, 4, 7])
def test_rows_that_depend_on_others_are_replaced(rank: int) -> None:
    zeros = np.zeros((rank, 7), np.float32)
    assert_orthonormal(make(zeros))
    same = np.repeat(normal(1, 7), rank, axis=0)
    made = make(same)
    assert_orthonormal(made)
    assert abs(float(made[0] @ same[0])) == pytest.approx(float(np.linalg.norm(same[0])), rel=1e-3)
    # a basis of spare rows that lie in the span of what is there already
    spare = coarse(public_rows("spare", 7, rank))
    assert_orthonormal(orthonormal_rows(np.concatenate([spare[1:], zeros[:1]]), lambda: spare))


def test_rows_that_nearly_depend_on_those_before_them() -> None:
    """Each is 250 times longer inside the span of those before it than outside; once would amplify errors as often."""
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((60, 9)))[0].T
    rows = np.tril(np.ones((9, 9)), -1) @ directions + 0.004 * directions
    rows[0] = directions[0]
    assert_orthonormal(make(rows))


def test_more_rows_than_there_can_be_are_refused() -> None:
    with pytest.raises(SettingsError, match="4 orthonormal rows of length 3"):
        orthonormal_rows(normal(4, 3), lambda: np.eye(3, dtype=np.float32))


def test_bits_never_change() -> None:
    """Members of one run may have other releases and processors; a new digest here is a new wire format."""
    rows = np.sin(np.arange(1, 6 * 97 + 1, dtype=np.float64) ** 2).astype(np.float32).reshape(6, 97)
    exact = coarse(rows)  # independent of the last bits of this machine's sine
    assert hashlib.sha256(make(exact).tobytes()).hexdigest()[:16] == "7a266fe0d6f57c61"


def test_the_order_of_sums_is_fixed_where_a_library_s_is_not() -> None:
    rows = normal(5, 1000)
    padded = np.zeros((5, 1003), np.float32)[:, 3:]  # another alignment
    padded[:] = rows
    assert make(padded).tobytes() == make(rows).tobytes() == make(np.asfortranarray(rows)).tobytes()


def test_a_last_bit_does_not_matter() -> None:
    """What a machine that breaks IEEE 754 would do to the sums does not reach the result."""
    values = np.random.default_rng(0).standard_normal(100_000)
    assert np.array_equal(coarse(values), coarse(values * (1 + 2.0**-52)))


def test_coarse_keeps_twelve_bits() -> None:
    values = np.array([1.0, -1.0, 0.0, 1 + 2.0**-11, 1 + 2.0**-13, 3.14159265, 1e-30], np.float32)
    rounded = coarse(values)
    assert rounded[:5].tolist() == [1.0, -1.0, 0.0, 1 + 2.0**-11, 1.0]
    np.testing.assert_allclose(rounded, values, rtol=2.0**-12)
