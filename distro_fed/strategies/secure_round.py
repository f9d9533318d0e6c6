"""One round of secure aggregation as the server sees it: which node is which member, and who is left behind why.

The protocol itself is in :mod:`distro_fed.secure_aggregation`. Here its messages meet nodes: every step gives messages
by node, and takes the replies. A step that finds too few members ends the round and no other step does anything then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from distro_fed.errors import BadReply, RoundAborted
from distro_fed.secure_aggregation.messages import HEADER_BYTES
from distro_fed.secure_aggregation.proposal import Proposal
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.server_session import SecureSum, ServerSession
from distro_fed.strategies.intake import Refused

log = logging.getLogger("flwr")

#: messages by node
Outgoing = Mapping[int, bytes]
#: sends each node its messages and yields what each node answers, or why it does not
Ask = Callable[[Mapping[int, Sequence[bytes]]], Iterable[tuple[int, Sequence[bytes] | Refused]]]


class SecureRound:
    """One attempt at one round.

    Attributes
    ----------
    aborted : str
        Why the round has come to nothing; empty while it goes on.
    left_out : dict of int to str
        Nodes whose last reply was refused or did not come, with the reason.

    Parameters
    ----------
    roster : Roster
    proposal : Proposal
    min_survivors : int
    """

    def __init__(self, roster: Roster, proposal: Proposal, min_survivors: int) -> None:
        self.proposal = proposal
        self.aborted = ""
        self.left_out: dict[int, str] = {}
        self._roster = roster
        self._session = ServerSession(roster, proposal, min_survivors)
        self._nodes: dict[int, int] = {}
        self._keys_sent = False
        self._reminders: dict[int, bytes] = {}

    def begin(self, nodes: Iterable[int]) -> Outgoing:
        """Stage 0 goes to all nodes: which of them is which member is told by their signatures."""
        return dict.fromkeys(nodes, self._session.proposal_message)

    def keys(self) -> Outgoing:
        """Stage 1."""
        messages = self._to_all(self._session.keys)
        self._keys_sent = not self.aborted
        return messages

    @property
    def is_agreed(self) -> bool:
        """Whether stages 0 and 1 are over, and enough members have answered in both."""
        return self._keys_sent and not self.aborted and self._session.has_enough

    @property
    def lacks_shares(self) -> bool:
        """Whether stage 0 went well and stage 1 did not: nobody has sent a vector, so it can be tried once more."""
        return self._keys_sent and not self.aborted and not self._session.has_enough

    def answered(self) -> dict[int, int]:
        """Members that have answered the last message, with their nodes."""
        return {member: node for member, node in self._nodes.items() if member not in self._session.missing}

    def deliveries(self, model: bytes) -> Outgoing:
        """Stage 2, for those who are still there."""
        return self._step(lambda: self._session.deliveries(model))

    def survivor_set(self) -> Outgoing:
        """Stage 3."""
        for member in () if self.aborted else self._session.missing:
            self.left_out.setdefault(self._nodes[member], "no answer in time")
        messages = self._to_all(self._session.survivor_set)
        self._reminders = dict(messages)
        return messages

    def proof(self) -> Outgoing:
        """Stage 4."""
        messages = self._to_all(self._session.proof)
        self._reminders = {node: message for node, message in self._reminders.items() if node not in messages}
        return messages

    def result(self) -> SecureSum | None:
        """The sum, or None if the round was aborted."""
        if self.aborted:
            return None
        try:
            found = self._session.result()
        except RoundAborted as error:
            self._abort(error)
            return None
        for member in found.survivors:
            # it was lost on the way here, and its vector was not
            self.left_out.pop(self._nodes[member], None)
        return found

    def reminders(self) -> Outgoing:
        """The set of survivors, for those who have not answered it: they must learn that they are in the sum."""
        return self._reminders

    def concerns(self, reply: bytes) -> bool:
        """Whether a reply says that it belongs to this attempt."""
        return reply[HEADER_BYTES - len(self.proposal.context) : HEADER_BYTES] == self.proposal.context

    def take(self, node_id: int, reply: bytes) -> bool:
        """Take a reply to the last step; an unsound one is noted and counts as none."""
        if self.aborted:
            return False
        try:
            member = self._session.accept(reply)
        except BadReply as error:
            log.warning("round %d: %s", self.proposal.round, error)
            self.left_out[node_id] = str(error)
            return False
        self._nodes[member] = node_id
        self.left_out.pop(node_id, None)
        return True

    def leave_out(self, node_id: int, reason: str) -> None:
        """Note why a node has not answered."""
        log.warning("round %d: node %d: %s", self.proposal.round, node_id, reason)
        self.left_out[node_id] = reason

    def abandon(self, reason: str) -> None:
        """Do not go on with this attempt."""
        self._abort(RoundAborted(reason))

    def names(self) -> dict[int, str]:
        """For every node that has proved to be a member, which one."""
        return {node_id: self._roster.members[member].name for member, node_id in self._nodes.items()}

    def _to_all(self, step: Callable[[], bytes]) -> Outgoing:
        """The same message for every member that answered the step before."""
        return self._step(lambda: dict.fromkeys(self._nodes, step()))

    def _step(self, step: Callable[[], Mapping[int, bytes]]) -> Outgoing:
        if self.aborted:
            return {}
        try:
            by_member = step()
        except RoundAborted as error:
            self._abort(error)
            return {}
        # after the step the session awaits those, and only those, that have come so far
        return {
            self._nodes[member]: message for member, message in by_member.items() if member in self._session.missing
        }

    def _abort(self, error: RoundAborted) -> None:
        self.aborted = str(error)
        log.warning("round %d: secure aggregation comes to nothing: %s", self.proposal.round, error)


def agree(ask: Ask, beginning: SecureRound, nodes: Iterable[int]) -> None:
    """Stages 0 and 1 by themselves: two exchanges."""
    talk(ask, {beginning: beginning.begin(nodes)})
    talk(ask, {beginning: beginning.keys()})


def finish(ask: Ask, ending: SecureRound, beginning: SecureRound | None, nodes: Iterable[int]) -> SecureSum | None:
    """Stages 3 and 4 of a round, together with stages 0 and 1 of the next one: two exchanges for both."""
    first = {ending: ending.survivor_set()}
    if beginning is not None:
        first[beginning] = beginning.begin(nodes)
    talk(ask, first)
    second = {ending: ending.proof()}
    if beginning is not None:
        second[beginning] = beginning.keys()
    talk(ask, second)
    return ending.result()


def talk(ask: Ask, outgoing: Mapping[SecureRound, Outgoing]) -> None:
    """One exchange: each node gets the messages of all rounds at once, and each reply goes to the round it names."""
    for node_id, answer in ask(dict(_by_node(outgoing))):
        for current in outgoing:
            if isinstance(answer, Refused):
                if node_id in outgoing[current]:
                    current.leave_out(node_id, answer.reason)
                continue
            for reply in answer:
                if current.concerns(reply):
                    current.take(node_id, reply)


def _by_node(outgoing: Mapping[SecureRound, Outgoing]) -> Iterator[tuple[int, list[bytes]]]:
    nodes = dict.fromkeys(node_id for messages in outgoing.values() for node_id in messages)
    for node_id in nodes:
        yield node_id, [messages[node_id] for messages in outgoing.values() if node_id in messages]
