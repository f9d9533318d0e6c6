"""A member that is killed at any point and started again never gives a second masked vector in a round."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distro_fed.errors import BadReply, Refused, RoundAborted
from distro_fed.secure_aggregation.client_session import ClientSession
from distro_fed.secure_aggregation.identity import create_identity, format_key, ledger_path, read_identity
from distro_fed.secure_aggregation.ledger import Entry, Ledger
from distro_fed.secure_aggregation.messages import Kind, parse
from distro_fed.secure_aggregation.policy import create_policy
from distro_fed.secure_aggregation.proposal import make_proposal
from distro_fed.secure_aggregation.roster import add_member, create_roster, read_roster
from distro_fed.secure_aggregation.server_session import ServerSession
from tests.secure_aggregation.members import (
    LAYOUT,
    MODEL,
    PLAN,
    POLICY,
    RUN,
    Federation,
    MemoryLedger,
    identity,
    random_codes,
    stage_messages,
)

CODES = random_codes(4, 8, 8)
VICTIM = 0


class Killed(BaseException):
    """The process is gone."""


class DyingLedger(MemoryLedger):
    """Kills the process at its n-th record, just before or just after the line is on the disk."""

    def __init__(self, survivor: MemoryLedger, countdown: int, written: bool) -> None:
        self.kept, self.countdown, self.written = survivor.kept, countdown, written

    def record(self, entry: Entry) -> None:
        self.countdown -= 1
        if self.countdown >= 0:
            return super().record(entry)
        if self.written:
            super().record(entry)
        raise Killed


class Victim:
    """Member 0 with everything that it ever sent."""

    def __init__(self) -> None:
        self.federation = Federation(4)
        self.sent: list[bytes] = []

    def ask(self, message: bytes) -> bytes | None:
        try:
            reply = self.federation.respond(VICTIM, message, CODES[VICTIM])
        except Refused:
            return None
        self.sent.append(reply)
        return reply

    @property
    def masked(self) -> list[bytes]:
        return [reply for reply in self.sent if parse(reply).kind is Kind.MASKED_VECTOR]


def attempt(victim: Victim, number: int) -> list[bytes]:
    """A server that goes through an attempt, together with members who forget what they did before.

    Returns what it sent to the victim.
    """
    federation = victim.federation
    for member in range(1, 4):
        federation.ledgers[member] = MemoryLedger()
    server, sent = federation.server(federation.proposal(attempt=number)), []
    for stage in range(5):
        try:
            messages = stage_messages(server, stage)
        except RoundAborted:
            break
        for member, message in messages.items():
            if member == VICTIM:
                sent.append(message)
                reply = victim.ask(message)
            else:
                reply = federation.respond(member, message, CODES[member])
            try:
                server.accept(reply or b"")
            except BadReply:
                continue
    return sent


@pytest.mark.parametrize("stage", range(5))
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("state", ["old", "lost"])
def test_killed_between_any_two_stages(stage: int, written: bool, state: str) -> None:
    victim = Victim()
    federation, survivor = victim.federation, victim.federation.ledgers[VICTIM]
    federation.ledgers[VICTIM] = DyingLedger(survivor, stage, written)
    with pytest.raises(Killed):
        attempt(victim, 1)
    # restart: the ledger is what was on the disk, the state what was saved before the answer
    federation.ledgers[VICTIM] = MemoryLedger(survivor.kept)
    if state == "lost":
        federation.states[VICTIM] = b""
    already = len(victim.masked)
    assert already == (1 if stage > 2 else 0)
    for number in (1, 2, 3, 1):
        attempt(victim, number)
    consumed = already or (stage == 2 and written)
    assert len(victim.masked) == (already if consumed else 1)


def test_every_old_state_with_every_old_message() -> None:
    """The server keeps all messages, the machine falls back to any saved state, in any order."""
    victim = Victim()
    federation, states = victim.federation, [b""]
    server = federation.server()
    messages: list[bytes] = []
    for stage in range(5):
        for member, message in stage_messages(server, stage).items():
            reply = victim.ask(message) if member == VICTIM else federation.respond(member, message, CODES[member])
            server.accept(reply or b"")
            if member == VICTIM:
                messages.append(message)
        states.append(federation.states[VICTIM])
    answered = len(victim.sent)
    for state, message in itertools.product(states, messages):
        federation.states[VICTIM] = state
        victim.ask(message)
    refusals = victim.sent[answered:]
    assert {parse(reply).kind for reply in refusals} == {Kind.REFUSAL}
    assert len(victim.masked) == 1


PROCESS = """
import os, signal, sys
import numpy as np
from pathlib import Path
from distro_fed.secure_aggregation.client_session import ClientSession
from distro_fed.secure_aggregation.identity import ledger_path, read_identity
from distro_fed.secure_aggregation.ledger import Ledger
from distro_fed.secure_aggregation.policy import read_policy
from distro_fed.secure_aggregation.roster import read_roster

folder = Path(sys.argv[1])
identity = read_identity(folder / "identity.toml")
ledger = Ledger(ledger_path(folder / "identity.toml"))
session = ClientSession(identity, read_roster(folder / "roster.toml"), read_policy(folder / "policy.toml"), ledger, 7)
delivery = session.receive_shares((folder / "message").read_bytes(), (folder / "state").read_bytes())
sync = os.fsync
def fsync(descriptor):
    sync(descriptor)
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
session.send_masked(delivery, np.zeros(8, np.uint8), model=b"M" * 32, layout=b"L" * 32, plan=b"P" * 32)
"""


def test_a_real_process_that_is_killed_as_it_answers(tmp_path: Path) -> None:
    own = create_identity(tmp_path / "identity.toml", "aaa")
    create_roster(tmp_path / "roster.toml", "federation")
    for one in (own, *map(identity, range(3))):
        add_member(tmp_path / "roster.toml", one.name, format_key(one.public))
    create_policy(tmp_path / "policy.toml", POLICY)
    members, states = read_roster(tmp_path / "roster.toml"), dict.fromkeys(range(4), b"")
    assert members.index(own) == 0
    ledgers = {member: MemoryLedger() for member in range(1, 4)}

    def client(member: int) -> ClientSession:
        if member:
            return ClientSession(identity(member - 1), members, POLICY, ledgers[member], RUN)
        path = tmp_path / "identity.toml"
        return ClientSession(read_identity(path), members, POLICY, Ledger(ledger_path(path)), RUN)

    def proposal(number: int) -> ServerSession:
        made = make_proposal(
            members, POLICY, run=RUN, round_=1, attempt=number, bits=8, count=8, layout=LAYOUT, plan=PLAN
        )
        return ServerSession(members, made, 2)

    server = proposal(1)
    for message in (lambda: server.proposal_message, server.keys):
        sent = message()
        for member in range(4):
            answer = client(member).respond(sent, states[member])
            server.accept(answer.reply)
            states[member] = answer.state
    message = server.deliveries(MODEL)[0]
    (tmp_path / "message").write_bytes(message)
    (tmp_path / "state").write_bytes(states[0])
    killed = subprocess.run([sys.executable, "-c", PROCESS, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(Refused, match="round-consumed"):
        client(0).receive_shares(message, states[0])
    reply = client(0).respond(proposal(2).proposal_message, states[0]).reply
    assert b"round-consumed" in reply
