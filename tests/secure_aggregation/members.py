"""A federation in one process: real keys, real messages, ledgers in memory."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import BadReply, Refused
from distro_fed.secure_aggregation.client_session import Answer, ClientSession
from distro_fed.secure_aggregation.identity import Identity
from distro_fed.secure_aggregation.ledger import Entry, Ledger, check_entry
from distro_fed.secure_aggregation.messages import Kind, Message, parse, read_refusal
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.proposal import Proposal, make_proposal
from distro_fed.secure_aggregation.roster import Member, Roster
from distro_fed.secure_aggregation.server_session import SecureSum, ServerSession
from distro_fed.secure_aggregation.transcript import body_digest, signed_bytes

RUN = 7
LAYOUT, PLAN, MODEL = b"L" * 32, b"P" * 32, b"M" * 32
#: smallest federation that the tests use
POLICY = Policy(min_cohort=3, min_survivors=2, bits=(1, 24))


class MemoryLedger(Ledger):
    """The ledger's rules without its file."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.kept = list(entries)

    def check(self, entry: Entry) -> None:
        check_entry(entry, self.kept)

    def record(self, entry: Entry) -> None:
        check_entry(entry, self.kept)
        self.kept.append(entry)

    def entries(self) -> list[Entry]:
        return list(self.kept)


@cache
def identity(index: int) -> Identity:
    return Identity(f"member{index:03d}", hashlib.sha256(f"identity {index}".encode()).digest())


@cache
def roster(size: int) -> Roster:
    return Roster("federation", tuple(Member(identity(i).name, identity(i).public, i + 1) for i in range(size)))


Codes = Mapping[int, NDArray[np.unsignedinteger]]
Tamper = Callable[[Kind, int, bytes], bytes | None]


@dataclass
class Federation:
    """Members of one run; ``states`` is what each keeps between two messages."""

    size: int
    policy: Policy = POLICY
    run: int = RUN
    states: dict[int, bytes] = field(default_factory=dict)
    ledgers: dict[int, MemoryLedger] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for member in range(self.size):
            self.states.setdefault(member, b"")
            self.ledgers.setdefault(member, MemoryLedger())

    @property
    def roster(self) -> Roster:
        return roster(self.size)

    def client(self, member: int) -> ClientSession:
        """A new object every time: nothing is kept in memory."""
        return ClientSession(identity(member), self.roster, self.policy, self.ledgers[member], self.run)

    def proposal(self, round_: int = 1, attempt: int = 1, bits: int = 8, count: int = 8, **changes: object) -> Proposal:
        return make_proposal(
            self.roster, self.policy, run=self.run, round_=round_, attempt=attempt, bits=bits, count=count,
            layout=LAYOUT, plan=PLAN, **changes,
        )  # fmt: skip

    def server(self, proposal: Proposal | None = None) -> ServerSession:
        return ServerSession(self.roster, proposal or self.proposal(), self.policy.min_survivors)

    def respond(self, member: int, message: bytes, codes: NDArray[np.unsignedinteger] | None = None) -> bytes:
        """Answer any message, and keep the state."""
        answer = self.answer(member, message, codes)
        self.states[member] = answer.state
        return answer.reply

    def answer(self, member: int, message: bytes, codes: NDArray[np.unsignedinteger] | None = None) -> Answer:
        client, state = self.client(member), self.states[member]
        if parse(message).kind is not Kind.DELIVERY:
            return client.respond(message, state)
        delivery = client.receive_shares(message, state)
        assert codes is not None
        return client.send_masked(delivery, codes, model=MODEL, layout=LAYOUT, plan=PLAN)

    def copy(self) -> Federation:
        """An independent federation in the same state."""
        ledgers = {member: MemoryLedger(ledger.kept) for member, ledger in self.ledgers.items()}
        return Federation(self.size, self.policy, self.run, dict(self.states), ledgers)


def stage_messages(server: ServerSession, stage: int, model: bytes = MODEL) -> dict[int, bytes]:
    """What the server sends in a stage, for every member that it waits for."""
    if stage == 2:
        return server.deliveries(model)
    make = [lambda: server.proposal_message, server.keys, lambda: b"", server.survivor_set, server.proof][stage]
    message = make()
    return dict.fromkeys(sorted(server.missing), message)


def random_codes(size: int, bits: int, count: int, seed: int = 0) -> dict[int, NDArray[np.unsignedinteger]]:
    generator = np.random.default_rng(seed)
    return {member: generator.integers(0, 2**bits, count, dtype=np.uint32) for member in range(size)}


def run_round(
    federation: Federation,
    codes: Codes,
    *,
    server: ServerSession | None = None,
    drops: Mapping[int, int] | None = None,
    tamper: Tamper | None = None,
) -> SecureSum:
    """All five stages.

    ``drops[i] = s``: member ``i`` answers the stages below ``s`` and no other. ``tamper`` sees every message on its
    way, with its kind and the member that receives or sent it.
    """
    server = server or federation.server()
    change = tamper or (lambda kind, member, data: data)
    for stage in range(5):
        for member, sent in stage_messages(server, stage).items():
            if (drops or {}).get(member, 5) <= stage:
                continue
            message = change(parse(sent).kind, member, sent)
            if message is None:
                continue
            reply = _answer_or_none(federation, member, message, codes[member])
            if reply is None or (reply := change(parse(reply).kind, member, reply)) is None:
                continue
            try:
                server.accept(reply)
            except BadReply:
                continue
    return server.result()


def _answer_or_none(
    federation: Federation, member: int, message: bytes, codes: NDArray[np.unsignedinteger]
) -> bytes | None:
    try:
        return federation.respond(member, message, codes)
    except Refused:
        return None


def fork(server: ServerSession) -> ServerSession:
    """A server in the same state, to go on in two ways."""
    shared = {id(part): part for part in (server._roster, server._proposal)}
    return copy.deepcopy(server, shared)


def plain_sum(codes: Codes, members: Iterable[int], weights: Mapping[int, int] | None = None) -> NDArray[np.int64]:
    return np.sum([codes[member].astype(np.int64) * (weights or {}).get(member, 1) for member in members], axis=0)


def signed_message(kind: Kind, member: int, context: bytes, transcript: bytes, body: bytes) -> bytes:
    """What a member could send that does not keep to the protocol: the signature is sound, whatever the body is."""
    signature = identity(member).sign(signed_bytes(kind, member, transcript, body_digest(body)))
    return Message(kind, member, context, body, signature).to_bytes()


def up_to(federation: Federation, server: ServerSession, stage: int, codes: Codes | None = None) -> dict[int, bytes]:
    """Run the stages below ``stage`` with everybody; returns the messages of ``stage``."""
    codes = codes or random_codes(federation.size, 8, 8)
    for earlier in range(stage):
        for member, message in stage_messages(server, earlier).items():
            server.accept(federation.respond(member, message, codes[member]))
    return stage_messages(server, stage)


def refusal_of(reply: bytes) -> str:
    """The word of a refusal; empty if the reply is none."""
    message = parse(reply)
    return read_refusal(message)[0] if message.kind is Kind.REFUSAL else ""
