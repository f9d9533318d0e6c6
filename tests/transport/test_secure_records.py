"""Messages of secure aggregation in Flower's records."""

from __future__ import annotations

import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import UpdateError
from distro_fed.transport.secure_records import STYPE, add_messages, keep_state, kept_state, read_messages


@settings(deadline=None)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4))
def test_messages_come_back(messages: list[bytes]) -> None:
    assert read_messages(add_messages(RecordDict(), messages)) == messages


def test_no_record_is_no_message() -> None:
    assert read_messages(RecordDict()) == []


@pytest.mark.parametrize(
    "data",
    [b"\x01", b"\x05\x00\x00\x00ab", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00" * 5],
    ids=["half a length", "too short", "huge", "too many"],
)
def test_a_record_that_is_not_whole_is_refused(data: bytes) -> None:
    content = RecordDict({"secure": ArrayRecord({"messages": Array("uint8", (len(data),), STYPE, data)})})
    with pytest.raises(UpdateError, match="whole messages"):
        read_messages(content)


def test_a_record_of_another_kind_is_refused() -> None:
    content = RecordDict({"secure": ArrayRecord({"messages": Array("uint8", (1,), "numpy.ndarray", b"x")})})
    with pytest.raises(UpdateError, match="stype"):
        read_messages(content)


def test_state_is_kept_in_the_context() -> None:
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    assert kept_state(context) == b""
    keep_state(context, b"sealed")
    assert kept_state(context) == b"sealed"
