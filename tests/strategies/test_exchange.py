from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp import Grid

from distro_fed.strategies import exchange as module
from distro_fed.strategies.exchange import Exchange


class FakeGrid:
    """Gives out replies of a fixed size and notes how many are held at a time."""

    def __init__(self, nodes: int, size: int) -> None:
        self.size, self.nodes, self.asked = size, nodes, list[int]()

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        return [str(message.metadata.dst_node_id) for message in messages]

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        ids = list(ids)
        self.asked.append(len(ids))
        replies = []
        for key in ids:
            reply = Mock()
            reply.metadata.reply_to_message_id = key
            reply.has_error.return_value = False
            reply.content = RecordDict({"a": ArrayRecord({"x": Array("uint8", (self.size,), "s", bytes(self.size))})})
            replies.append(reply)
        return replies


def messages(count: int) -> list[Any]:
    made = []
    for index in range(count):
        message = Mock()
        message.metadata.dst_node_id = index
        made.append(message)
    return made


def test_big_replies_are_pulled_one_at_a_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "PULL_LIMIT", 1000)
    grid = FakeGrid(5, size=900)
    exchange = Exchange(grid, 5)  # type: ignore[arg-type]
    exchange.push(messages(5))
    assert len(list(exchange.replies())) == 5
    assert grid.asked == [1, 1, 1, 1, 1]


def test_small_replies_are_pulled_together(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "PULL_LIMIT", 1000)
    grid = FakeGrid(41, size=25)
    exchange = Exchange(grid, 5)  # type: ignore[arg-type]
    exchange.push(messages(41))
    assert len(list(exchange.replies())) == 41
    assert grid.asked == [1, 40]


def test_the_stream_ends_when_the_time_is_up() -> None:
    grid = Mock(spec=Grid)
    grid.push_messages.side_effect = lambda batch: [str(batch[0].metadata.dst_node_id)]
    grid.pull_messages.return_value = []
    exchange = Exchange(grid, timeout=0.05, poll_interval=0.01)
    exchange.push(messages(2))
    assert list(exchange.replies()) == []
    assert exchange.unanswered == {"0": 0, "1": 1}


@pytest.mark.parametrize("pushed", [[], [""]])
def test_a_node_that_cannot_be_reached_is_named(pushed: list[str]) -> None:
    """InMemoryGrid leaves such a message out, HttpGrid gives it an empty id."""
    grid = Mock(spec=Grid)
    grid.push_messages.return_value = pushed
    assert Exchange(grid, 1).push(messages(2)) == [0, 1]
