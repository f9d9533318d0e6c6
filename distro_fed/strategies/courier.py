"""Sends each node what it lacks, streams the replies back, and counts every byte of both."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from distro_fed.errors import UpdateError
from distro_fed.replica import Replica
from distro_fed.reporting.ledger import Kind as TrafficKind
from distro_fed.strategies.downlink import Downlink
from distro_fed.strategies.exchange import Exchange
from distro_fed.strategies.intake import explain_facts
from distro_fed.strategies.members import Members
from distro_fed.strategies.progress import Progress
from distro_fed.strategies.stragglers import Pace, Stragglers, Timing, Unanswered
from distro_fed.strategies.traffic import Traffic
from distro_fed.transport.flower_compat import message_bytes
from distro_fed.transport.records import DRIFT, HELLO, Reply, Request, Status, read_reply, request_records
from distro_fed.transport.secure_records import add_messages

log = logging.getLogger("flwr")

#: how long nodes have to tell their names before the first sampling
GREETING_SECONDS = 60.0
_KINDS: dict[str, TrafficKind] = {MessageType.TRAIN: "update", MessageType.EVALUATE: "evaluation"}


class Courier:
    """One for a run.

    A reply that comes after its round was closed is counted and refused: the mean it would have been part of is
    applied, so the version that it was made on top of is gone, and its change is not one of the model of now.

    Parameters
    ----------
    replica : Replica
        What requests refer to.
    members : Members
        Updated with the names and versions that replies tell.
    traffic : Traffic
        Every message is recorded, also one that is lost or refused.
    progress : Progress
        Told of those who do not answer, answer late, or hold another replica.
    rounds : int
        Rounds of the run.
    round_timeout : float
        As of :class:`~distro_fed.strategies.stragglers.Pace`.
    flower_run : int
        Flower's id of the run. A resumed run keeps the one that it began with in its agreement.
    """

    def __init__(
        self,
        replica: Replica,
        members: Members,
        traffic: Traffic,
        progress: Progress,
        rounds: int,
        round_timeout: float,
        flower_run: int,
    ) -> None:
        self.downlink = Downlink(replica)
        self.traffic, self.stragglers = traffic, Stragglers()
        self.pace = Pace(round_timeout)
        self._greeted: set[int] = set()
        self._replica, self._members, self._progress, self._rounds = replica, members, progress, rounds
        self.flower_run = flower_run
        self._caught_up: set[int] = set()
        self._sent: dict[int, Message] = {}
        self._sent_bytes: dict[int, int] = {}
        self._secure: Mapping[int, bytes] = {}
        #: times that messages went out and came back
        self.exchanges = 0
        self._exchange: Exchange | None = None

    def node_of(self, reply: Message) -> int:
        """Node that a reply is about."""
        return reply.metadata.src_node_id if self._exchange is None else self._exchange.node_of(reply)

    def request(self, round_: int, *, evaluate: bool) -> Request:
        """What is asked of every node in a round, but for the updates that it lacks."""
        replica, run_id = self._replica, self._replica.agreement.run_id
        return Request(
            round_, self._rounds, replica.version, replica.chain, replica.agreement.run, evaluate,
            run_id=0 if run_id == self.flower_run else run_id,
        )  # fmt: skip

    def messages(
        self,
        nodes: Sequence[int],
        message_type: str,
        round_: int,
        config: ConfigRecord,
        *,
        evaluate: bool,
        secure: Mapping[int, bytes] | None = None,
    ) -> list[Message]:
        """One message a node; nodes with the same gap share the frames.

        ``secure`` holds by node what goes along for secure aggregation.
        """
        self._secure = secure or {}
        lacking = {node_id: self.downlink.lacking(self._members.version(node_id), round_) for node_id in nodes}
        self.pace.asks(nodes, max((_size(frames) for frames, _ in lacking.values()), default=0))
        messages = [
            self._message(node_id, message_type, round_, config, *lacking[node_id], evaluate=evaluate)
            for node_id in nodes
        ]
        self.downlink.release()
        return messages

    def exchange(self, grid: Grid, messages: Sequence[Message], timeout: float, round_: int) -> Iterator[Message]:
        """Push messages and yield the replies, one at a time.

        A node that answers that it lacks versions is sent them, once, and its second answer is the one
        that counts.
        """
        exchange = self._exchange = Exchange(grid, timeout)
        self.exchanges += bool(messages)
        self._caught_up.clear()
        self._sent = {message.metadata.dst_node_id: message for message in messages}
        for node_id in exchange.push(messages):
            self._progress.no_answer(round_, self._members.name(node_id), 0.0, "it could not be reached")

        def keep(message: Message) -> bool:
            node_id = exchange.node_of(message)
            behind = self._account(node_id, message, round_, exchange.waited(node_id))
            if behind is None or node_id in self._caught_up:
                return True
            again = self._catch_up(node_id, behind, round_)
            return bool(exchange.push([again]))  # could not be reached: the caller gets this reply

        yield from exchange.replies(keep)
        for message_id, node_id in exchange.unanswered.items():
            waited = exchange.waited(node_id)
            self._progress.no_answer(round_, self._members.name(node_id), waited, "no answer in time")
            now = time.monotonic()
            sent = now - waited
            self.stragglers.add(message_id, Unanswered(node_id, round_, sent, sent + self.pace.time_to_live))
            if self._sent[node_id].metadata.message_type == MessageType.TRAIN:
                self._probe(grid, node_id, round_)
        self._sent = {}

    def take_late(self, grid: Grid) -> None:
        """Take in the replies that have come too late for their round."""
        for late, message in self.stragglers.collect(grid):
            name, waited = self._members.name(late.node_id), time.monotonic() - late.sent
            if message.metadata.src_node_id != late.node_id:
                log.info("%s will not answer the request of round %d any more", name, late.round)
                continue
            self._account(late.node_id, message, late.round, waited)
            if late.is_probe:
                continue
            name = self._members.name(late.node_id)
            self._progress.late_reply(
                late.round, name, f"it came after {waited:.0f} s, when the round was closed and its base was gone"
            )

    def greet(self, grid: Grid, nodes: Sequence[int], timeout: float) -> None:
        """Ask nodes for their names, once, since names order them where Flower's node ids are random."""
        strangers = [node_id for node_id in nodes if node_id not in self._members.names.keys() | self._greeted]
        if not strangers:
            return
        self._greeted.update(strangers)
        exchange = Exchange(grid, min(GREETING_SECONDS, timeout or GREETING_SECONDS))
        greetings = [self._hello(node_id, 0) for node_id in strangers]
        exchange.push(greetings)
        for message in exchange.replies():
            node_id = exchange.node_of(message)
            self._account(node_id, message, 0, exchange.waited(node_id))

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint, but for the update log."""
        keyframes = self.downlink.keyframes_sent
        return {"exchanges": self.exchanges, "keyframes-sent": keyframes, "pace": self.pace.to_json()}

    def restore(self, data: dict[str, Any]) -> None:
        """Take back what :meth:`to_json` gave."""
        self.exchanges, self.downlink.keyframes_sent = data["exchanges"], data["keyframes-sent"]
        self.pace.restore(data["pace"])

    def _message(
        self,
        node_id: int,
        message_type: str,
        round_: int,
        config: ConfigRecord,
        frames: ArrayRecord,
        is_keyframe: bool,
        *,
        evaluate: bool,
    ) -> Message:
        content = request_records(self.request(round_, evaluate=evaluate), frames, config)
        if node_id in self._secure:
            add_messages(content, [self._secure[node_id]])
        message = Message(content, node_id, message_type, ttl=self.pace.time_to_live, group_id=str(round_))
        size = self._sent_bytes[node_id] = message_bytes(message)
        self.traffic.record(node_id, round_, "down", "keyframe" if is_keyframe else _KINDS[message_type], size)
        return message

    def _hello(self, node_id: int, round_: int) -> Message:
        message = Message(RecordDict(), node_id, HELLO, ttl=self.pace.time_to_live, group_id=str(round_))
        self.traffic.record(node_id, round_, "down", "other", message_bytes(message))
        return message

    def _probe(self, grid: Grid, node_id: int, round_: int) -> None:
        """Ask a node that has not answered for a sign of life; it gives one when it is done, or was started anew."""
        now = time.monotonic()
        for message_id in grid.push_messages([self._hello(node_id, round_)]):
            if message_id:
                probe = Unanswered(node_id, round_, now, now + self.pace.time_to_live, is_probe=True)
                self.stragglers.add(message_id, probe)

    def _account(self, node_id: int, message: Message, round_: int, waited: float) -> Reply | None:
        """Count a reply and learn from it; returns it if the node is behind."""
        if message.metadata.src_node_id != node_id:
            return None  # made by Flower in the node's place: nothing came from the node
        kind = _KINDS.get(message.metadata.message_type, "other")
        reply, size = None, message_bytes(message)
        if not message.has_error():
            try:
                reply = read_reply(message, with_update=False)
            except UpdateError:
                reply = None  # the one who takes the reply in will say what is wrong with it
        if reply is not None:
            self._learn(node_id, reply, round_, tells_version=kind != "other")
            if kind == "update" and reply.status is Status.OK:
                size_of_both = self._sent_bytes.get(node_id, 0) + size
                self.pace.took(node_id, Timing(reply.metrics.get("seconds", 0.0), waited, size_of_both))
        self.traffic.record(node_id, round_, "up", kind, size)
        return reply if reply is not None and reply.status is Status.BEHIND else None

    def _learn(self, node_id: int, reply: Reply, round_: int, *, tells_version: bool) -> None:
        """What a reply tells of its node."""
        self._members.learn_name(node_id, reply.name)
        self.traffic.named(node_id)
        if tells_version and reply.status is not Status.FAILED:
            self._members.versions[node_id] = reply.version
        if reply.facts:
            log.warning("%s: %s", reply.name, explain_facts(self._replica.agreement, reply.facts))
        if reply.status is Status.BEHIND and reply.code == DRIFT:
            self._progress.drift(round_, self._members.name(node_id), self._replica.version)

    def _catch_up(self, node_id: int, reply: Reply, round_: int) -> Message:
        self._caught_up.add(node_id)
        log.info("%s holds version %d and is sent what it lacks", reply.name, reply.version)
        first = self._sent[node_id]
        config = first.content.config_records["config"]
        return self._message(
            node_id,
            first.metadata.message_type,
            round_,
            config,
            *self.downlink.lacking(self._members.version(node_id), round_),
            evaluate=bool(config["evaluate"]),
        )


def _size(frames: ArrayRecord) -> int:
    return sum(len(array.data) for array in frames.values())
