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

log = logging.getLogger("flwr")

#: messages by node
Outgoing = Mapping[int, bytes]
#: sends each node its messages and yields what each node answers
Ask = Callable[[Mapping[int, Sequence[bytes]]], Iterable[tuple[int, Sequence[bytes]]]]


class SecureRound:
    """One attempt at one round.

    Attributes
    ----------
    aborted : str
        Why the round has come to nothing; empty while it goes on.
    left_out : dict of int to str
        Nodes whose last reply was refused, with the reason.

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

    def begin(self, nodes: Iterable[int]) -> Outgoing:
        """Stage 0 goes to all nodes: which of them is which member is told by their signatures."""
        return dict.fromkeys(nodes, self._session.proposal_message)

    def keys(self) -> Outgoing:
        """Stage 1."""
        return self._to_all(self._session.keys)

    def deliveries(self, model: bytes) -> Outgoing:
        """Stage 2, for those who are still there."""
        return self._step(lambda: self._session.deliveries(model))

    def survivor_set(self) -> Outgoing:
        """Stage 3."""
        return self._to_all(self._session.survivor_set)

    def proof(self) -> Outgoing:
        """Stage 4."""
        return self._to_all(self._session.proof)

    def result(self) -> SecureSum | None:
        """The sum, or None if the round was aborted."""
        if self.aborted:
            return None
        try:
            return self._session.result()
        except RoundAborted as error:
            self._abort(error)
            return None

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
    for node_id, replies in ask(dict(_by_node(outgoing))):
        for reply in replies:
            for current in outgoing:
                if current.concerns(reply):
                    current.take(node_id, reply)


def _by_node(outgoing: Mapping[SecureRound, Outgoing]) -> Iterator[tuple[int, list[bytes]]]:
    nodes = dict.fromkeys(node_id for messages in outgoing.values() for node_id in messages)
    for node_id in nodes:
        yield node_id, [messages[node_id] for messages in outgoing.values() if node_id in messages]
