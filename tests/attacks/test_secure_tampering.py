"""Messages of secure aggregation that were changed, swapped, cut or replayed on their way: none of them passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from distro_fed.errors import BadReply, Refused, RoundAborted
from distro_fed.secure_aggregation.server_session import ServerSession
from tests.secure_aggregation.members import (
    POLICY,
    Federation,
    Tamper,
    fork,
    plain_sum,
    random_codes,
    refusal_of,
    run_round,
    stage_messages,
)

MEMBERS, COUNT = 3, 8
CODES = random_codes(MEMBERS, 8, COUNT)


@dataclass
class Stage:
    """A round just before a stage: who answers what to what."""

    federation: Federation
    server: ServerSession
    sent: dict[int, bytes]
    replies: dict[int, bytes]


@cache
def stages(round_: int = 1, attempt: int = 1, run: int = 7) -> tuple[Stage, ...]:
    federation = Federation(MEMBERS, replace(POLICY, max_attempts=9), run)
    server, out = federation.server(federation.proposal(round_, attempt, count=COUNT)), []
    for stage in range(5):
        sent = stage_messages(server, stage)
        before, server_before = federation.copy(), fork(server)
        replies = {member: federation.respond(member, data, CODES[member]) for member, data in sent.items()}
        out.append(Stage(before, server_before, sent, replies))
        for reply in replies.values():
            server.accept(reply)
    assert (server.result().sums == plain_sum(CODES, range(MEMBERS))).all()
    return tuple(out)


def refused_by_member(stage: Stage, member: int, message: bytes) -> bool:
    """Whether a member refuses, or answers what the server then refuses."""
    federation = stage.federation.copy()
    try:
        reply = federation.respond(member, message, CODES[member])
    except Refused:
        return True
    return bool(refusal_of(reply)) or refused_by_server(stage, reply)


def refused_by_server(stage: Stage, reply: bytes) -> bool:
    server = fork(stage.server)
    try:
        server.accept(reply)
    except BadReply:
        return True
    return False


def flipped(message: bytes) -> list[bytes]:
    """One message for each byte, with one bit of it changed."""
    return [
        message[:place] + bytes([message[place] ^ 1 << place % 8]) + message[place + 1 :]
        for place in range(len(message))
    ]


@pytest.mark.parametrize("number", range(5))
def test_every_byte_from_the_server(number: int) -> None:
    stage, cases = stages()[number], 0
    for changed in flipped(stage.sent[0]):
        assert refused_by_member(stage, 0, changed), cases
        cases += 1
    assert cases == [194, 552, 264, 72, 264][number]


@pytest.mark.parametrize("number", range(5))
def test_every_byte_from_a_member(number: int) -> None:
    stage, cases = stages()[number], 0
    for changed in flipped(stage.replies[1]):
        assert refused_by_server(stage, changed), cases
        cases += 1
    assert cases == [200, 296, 114, 104, 232][number]


@pytest.mark.parametrize("number", range(5))
def test_cut_and_longer(number: int) -> None:
    stage, cases = stages()[number], 0
    for length in range(len(stage.sent[0])):
        assert refused_by_member(stage, 0, stage.sent[0][:length])
        cases += 1
    for length in range(len(stage.replies[1])):
        assert refused_by_server(stage, stage.replies[1][:length])
        cases += 1
    for more in (b"\0", b"\xff" * 64, stage.sent[0]):
        assert refused_by_member(stage, 0, stage.sent[0] + more)
        assert refused_by_server(stage, stage.replies[1] + more)
        cases += 2
    assert cases == len(stage.sent[0]) + len(stage.replies[1]) + 6


OTHERS = {"round": {"round_": 2}, "attempt": {"attempt": 2}, "run": {"run": 8}}


@pytest.mark.parametrize("other", OTHERS)
def test_replayed_from_elsewhere(other: str) -> None:
    """Every message of another round, attempt or run, at every stage of this one."""
    cases = 0
    for number, stage in enumerate(stages()):
        for elsewhere in stages(**OTHERS[other]):
            for member in range(MEMBERS):
                assert refused_by_server(stage, elsewhere.replies[member])
                cases += 1
        for later, elsewhere in enumerate(stages(**OTHERS[other])):
            # a new proposal is no replay, unless its run is another one
            if later > 0 or (number, other) == (0, "run"):
                assert refused_by_member(stage, 0, elsewhere.sent[0])
                cases += 1
    assert cases >= 5 * 5 * MEMBERS + 20


def test_replayed_from_the_same_attempt() -> None:
    cases = 0
    for number, stage in enumerate(stages()):
        for other_number, other in enumerate(stages()):
            if other_number == number:
                continue
            for member in range(MEMBERS):
                assert refused_by_server(stage, other.replies[member])
                cases += 1
            # the survivor set before any vector, the keys after the shares, ...
            if (number, other_number) != (0, 0) and number > 0:
                assert refused_by_member(stage, 0, other.sent[0])
                cases += 1
    assert cases == 20 * MEMBERS + 16


def test_sent_to_the_wrong_member() -> None:
    delivery = stages()[2]
    for member, other in ((0, 1), (1, 0), (2, 1)):
        assert refused_by_member(delivery, member, delivery.sent[other])


def test_sent_in_the_name_of_another() -> None:
    cases = 0
    for stage in stages():
        for member in range(MEMBERS):
            for name in {*range(MEMBERS), 200, 255} - {member}:
                reply = stage.replies[member]
                assert refused_by_server(stage, reply[:6] + bytes([name]) + reply[7:])
                cases += 1
    assert cases == 5 * MEMBERS * 4


def test_parts_of_two_replies_put_together() -> None:
    """Body of one and signature of another; also header of one and the rest of another."""
    cases = 0
    for stage in stages():
        one, other = stage.replies[0], stage.replies[1]
        for mixed in (one[:-64] + other[-64:], one[:40] + other[40:], other[:40] + one[40:]):
            assert refused_by_server(stage, mixed)
            cases += 1
    assert cases == 15


def test_twice() -> None:
    for stage in stages():
        server = fork(stage.server)
        server.accept(stage.replies[0])
        with pytest.raises(BadReply, match="not awaited"):
            server.accept(stage.replies[0])


def outcome(tamper: Tamper) -> str:
    """A whole round of five, in which something is changed on its way."""
    federation, codes = Federation(5), random_codes(5, 8, COUNT)
    try:
        result = run_round(federation, codes, server=federation.server(federation.proposal(count=COUNT)), tamper=tamper)
    except RoundAborted:
        return "aborted"
    np.testing.assert_array_equal(result.sums, plain_sum(codes, result.survivors))
    return "exact"


def test_a_round_in_which_one_message_is_changed_is_exact_or_aborts() -> None:
    """Here the round goes on: with one member less, or not at all, and never with another sum."""
    outcomes = []
    for place in range(40, 400, 23):
        for kind in range(1, 11):
            for victims in ({1}, {1, 3}):

                def tamper(
                    seen: int,
                    member: int,
                    data: bytes,
                    *,
                    kind: int = kind,
                    victims: set[int] = victims,
                    at: int = place,
                ) -> bytes:
                    if seen != kind or member not in victims:
                        return data
                    at = at % len(data)
                    return data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]

                if (place // 23 + kind) % 4 == 0:
                    outcomes.append((len(victims), outcome(tamper)))
    # one of five may fall out, two are too many for a threshold of four
    assert set(outcomes) == {(1, "exact"), (2, "aborted")}
    assert len(outcomes) == 80
