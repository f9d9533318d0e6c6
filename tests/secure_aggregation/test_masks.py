from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.masked_vector import VectorSum, check_codes, masked_blocks
from distro_fed.secure_aggregation.masks import BLOCK, KeyStream, Masks, blocks, word_type
from distro_fed.secure_aggregation.packing import packed_size
from distro_fed.secure_aggregation.rules import sum_width

SIZES = (1, 7, 8, 9, 1000, 4097)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def slow_stream(secret: bytes, size: int) -> bytes:
    """Counter mode from the block cipher alone (SP 800-38A section 6.5)."""
    encryptor = Cipher(algorithms.AES256(secret), modes.ECB()).encryptor()
    return b"".join(encryptor.update(counter.to_bytes(16, "big")) for counter in range(-(-size // 16)))[:size]


def slow_mask(codes: list[int], plus: list[bytes], minus: list[bytes], width: int) -> list[int]:
    dtype = word_type(width)
    words = [
        (sign, np.frombuffer(slow_stream(secret, len(codes) * dtype.itemsize), dtype).tolist())
        for sign, secrets in ((1, plus), (-1, minus))
        for secret in secrets
    ]
    return [(code + sum(sign * mask[i] for sign, mask in words)) % 2**width for i, code in enumerate(codes)]


def masked(codes: NDArray[np.unsignedinteger], width: int, plus: list[bytes], minus: list[bytes]) -> bytes:
    return b"".join(block.tobytes() for block in masked_blocks(codes, width, Masks(plus, minus, width)))


def unpacked(packed: bytes, count: int, width: int) -> NDArray[np.unsignedinteger]:
    total = VectorSum(count, width)
    total.add(packed)
    return total.remove(Masks([], [], width))


def test_key_stream_in_pieces() -> None:
    stream, out = KeyStream(key(1)), np.empty(1000, np.uint8)
    for start, stop in ((0, 16), (16, 17), (17, 640), (640, 1000), (1000, 1000)):
        stream.fill(out[start:stop])
    assert out.tobytes() == slow_stream(key(1), 1000)


@pytest.mark.parametrize("width", [1, 4, 10, 16, 17, 24, 32])
def test_against_a_slow_reference(width: int) -> None:
    codes = np.random.default_rng(width).integers(0, 2**width, 45, dtype=np.uint64).astype(word_type(width))
    plus, minus = [key(1), key(2)], [key(3)]
    back = unpacked(masked(codes, width, plus, minus), 45, width)
    assert back.tolist() == slow_mask(codes.tolist(), plus, minus, width)


@pytest.mark.parametrize("width", [12, 20])
def test_blocks_continue_the_stream(width: int) -> None:
    count = 2 * BLOCK + 11
    codes = np.zeros(count, np.uint8)
    back = unpacked(masked(codes, width, [key(5)], []), count, width)
    dtype = word_type(width)
    whole = np.frombuffer(slow_stream(key(5), count * dtype.itemsize), dtype) & dtype.type(2**width - 1)
    np.testing.assert_array_equal(back, whole)


@pytest.mark.parametrize("members", range(3, 13))
def test_sums_are_exact_for_every_width(members: int) -> None:
    """All b in 4..24; codes at random, all largest, all zero, and by turns."""
    generator = np.random.default_rng(members)
    pairs = {(i, j): generator.bytes(32) for i in range(members) for j in range(i + 1, members)}
    own = [generator.bytes(32) for _ in range(members)]
    cases = 0
    for width in range(4, 25):
        bits = width - (members - 1).bit_length()
        if bits < 1:
            continue
        assert sum_width(bits, members) == width
        largest = 2**bits - 1
        for index, count in enumerate(SIZES):
            shape = (members, count)
            codes = [
                generator.integers(0, largest + 1, shape),
                np.full(shape, largest),
                np.zeros(shape),
                np.full(shape, largest) * (np.arange(members)[:, None] % 2),
            ][(index + width) % 4].astype(np.uint32)
            total = VectorSum(count, width)
            for i in range(members):
                plus = [own[i], *(pairs[i, j] for j in range(i + 1, members))]
                total.add(masked(codes[i], width, plus, [pairs[j, i] for j in range(i)]))
            sums = total.remove(Masks([], own, width))
            np.testing.assert_array_equal(sums, np.sum(codes, axis=0, dtype=np.int64))
            cases += 1
    assert cases == len(SIZES) * sum(1 for width in range(4, 25) if width > (members - 1).bit_length())


def test_the_input_is_left_as_it_is() -> None:
    codes = np.arange(100, dtype=np.uint8)
    masked(codes, 10, [key(1)], [])
    np.testing.assert_array_equal(codes, np.arange(100))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_codes_that_fit(dtype: type) -> None:
    check_codes(np.array([0, 255], dtype), 2, 8)


@pytest.mark.parametrize(
    "codes",
    [
        np.array([256], np.uint16),
        np.array([1, 2], np.uint8),
        np.array([1], np.int64),
        np.array([1.0]),
        np.array([[1]], np.uint8),
    ],
)
def test_codes_that_do_not_fit(codes: NDArray) -> None:
    with pytest.raises(EncodingError):
        check_codes(codes, 1, 8)


@pytest.mark.parametrize("size", [0, 1, 19, 21, 10**6])
def test_a_vector_of_another_length_is_not_added(size: int) -> None:
    total = VectorSum(16, 10)
    with pytest.raises(EncodingError, match="20 bytes"):
        total.add(bytes(size))
    assert not total.remove(Masks([], [], 10)).any()


def test_bad_padding_adds_nothing() -> None:
    count = BLOCK + 1
    total = VectorSum(count, 10)
    with pytest.raises(EncodingError, match="padding"):
        total.add(b"\xff" * packed_size(count, 10))
    assert not total.remove(Masks([], [], 10)).any()


def test_blocks_of_nothing() -> None:
    assert list(blocks(0)) == []
