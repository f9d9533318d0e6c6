from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distro_fed.compression import random_rounding
from distro_fed.compression.random_rounding import RandomRounding

NORMAL = st.floats(2.0**-126, 2.0**64, width=32)


def slow_noise(seed: int, count: int) -> list[int]:
    """Counter mode from the block cipher alone."""
    encryptor = Cipher(algorithms.AES128(seed.to_bytes(16, "little")), modes.ECB()).encryptor()
    stream = b"".join(encryptor.update(counter.to_bytes(16, "big")) for counter in range(-(-count // 8)))
    return [int.from_bytes(stream[2 * place : 2 * place + 2], "little") for place in range(count)]


def rounded(seed: int, values: NDArray[np.float32], scale: float, steps: int) -> NDArray[np.unsignedinteger]:
    out: NDArray[np.unsignedinteger] = np.empty(values.size, np.uint8 if steps < 256 else np.uint16)
    RandomRounding(seed).codes(values, scale, steps, out)
    return out


@pytest.mark.parametrize("steps", [1, 3, 127, 255, 65535])
def test_against_a_slow_reference(steps: int) -> None:
    values = np.linspace(-2, 2, 1001, dtype=np.float32)
    out = rounded(2**63 - 1, values, 2.0, steps)
    for value, noise, code in zip(values, slow_noise(2**63 - 1, 1001), out, strict=True):
        place = float(value / np.float32(2)) * steps / 2 + steps / 2
        # of the two sides of a float32 rounding, both are right
        assert code in {int(place + (noise + error) / 2**16) for error in (-1, 0, 1, 2)}


@given(scale=NORMAL, part=st.floats(-1, 1, width=32), steps=st.sampled_from([1, 3, 7, 63, 255, 65535]))
@settings(deadline=None, max_examples=60)
def test_mean_over_all_noise(scale: float, part: float, steps: int) -> None:
    values = np.full(2**16, np.float32(part) * np.float32(scale), np.float32)
    exact = (Fraction(float(values[0])) / Fraction(scale) + 1) * steps / 2
    with pytest.MonkeyPatch.context() as patch:
        every = iter(np.arange(2**16, dtype="<u2").reshape(-1, random_rounding._BLOCK))
        patch.setattr(RandomRounding, "_next_noise", lambda self, count: next(every))
        mean = Fraction(int(rounded(0, values, scale, steps).sum()), 2**16)
    assert abs(mean - exact) < Fraction(1, 2**15)


@given(scale=NORMAL, steps=st.integers(1, 65535), seed=st.integers(0, 2**63 - 1))
@settings(deadline=None, max_examples=100)
def test_largest_values_are_in_range(scale: float, steps: int, seed: int) -> None:
    inside = np.nextafter(np.float32(scale), np.float32(0))
    out = rounded(seed, np.array([scale, -scale, inside, -inside, 0.0], np.float32), scale, steps)
    assert out[0] >= steps - 1 and out[2] >= steps - 1
    assert out[1] <= 1 and out[3] <= 1
    assert abs(int(out[4]) - steps / 2) <= 0.5


def test_pieces_continue_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 1000).astype(np.float32)
    whole = rounded(5, values, 1.0, 15)
    rounding, out = RandomRounding(5), np.empty(1000, np.uint8)
    rounding.codes(values[:8], 1.0, 15, out[:8])
    rounding.codes(values[8:], 1.0, 15, out[8:])
    assert np.array_equal(out, whole)
    monkeypatch.setattr(random_rounding, "_BLOCK", 24)
    assert np.array_equal(rounded(5, values, 1.0, 15), whole)


def test_coins() -> None:
    coins = RandomRounding(1).coins(100_001)
    assert coins.tolist()[:100] == [noise & 1 for noise in slow_noise(1, 100)]
    assert abs(int(coins.sum()) - 50_000) < 5 * 100_000**0.5 / 2
    assert RandomRounding(1).coins(0).size == 0
