"""Frames from somebody who means harm: each is refused by name, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed import errors
from distro_fed.update import CHECKSUM_BYTES, HEADER_BYTES, OVERHEAD_BYTES, Kind, Update, parse_frame, parse_frames

FRAME = Update(Kind.CLIENT, 2, 1, 3, 2, b"r" * 16, b"l" * 16, b"c" * 16, b"body" * 50).to_bytes()


def with_bytes(offset: int, data: bytes) -> bytes:
    return FRAME[:offset] + data + FRAME[offset + len(data) :]


@pytest.mark.parametrize("length", [*range(0, OVERHEAD_BYTES + 1, 7), len(FRAME) - 1, len(FRAME) - CHECKSUM_BYTES])
def test_truncated(length: int) -> None:
    with pytest.raises(errors.TruncatedFrame):
        parse_frame(FRAME[:length])


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (with_bytes(0, b"PK\x03\x04"), errors.BadMagic),
        (b"\x80\x04\x95" + FRAME, errors.BadMagic),  # a pickle
        (with_bytes(4, b"\x00"), errors.UnsupportedVersion),
        (with_bytes(4, b"\x02"), errors.UnsupportedVersion),
        (with_bytes(5, b"\x00"), errors.UnknownCodec),
        (with_bytes(5, b"\x04"), errors.UnknownCodec),
        (with_bytes(6, b"\x00"), errors.UnknownCodec),
        (with_bytes(7, b"\x01"), errors.UnknownCodec),
        (with_bytes(68, struct.pack("<Q", 2**60)), errors.TruncatedFrame),
        (with_bytes(68, struct.pack("<Q", 2**64 - 1)), errors.TruncatedFrame),
        (with_bytes(68, struct.pack("<Q", 3)), errors.ChecksumMismatch),
        (with_bytes(HEADER_BYTES, b"B"), errors.ChecksumMismatch),
        (with_bytes(20, b"R"), errors.ChecksumMismatch),
        (FRAME + b"\x00", errors.TruncatedFrame),
        (FRAME + FRAME, errors.TruncatedFrame),
    ],
)
def test_damaged(frame: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_frame(frame)


@pytest.mark.parametrize("claimed", [2**31, 2**60, 2**64 - 1])
def test_a_claimed_size_allocates_nothing(claimed: int) -> None:
    frame = with_bytes(68, struct.pack("<Q", claimed))
    tracemalloc.start()
    try:
        with pytest.raises(errors.UpdateError):
            parse_frame(frame)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_no_mutation_gets_through(data: st.DataObject) -> None:
    """Any change of a frame is refused with an error of this package, never with another exception."""
    mutated = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(mutated) - 1))
        action = data.draw(st.sampled_from(["flip", "delete", "insert"]))
        if action == "flip":
            mutated[place] ^= data.draw(st.integers(1, 255))
        elif action == "delete" and len(mutated) > 1:
            del mutated[place]
        else:
            mutated.insert(place, data.draw(st.integers(0, 255)))
    if bytes(mutated) == FRAME:
        return
    for parse in (parse_frame, parse_frames):
        with pytest.raises(errors.UpdateError):
            parse(bytes(mutated))
