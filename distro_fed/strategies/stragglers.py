"""Nodes that do not answer in time: how long to wait for a reply, and what becomes of those that come later."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

#: seconds that a round of a size never tried waits, and the longest that any round waits by itself
LONGEST_SECONDS = 3600.0
#: seconds that every round waits: a poll of Flower's and the start of a process take up to ten of them
SHORTEST_SECONDS = 30.0
#: how many times slower than measured a member may be
MARGIN = 3.0
#: bytes a second (1 Mbit/s): a member that was sent little does not show how fast its line is
SLOWEST_LINE = 125_000.0


@dataclass(frozen=True, slots=True)
class Timing:
    """What one exchange with a member took.

    Attributes
    ----------
    worked : float
        Seconds of evaluation and training, as the member says.
    waited : float
        Seconds from the request to the reply, as the server saw.
    size : int
        Bytes of both.
    """

    worked: float
    waited: float
    size: int


def sized_timeout(timings: Collection[Timing], size: int) -> float:
    """Seconds to wait for replies in a round.

    ::

        line_i   = max(size_i / (waited_i - worked_i), 125 kB/s)
        expect_i = waited_i + max(0, size - size_i) / line_i
        timeout  = 3 max_i expect_i, at least 30 s and at most an hour

    A member that answers late on purpose can stretch it to an hour and no further. Without timings it is an hour too:
    nothing is known before the first round.

    Parameters
    ----------
    timings : collection of Timing
        The last one of every member that is asked.
    size : int
        Bytes of the largest request of the round, and of a reply.
    """
    if not timings:
        return LONGEST_SECONDS
    expected = (timing.waited + max(0, size - timing.size) / max(_speed(timing), SLOWEST_LINE) for timing in timings)
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, MARGIN * max(expected)))


def _speed(timing: Timing) -> float:
    """Bytes a second, with everything that is not work counted as transfer."""
    return timing.size / max(1e-3, timing.waited - max(0.0, timing.worked))


class Pace:
    """How long a run waits for replies.

    Parameters
    ----------
    round_timeout : float
        Seconds; 0: sized by the run (:func:`sized_timeout`).
    """

    def __init__(self, round_timeout: float) -> None:
        self.round_timeout = round_timeout
        self._timings: dict[int, Timing] = {}
        self._asked: Sequence[int] = ()
        self._largest = 0

    def asks(self, nodes: Sequence[int], largest: int) -> None:
        """Messages to these nodes are being made; the largest of them has so many bytes."""
        self._asked, self._largest = nodes, largest

    def took(self, node_id: int, timing: Timing) -> None:
        """A node has answered, in time or late."""
        self._timings[node_id] = timing

    @property
    def timeout(self) -> float:
        """Seconds to wait for the replies to the messages made last."""
        known = [self._timings[node_id] for node_id in self._asked if node_id in self._timings]
        return self.round_timeout or sized_timeout(known, self._largest)

    @property
    def time_to_live(self) -> float:
        """Seconds after which a message is void, so that a node which was away does not work through what it missed.

        Twice the time that is waited for it: a reply that comes a little late is heard, and tells that its node is free
        again.
        """
        return max(60.0, 2 * self.timeout)

    def to_json(self) -> list[list[float]]:
        """For a checkpoint."""
        return [[node_id, timing.worked, timing.waited, timing.size] for node_id, timing in self._timings.items()]

    def restore(self, data: list[list[Any]]) -> None:
        """Take back what :meth:`to_json` gave."""
        self._timings = {node_id: Timing(*timing) for node_id, *timing in data}


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A message to which no reply has come.

    Attributes
    ----------
    node_id, round : int
    sent : float
        Time of :func:`time.monotonic`.
    void : float
        Time from which on no reply can come any more.
    is_probe : bool
        It asks for nothing but a sign of life.
    """

    node_id: int
    round: int
    sent: float
    void: float
    is_probe: bool = False


class Stragglers:
    """Messages that were not answered in time, and the nodes that are still busy with them.

    A node is busy until it answers the message itself, or a probe sent after it: a node works through its messages one
    by one, so one that answers the probe alone has lost the message (it was started anew). It is busy no longer than
    the message is valid.
    """

    def __init__(self) -> None:
        self._messages: dict[str, Unanswered] = {}
        self._busy: set[int] = set()

    def add(self, message_id: str, message: Unanswered) -> None:
        """A message whose time is up."""
        self._messages[message_id] = message
        if not message.is_probe:
            self._busy.add(message.node_id)

    def busy(self) -> frozenset[int]:
        """Nodes not to be asked for anything else."""
        self._drop_void()
        return frozenset(self._busy)

    def collect(self, grid: Grid) -> Iterator[tuple[Unanswered, Message]]:
        """Replies that have come since, one at a time."""
        self._drop_void()
        for message_id in list(self._messages):
            for reply in grid.pull_messages([message_id]):
                message = self._messages.pop(message_id)
                self._busy.discard(message.node_id)
                yield message, reply

    def _drop_void(self) -> None:
        now = time.monotonic()
        self._messages = {key: message for key, message in self._messages.items() if message.void > now}
        self._busy &= {message.node_id for message in self._messages.values() if not message.is_probe}
