"""Messages out, replies in, one at a time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

#: bytes of replies that may be pulled in one call
PULL_LIMIT = 64 * 2**20


class Exchange:
    """One push of messages to many nodes and the stream of their replies.

    ``Grid.send_and_receive`` returns all replies in one list and so holds them all; here at most about
    :data:`PULL_LIMIT` bytes of replies (but always one reply) are in memory at a time.

    Parameters
    ----------
    grid : Grid
    timeout : float
        Seconds after which the stream ends, whoever is missing.
    poll_interval : float
        Seconds between two looks when no reply is there.
    """

    def __init__(self, grid: Grid, timeout: float, poll_interval: float = 0.1) -> None:
        self._grid = grid
        self._deadline = time.monotonic() + timeout
        self._poll_interval = poll_interval
        self._pending: dict[str, int] = {}
        self._pushed: dict[int, float] = {}
        self._nodes: dict[str, int] = {}
        self._largest_reply = PULL_LIMIT

    def push(self, messages: Iterable[Message]) -> list[int]:
        """Send messages; returns the nodes that could not be reached."""
        unreached: list[int] = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            # one by one, since Flower reports only the ids of those that it could push
            pushed = list(self._grid.push_messages([message]))
            if pushed and pushed[0]:  # HttpGrid gives an empty id for a message that it could not store
                self._pending[pushed[0]] = self._nodes[pushed[0]] = node_id
                self._pushed.setdefault(node_id, time.monotonic())
            else:
                unreached.append(node_id)
        return unreached

    def replies(self, on_reply: Callable[[Message], bool] = lambda _: True) -> Iterator[Message]:
        """Yield replies as they come, until all are there or the time is up.

        Parameters
        ----------
        on_reply : callable
            May :meth:`push` again and return False to keep that reply from the caller.
        """
        released = 0
        while self._pending:
            batch = self._pull()
            if not batch:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return
                time.sleep(min(self._poll_interval, left))
            while batch:
                reply = batch.pop()
                if self._pending.pop(reply.metadata.reply_to_message_id, None) is None:
                    continue
                self._largest_reply = max(1, reply_size(reply))
                if on_reply(reply):
                    yield reply
                del reply
                released += self._largest_reply
                if released >= PULL_LIMIT:
                    # Flower's messages hold themselves in reference cycles: big ones would pile up till the next
                    # collection, which counts objects and not bytes
                    gc.collect()
                    released = 0

    def node_of(self, reply: Message) -> int:
        """Node that a reply is about: one that Flower itself made in its place comes from the SuperLink."""
        return self._nodes.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

    def waited(self, node_id: int) -> float:
        """Seconds since the first message was pushed to a node."""
        return time.monotonic() - self._pushed[node_id]

    @property
    def unanswered(self) -> dict[str, int]:
        """Messages whose reply has not come, by id, with their nodes."""
        return dict(self._pending)

    def _pull(self) -> list[Message]:
        at_once = max(1, PULL_LIMIT // self._largest_reply)
        waiting = list(self._pending)
        for start in range(0, len(waiting), at_once):
            if batch := list(self._grid.pull_messages(waiting[start : start + at_once])):
                return batch
        return []


def reply_size(message: Message) -> int:
    """Bytes of the arrays in a reply (what matters for memory)."""
    if message.has_error():
        return 0
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
