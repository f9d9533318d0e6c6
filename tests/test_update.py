from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distro_fed import errors
from distro_fed.update import OVERHEAD_BYTES, Kind, Update, check_update, parse_frame, parse_frames

digests = st.binary(min_size=16, max_size=16)
updates = st.builds(
    Update,
    kind=st.sampled_from(Kind),
    codec=st.integers(1, 255),
    parameters=st.integers(0, 2**32 - 1),
    round=st.integers(0, 2**32 - 1),
    base_version=st.integers(0, 2**32 - 1),
    run=digests,
    layout=digests,
    chain=digests,
    body=st.binary(max_size=300),
)
EXAMPLE = Update(Kind.CLIENT, 2, 1, 3, 2, b"r" * 16, b"l" * 16, b"c" * 16, b"body")


@given(updates)
def test_round_trip(update: Update) -> None:
    frame = update.to_bytes()
    assert len(frame) == update.size == OVERHEAD_BYTES + len(update.body)
    assert parse_frame(frame) == update


@given(st.lists(updates, max_size=4))
def test_a_bundle_is_frames_one_after_the_other(bundle: list[Update]) -> None:
    assert parse_frames(b"".join(update.to_bytes() for update in bundle)) == bundle


def test_layout_of_the_frame_is_frozen() -> None:
    """Bytes as documented; a change here needs another format version."""
    frame = EXAMPLE.to_bytes()
    assert frame[:8] == b"DFED\x01\x01\x02\x00"
    assert frame[8:20] == (1).to_bytes(4, "little") + (3).to_bytes(4, "little") + (2).to_bytes(4, "little")
    assert frame[20:68] == b"r" * 16 + b"l" * 16 + b"c" * 16
    assert frame[68:76] == (4).to_bytes(8, "little")
    assert frame[76:80] == b"body"
    assert frame[80:].hex() == "5d891cc7d6a2e750"
    assert EXAMPLE.digest.hex() == "309c2fee38178eb50fb96bee8d985be8"


def test_too_many_frames_are_refused() -> None:
    with pytest.raises(errors.UpdateError, match="more than 2 frames"):
        parse_frames(EXAMPLE.to_bytes() * 3, limit=2)


EXPECTED = {
    "kind": Kind.CLIENT, "run": b"r" * 16, "layout": b"l" * 16, "base_version": 2, "chain": b"c" * 16, "codec": 2,
    "parameters": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"run": b"x" * 16}, errors.WrongRun),
        ({"layout": b"x" * 16}, errors.WrongLayout),
        ({"kind": Kind.AGGREGATE}, errors.WrongCodec),
        ({"codec": 3}, errors.WrongCodec),
        ({"parameters": 2}, errors.WrongCodec),
        ({"base_version": 3}, errors.WrongBase),
        ({"chain": b"x" * 16}, errors.WrongBase),
    ],
)
def test_an_update_for_something_else_is_refused(change: dict[str, object], error: type[Exception]) -> None:
    check_update(EXAMPLE, **EXPECTED)  # type: ignore[arg-type]
    with pytest.raises(error):
        check_update(replace(EXAMPLE, **change), **EXPECTED)  # type: ignore[arg-type]
