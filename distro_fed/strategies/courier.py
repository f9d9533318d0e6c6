"""Sends each node what it lacks, streams the replies back, and counts every byte of both."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from distro_fed.errors import UpdateError
from distro_fed.replica import Replica
from distro_fed.reporting.ledger import Direction, TrafficLedger
from distro_fed.reporting.ledger import Kind as TrafficKind
from distro_fed.strategies.downlink import Downlink
from distro_fed.strategies.exchange import Exchange
from distro_fed.strategies.intake import explain_facts
from distro_fed.strategies.members import Members
from distro_fed.transport.flower_compat import message_bytes
from distro_fed.transport.records import HELLO, Reply, Request, Status, read_reply, request_records
from distro_fed.transport.secure_records import SECURE, add_messages, read_messages

log = logging.getLogger("flwr")

#: how long nodes have to tell their names before the first sampling
GREETING_SECONDS = 60.0
_KINDS: dict[str, TrafficKind] = {MessageType.TRAIN: "update", MessageType.EVALUATE: "evaluation"}


class Courier:
    """One for a run.

    Parameters
    ----------
    replica : Replica
        What requests refer to.
    members : Members
        Updated with the names and versions that replies tell.
    ledger : TrafficLedger
        Every message is recorded, also one that is lost or refused.
    rounds : int
        Rounds of the run.
    time_to_live : float
        Seconds after which a message is void, so that a node which was away does not work through the
        rounds it missed.
    """

    def __init__(
        self, replica: Replica, members: Members, ledger: TrafficLedger, rounds: int, time_to_live: float
    ) -> None:
        self.time_to_live = max(60.0, time_to_live)
        self._greeted: set[int] = set()
        self.downlink = Downlink(replica)
        self._replica, self._members, self._ledger, self._rounds = replica, members, ledger, rounds
        self._unnamed: dict[int, list[tuple[int, Direction, TrafficKind, int]]] = {}
        self._caught_up: set[int] = set()
        self._sent: dict[int, Message] = {}
        self._secure: Mapping[int, bytes] = {}
        #: times that messages went out and came back
        self.exchanges = 0
        self._exchange: Exchange | None = None

    def node_of(self, reply: Message) -> int:
        """Node that a reply is about."""
        return reply.metadata.src_node_id if self._exchange is None else self._exchange.node_of(reply)

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
        messages = [self._message(node_id, message_type, round_, config, evaluate=evaluate) for node_id in nodes]
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
            log.warning("round %d: %s could not be reached", round_, self._members.name(node_id))

        def keep(message: Message) -> bool:
            node_id = exchange.node_of(message)
            behind = self._account(node_id, message, round_)
            if behind is None or node_id in self._caught_up:
                return True
            again = self._catch_up(node_id, behind, round_)
            return bool(exchange.push([again]))  # could not be reached: the caller gets this reply

        yield from exchange.replies(keep)
        for node_id in exchange.unanswered:
            log.warning("round %d: no answer from %s in %g s", round_, self._members.name(node_id), timeout)
        self._sent = {}

    def greet(self, grid: Grid, nodes: Sequence[int], timeout: float) -> None:
        """Ask nodes for their names, once, since names order them where Flower's node ids are random."""
        strangers = [node_id for node_id in nodes if node_id not in self._members.names.keys() | self._greeted]
        if not strangers:
            return
        self._greeted.update(strangers)
        exchange = Exchange(grid, min(GREETING_SECONDS, timeout))
        greetings = [Message(RecordDict(), node_id, HELLO, group_id="0") for node_id in strangers]
        for message in greetings:
            self._record(message.metadata.dst_node_id, 0, "down", "other", message_bytes(message))
        exchange.push(greetings)
        for message in exchange.replies():
            self._account(exchange.node_of(message), message, 0)

    def exchange_secure(
        self, grid: Grid, outgoing: Mapping[int, Sequence[bytes]], timeout: float, round_: int
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Send nodes their messages of secure aggregation, and yield what each of them answers."""
        exchange = Exchange(grid, timeout)
        self.exchanges += bool(outgoing)
        messages = []
        for node_id, parts in outgoing.items():
            content = add_messages(RecordDict(), parts)
            messages.append(Message(content, node_id, SECURE, ttl=self.time_to_live, group_id=str(round_)))
            self._record(node_id, round_, "down", "secure", message_bytes(messages[-1]))
        exchange.push(messages)
        for reply in exchange.replies():
            node_id = exchange.node_of(reply)
            if reply.metadata.src_node_id == node_id:
                self._record(node_id, round_, "up", "secure", message_bytes(reply))
            yield node_id, _secure_messages(reply)

    def settle_traffic(self) -> None:
        """Record the bytes of nodes that never told a name under a stand-in."""
        for node_id in list(self._unnamed):
            self._flush(node_id)

    def _message(
        self, node_id: int, message_type: str, round_: int, config: ConfigRecord, *, evaluate: bool
    ) -> Message:
        frames, is_keyframe = self.downlink.lacking(self._members.version(node_id), round_)
        request = Request(
            round_, self._rounds, self._replica.version, self._replica.chain, self._replica.agreement.run, evaluate
        )
        content = request_records(request, frames, config)
        if node_id in self._secure:
            add_messages(content, [self._secure[node_id]])
        message = Message(content, node_id, message_type, ttl=self.time_to_live, group_id=str(round_))
        kind = "keyframe" if is_keyframe else _KINDS[message_type]
        self._record(node_id, round_, "down", kind, message_bytes(message))
        return message

    def _account(self, node_id: int, message: Message, round_: int) -> Reply | None:
        """Count a reply and learn from it; returns it if the node is behind."""
        if message.metadata.src_node_id != node_id:
            return None  # made by Flower in the node's place: nothing came from the node
        kind = _KINDS.get(message.metadata.message_type, "other")
        reply = None
        if not message.has_error():
            try:
                reply = read_reply(message, with_update=False)
            except UpdateError:
                reply = None  # the one who takes the reply in will say what is wrong with it
        if reply is not None:
            self._members.learn_name(node_id, reply.name)
            self._flush(node_id)
            if reply.status is not Status.FAILED:
                self._members.versions[node_id] = reply.version
            if reply.facts:
                log.warning("%s: %s", reply.name, explain_facts(self._replica.agreement, reply.facts))
        self._record(node_id, round_, "up", kind, message_bytes(message))
        return reply if reply is not None and reply.status is Status.BEHIND else None

    def _catch_up(self, node_id: int, reply: Reply, round_: int) -> Message:
        self._caught_up.add(node_id)
        log.info("%s holds version %d and is sent what it lacks", reply.name, reply.version)
        first = self._sent[node_id]
        config = first.content.config_records["config"]
        return self._message(node_id, first.metadata.message_type, round_, config, evaluate=bool(config["evaluate"]))

    def _record(self, node_id: int, round_: int, direction: Direction, kind: TrafficKind, size: int) -> None:
        if node_id in self._members.names:
            self._ledger.record(
                round=round_, client=self._members.name(node_id), direction=direction, kind=kind, size=size
            )
        else:
            self._unnamed.setdefault(node_id, []).append((round_, direction, kind, size))

    def _flush(self, node_id: int) -> None:
        for round_, direction, kind, size in self._unnamed.pop(node_id, []):
            self._ledger.record(
                round=round_, client=self._members.name(node_id), direction=direction, kind=kind, size=size
            )


def _secure_messages(reply: Message) -> list[bytes]:
    """Messages in a reply; none if it is an error or unsound, which counts as no answer."""
    if reply.has_error():
        return []
    try:
        return read_messages(reply.content)
    except UpdateError as error:
        log.warning("a reply in secure aggregation is left out: %s", error)
        return []
