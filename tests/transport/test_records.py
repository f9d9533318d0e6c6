from __future__ import annotations

import math

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from distro_fed.errors import UpdateError
from distro_fed.transport.flower_compat import SUPERLINK_NODE_ID, message_bytes, parse, serialise, set_identity
from distro_fed.transport.records import (
    Reply,
    Request,
    Status,
    frames_record,
    read_reply,
    read_request,
    reply_records,
    request_records,
)
from tests.test_update import EXAMPLE


@pytest.fixture(autouse=True)
def identity() -> None:
    set_identity(1, SUPERLINK_NODE_ID)


def over_the_wire(content: RecordDict) -> Message:
    message = Message(content, 101, "train")
    return parse(*serialise(message))


def test_request_round_trip() -> None:
    request = Request(3, 9, 2, b"c" * 16, b"r" * 16, True, (EXAMPLE, EXAMPLE), {"mine": 1.5})
    frames = frames_record([EXAMPLE.to_bytes()] * 2)
    assert read_request(over_the_wire(request_records(request, frames, ConfigRecord({"mine": 1.5})))) == request


def test_a_resumed_run_names_the_flower_run_that_it_began_in() -> None:
    plain, resumed = (Request(3, 9, 2, b"c" * 16, b"r" * 16, run_id=run_id) for run_id in (0, 2**64 - 1))
    records = [request_records(request, frames_record([]), ConfigRecord()) for request in (plain, resumed)]
    assert read_request(over_the_wire(records[1])) == resumed
    assert "run-id" not in records[0].config_records["config"]


def test_the_protocols_keys_win_over_the_callers() -> None:
    request = Request(3, 9, 2, b"c" * 16, b"r" * 16)
    content = request_records(request, frames_record([]), ConfigRecord({"server-round": 77}))
    assert read_request(over_the_wire(content)) == request


def test_reply_round_trip() -> None:
    reply = Reply(Status.OK, "St. Märy", 4, EXAMPLE, {"loss": 1.5, "n": 3.0}, "why", {"a": "b=c"}, ("text",))
    assert read_reply(over_the_wire(reply_records(reply))) == reply
    coded = Reply(Status.OK, "a", 4, EXAMPLE, scales="00ff00ff00ff00ff")
    assert read_reply(over_the_wire(reply_records(coded))) == coded
    assert read_reply(over_the_wire(reply_records(reply)), with_update=False).update is None


def test_numbers_that_are_not_finite_stay_home() -> None:
    reply = Reply(Status.OK, "a", 0, metrics={"loss": math.nan, "n": 3.0})
    assert read_reply(over_the_wire(reply_records(reply))).metrics == {"n": 3.0}


def test_names_from_outside_are_one_printable_line() -> None:
    reply = Reply(Status.FAILED, "a\n\x1b[31mred" + "x" * 500, 0, code="b\r\nc")
    read = read_reply(over_the_wire(reply_records(reply)))
    assert read.name.startswith("a??[31mred")
    assert len(read.name) <= 64
    assert read.code == "b??c"


@pytest.mark.parametrize(
    ("key", "value"), [("status", "great"), ("version", "four"), ("facts", 3), ("columns", [1, 2])]
)
def test_a_reply_with_a_value_of_the_wrong_kind_is_refused(key: str, value: object) -> None:
    content = reply_records(Reply(Status.OK, "a", 0, EXAMPLE))
    content.config_records["config"][key] = value  # type: ignore[assignment]
    with pytest.raises(UpdateError):
        read_reply(over_the_wire(content))


def test_counted_bytes_are_those_of_the_serialised_message() -> None:
    message = Message(reply_records(Reply(Status.OK, "a", 0, EXAMPLE)), 101, "train")
    size = message_bytes(message)
    assert size == sum(map(len, serialise(message)[1].values()))
    assert EXAMPLE.size < size < EXAMPLE.size + 1200
