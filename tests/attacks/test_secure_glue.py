"""Secure aggregation in Flower's messages, with a server or a member that does not keep to the rules."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from distro_fed.compression import make_compressor
from distro_fed.strategies.secure_distro import SecureDistroStrategy
from distro_fed.transport.secure_records import add_messages, read_messages
from tests.strategies.secure_members import Members

HOSTILE = 104


@pytest.mark.parametrize(("key", "value"), [("evaluate", False), ("server-round", 3), ("rounds", 9), ("lr", 0.0)])
def test_a_server_that_asks_one_member_for_something_else_gets_no_sum(tmp_path: Path, key: str, value: Any) -> None:
    class Curious(SecureDistroStrategy):
        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            for message in super().configure_train(*arguments):
                if message.metadata.dst_node_id != HOSTILE:
                    message.content.config_records["config"][key] = value
                yield message

    server, _ = Members(tmp_path).run(make_compressor("quantized", bits=8), kind=Curious, rounds=1)
    (record,) = server.progress.history()
    assert record.skipped
    assert len(record.left_out) == 3
    assert all("other-model" in one.reason for one in record.left_out)
    assert 0 not in server.progress.held_out


def test_numbers_that_a_member_sends_in_clear_are_not_reported(tmp_path: Path) -> None:
    def boast(reply: Message, node_id: int) -> Message:
        if node_id == HOSTILE and reply.metadata.message_type in ("train", "evaluate"):
            reply.content["metrics"] = MetricRecord({"held-out-loss": 0.0, "train-loss": 0.0})
        return reply

    server, _ = Members(tmp_path).run(make_compressor("quantized", bits=8), tamper=boast, rounds=2)
    assert all(losses.keys() == {"all members"} for losses in server.progress.held_out.values())


def _cut(reply: Message) -> None:
    add_messages(reply.content, [message[:-1] for message in read_messages(reply.content)])


def _changed(reply: Message) -> None:
    add_messages(reply.content, [message[:-70] + b"!" + message[-69:] for message in read_messages(reply.content)])


def _repeated(reply: Message) -> None:
    add_messages(reply.content, (read_messages(reply.content) * 4)[:4])


def _of_another_type(reply: Message) -> None:
    reply.content["secure"] = MetricRecord({"messages": 1.0})


def _empty(reply: Message) -> None:
    reply.content["secure"] = ArrayRecord({})


def _behind(reply: Message) -> None:
    reply.content["config"] = ConfigRecord({"status": "behind", "name": "client-0", "version": -7})
    reply.content["metrics"] = MetricRecord()


@pytest.mark.parametrize("spoil", [_cut, _changed, _repeated, _of_another_type, _empty, _behind])
def test_a_reply_that_is_not_sound_costs_nobody_else_the_round(tmp_path: Path, spoil: Any) -> None:
    def tamper(reply: Message, node_id: int) -> Message:
        if node_id == HOSTILE and not reply.has_error():
            spoil(reply)
        return reply

    server, _ = Members(tmp_path).run(make_compressor("quantized", bits=8), tamper=tamper, rounds=2)
    assert server.replica.version == 2
    assert server.progress.held_out[2].keys() == {"all members"}
