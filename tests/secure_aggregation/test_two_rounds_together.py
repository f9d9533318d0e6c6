"""Where the cohort is fixed, a round takes three exchanges instead of five."""

from __future__ import annotations

import numpy as np
import pytest

from distro_fed.errors import RoundAborted
from distro_fed.secure_aggregation.server_session import ServerSession
from tests.secure_aggregation.members import MODEL, Federation, plain_sum, random_codes, refusal_of

MEMBERS = 4


def exchange(federation: Federation, parts: list[tuple[ServerSession, bytes]]) -> None:
    """One message with parts for several rounds to each member, and one reply."""
    for member in range(MEMBERS):
        replies, federation.states[member] = federation.client(member).respond_all(
            [message for _, message in parts], federation.states[member]
        )
        for (server, _), reply in zip(parts, replies, strict=True):
            server.accept(reply)


def deliver(federation: Federation, server: ServerSession, codes: dict[int, np.ndarray]) -> None:
    for member, message in server.deliveries(MODEL).items():
        server.accept(federation.respond(member, message, codes[member]))


def test_three_exchanges_a_round() -> None:
    federation, rounds = Federation(MEMBERS), 4
    codes = {round_: random_codes(MEMBERS, 8, 8, seed=round_) for round_ in range(1, rounds + 1)}
    servers = {round_: federation.server(federation.proposal(round_)) for round_ in codes}
    exchanges = 2
    exchange(federation, [(servers[1], servers[1].proposal_message)])
    exchange(federation, [(servers[1], servers[1].keys())])
    for round_ in range(1, rounds):
        ending, beginning = servers[round_], servers[round_ + 1]
        deliver(federation, ending, codes[round_])
        exchange(federation, [(ending, ending.survivor_set()), (beginning, beginning.proposal_message)])
        exchange(federation, [(ending, ending.proof()), (beginning, beginning.keys())])
        exchanges += 3
        np.testing.assert_array_equal(ending.result().sums, plain_sum(codes[round_], range(MEMBERS)))
    assert exchanges == 2 + 3 * (rounds - 1)
    assert {len(ledger.kept) for ledger in federation.ledgers.values()} == {5 * (rounds - 1) + 2}


def test_the_next_round_goes_on_if_this_one_fails() -> None:
    federation, codes = Federation(MEMBERS), random_codes(MEMBERS, 8, 8)
    first, second = (federation.server(federation.proposal(round_)) for round_ in (1, 2))
    exchange(federation, [(first, first.proposal_message)])
    exchange(federation, [(first, first.keys())])
    deliver(federation, first, codes)
    survivor_set = first.survivor_set()
    for member in range(MEMBERS):
        # the first round's part is lost on its way
        replies, federation.states[member] = federation.client(member).respond_all(
            [survivor_set[:-1], second.proposal_message], federation.states[member]
        )
        assert refusal_of(replies[0]) == "malformed"
        second.accept(replies[1])
    with pytest.raises(RoundAborted):
        first.proof()
    exchange(federation, [(second, second.keys())])
    deliver(federation, second, codes)
    exchange(federation, [(second, second.survivor_set())])
    exchange(federation, [(second, second.proof())])
    np.testing.assert_array_equal(second.result().sums, plain_sum(codes, range(MEMBERS)))
