"""Every pattern of members who stop answering: the exact sum over the survivors, or an abort when the rule says so."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from distro_fed.errors import BadReply, RoundAborted
from distro_fed.secure_aggregation.rules import ServerModel
from distro_fed.secure_aggregation.server_session import ServerSession
from distro_fed.secure_aggregation.weighting import Weighting
from tests.secure_aggregation.members import (
    POLICY,
    Federation,
    fork,
    plain_sum,
    random_codes,
    run_round,
    stage_messages,
)

Point = tuple[Federation, ServerSession]
History = tuple[frozenset[int], ...]
#: survivors and sums, or the stage that could not go on
Outcome = tuple[tuple[int, ...], tuple[int, ...]] | int


def predicted(pattern: tuple[int, ...], malicious: bool, min_survivors: int) -> int | None:
    """Stage that aborts, by the rule alone: nobody comes back, and each stage needs its minimum."""
    n = len(pattern)
    t = n * 2 // 3 + 1 if malicious else n // 2 + 1
    for stage in range(5):
        left = sum(1 for last in pattern if last > stage)
        if left < (max(t, min_survivors) if stage < 3 else t):
            return stage
    return None


class Histories:
    """Runs each history of answers once, however many patterns share it.

    What a member answers depends on what was answered in the stages before and not on who else answers now.
    """

    def __init__(self, federation: Federation, server: ServerSession | None = None, count: int = 8) -> None:
        self.codes = random_codes(federation.size, 8, count, seed=federation.size)
        self.codes[0][:] = 255
        self.reached: dict[History, Point | Outcome] = {(): (federation, server or federation.server())}
        self.answered: dict[History, tuple[Federation, ServerSession, dict[int, bytes]] | Outcome] = {}

    def outcome(self, pattern: tuple[int, ...]) -> Point | Outcome:
        history: History = ()
        for stage in range(5):
            before = history
            history = (*history, frozenset(member for member, last in enumerate(pattern) if last > stage))
            if history not in self.reached:
                if before not in self.answered:
                    self.answered[before] = self.answers(self.reached[before], stage)
                self.reached[history] = self.accepted(self.answered[before], stage, history[-1])
        return self.reached[history]

    def answers(
        self, point: Point | Outcome, stage: int
    ) -> tuple[Federation, ServerSession, dict[int, bytes]] | Outcome:
        if isinstance(point, int):
            return point
        federation, server = point[0].copy(), point[1]
        try:
            messages = stage_messages(server, stage)
        except RoundAborted:
            return stage - 1
        return federation, server, {m: federation.respond(m, data, self.codes[m]) for m, data in messages.items()}

    def accepted(
        self,
        answers: tuple[Federation, ServerSession, dict[int, bytes]] | Outcome,
        stage: int,
        answering: frozenset[int],
    ) -> Point | Outcome:
        if isinstance(answers, int):
            return answers
        federation, server, replies = answers
        server = fork(server)
        for member in answering & replies.keys():
            server.accept(replies[member])
        if stage < 4:
            return federation, server
        try:
            result = server.result()
        except RoundAborted:
            return 4
        return result.survivors, tuple(result.sums.tolist())


@pytest.mark.parametrize(
    ("members", "malicious", "min_survivors", "exact_patterns"),
    [(4, True, 2, 21), (5, True, 2, 26), (4, False, 2, 21), (5, False, 2, 276), (5, True, 5, 11)],
)
def test_every_pattern(members: int, malicious: bool, min_survivors: int, exact_patterns: int) -> None:
    server = ServerModel.MALICIOUS if malicious else ServerModel.HONEST_BUT_CURIOUS
    policy = replace(POLICY, server=server, min_survivors=min_survivors)
    histories = Histories(Federation(members, policy))
    exact = aborted = 0
    for pattern in itertools.product(range(6), repeat=members):
        outcome = histories.outcome(pattern)
        expected = predicted(pattern, malicious, min_survivors)
        if expected is not None:
            assert outcome == expected, pattern
            aborted += 1
            continue
        survivors = tuple(member for member, last in enumerate(pattern) if last > 2)
        assert outcome == (survivors, tuple(plain_sum(histories.codes, survivors).tolist())), pattern
        exact += 1
    assert exact + aborted == 6**members
    assert exact == exact_patterns


def test_every_pattern_with_weights() -> None:
    federation = Federation(4, replace(POLICY, weights=(Weighting.ROSTER,)))
    weights = {0: 1, 1: 2, 2: 3, 3: 4}
    proposal = federation.proposal(weighting=Weighting.ROSTER)
    assert proposal.width == 8 + 4
    histories, exact = Histories(federation, federation.server(proposal)), 0
    for pattern in itertools.product(range(6), repeat=4):
        outcome = histories.outcome(pattern)
        expected = predicted(pattern, malicious=True, min_survivors=2)
        if expected is None:
            survivors = tuple(member for member, last in enumerate(pattern) if last > 2)
            expected = survivors, tuple(plain_sum(histories.codes, survivors, weights).tolist())
            exact += 1
        assert outcome == expected, pattern
    assert exact == 21


def test_a_pattern_without_the_shortcut() -> None:
    """One history is run on its own, to show that sharing histories changes nothing."""
    federation = Federation(5, replace(POLICY, server=ServerModel.HONEST_BUT_CURIOUS))
    codes = random_codes(5, 8, 8)
    result = run_round(federation, codes, drops={1: 2, 4: 4})
    assert result.survivors == (0, 2, 3, 4)
    np.testing.assert_array_equal(result.sums, plain_sum(codes, result.survivors))


def test_an_abort_says_who_is_missing() -> None:
    with pytest.raises(RoundAborted, match="2 of 3 members sent SHARES, 3 are needed; missing: member001"):
        run_round(Federation(3), random_codes(3, 8, 8), drops={1: 1})


def test_a_late_vector_is_not_taken() -> None:
    """Its sender's mask key may be rebuilt by then; its own mask still covers it."""
    federation, codes = Federation(5), random_codes(5, 8, 8)
    server, late = federation.server(), b""
    for stage in range(5):
        for member, message in stage_messages(server, stage).items():
            reply = federation.respond(member, message, codes[member])
            if stage == 2 and member == 3:
                late = reply
            else:
                server.accept(reply)
        if stage == 3:
            with pytest.raises(BadReply, match="MASKED_VECTOR while ACKNOWLEDGEMENT is awaited"):
                server.accept(late)
    assert server.result().survivors == (0, 1, 2, 4)
