"""Carries the stages of secure aggregation that need no model to the nodes, and their answers back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from distro_fed.strategies.courier import Courier
from distro_fed.strategies.exchange import Exchange
from distro_fed.strategies.intake import Refused, parse
from distro_fed.strategies.members import Members
from distro_fed.strategies.progress import Progress
from distro_fed.transport.flower_compat import message_bytes
from distro_fed.transport.records import CONFIG
from distro_fed.transport.secure_records import SECURE, add_messages, read_messages

log = logging.getLogger("flwr")


class LightStages:
    """One for a run.

    These stages take a member milliseconds, so a node is not waited for as long as in a round of training. A node that
    is still busy with an older request is not asked at all.

    Parameters
    ----------
    courier : Courier
        Knows who is busy, and counts messages.
    progress : Progress
        Told of those who do not answer.
    members : Members
    stage_timeout : float
        Seconds; 0: as long as for a round of training.
    """

    def __init__(self, courier: Courier, progress: Progress, members: Members, stage_timeout: float) -> None:
        self._courier, self._progress, self._members = courier, progress, members
        self._stage_timeout = stage_timeout
        self._grid: Grid | None = None
        self._reminders: dict[int, bytes] = {}

    def use(self, grid: Grid) -> None:
        """Talk through this grid from now on."""
        self._grid = grid

    def nodes(self) -> list[int]:
        """Nodes that can be asked now."""
        if self._grid is None:
            return []
        self._courier.take_late(self._grid)
        busy = self._courier.stragglers.busy()
        return [node_id for node_id in self._grid.get_node_ids() if node_id not in busy]

    def remind(self, messages: Mapping[int, bytes]) -> None:
        """Send each of these nodes a message along with the next one to it; no answer is expected."""
        self._reminders |= messages

    def ask(self, outgoing: Mapping[int, Sequence[bytes]]) -> Iterator[tuple[int, Sequence[bytes] | Refused]]:
        """Send each node its messages; yields what it answers, or why there is no answer."""
        if self._grid is None or not outgoing:
            return
        courier, timeout = self._courier, self._stage_timeout or self._courier.pace.timeout
        round_ = self._progress.current_round
        exchange = Exchange(self._grid, timeout)
        courier.exchanges += 1
        messages = []
        for node_id, parts in outgoing.items():
            reminder = [self._reminders[node_id]] if node_id in self._reminders else []
            content = add_messages(RecordDict(), [*reminder, *parts])
            messages.append(Message(content, node_id, SECURE, ttl=max(60.0, 2 * timeout), group_id=str(round_)))
            courier.traffic.record(node_id, round_, "down", "secure", message_bytes(messages[-1]))
        for node_id in exchange.push(messages):
            yield node_id, self._silent(round_, node_id, 0.0, "it could not be reached")
        for reply in exchange.replies():
            node_id = exchange.node_of(reply)
            if reply.metadata.src_node_id == node_id:
                courier.traffic.record(node_id, round_, "up", "secure", message_bytes(reply))
            answer = read_answer(reply)
            if not isinstance(answer, Refused):
                self._reminders.pop(node_id, None)
            yield node_id, answer
        for node_id in exchange.unanswered.values():
            yield node_id, self._silent(round_, node_id, exchange.waited(node_id), "no answer in time")

    def _silent(self, round_: int, node_id: int, seconds: float, reason: str) -> Refused:
        self._progress.no_answer(round_, self._members.name(node_id), seconds, reason)
        return Refused(reason)


def read_answer(message: Message) -> list[bytes] | Refused:
    """Messages of secure aggregation in a reply, or why there are none; metrics in clear are not looked at."""
    if message.has_error() or CONFIG in message.content:  # a refusal of the protocol comes without
        parsed = parse(message)
        if isinstance(parsed, Refused):
            return parsed
    try:
        answers = read_messages(message.content)
    except Exception as error:  # whatever one member sends, the round goes on without it
        return Refused(f"it cannot be read ({type(error).__name__})")
    return answers or Refused("it holds no message of secure aggregation")
