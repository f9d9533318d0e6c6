"""The whole protocol gives the exact integer sum, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distro_fed.secure_aggregation.masks import BLOCK
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.rules import sum_width
from distro_fed.secure_aggregation.weighting import Weighting
from tests.secure_aggregation.members import (
    POLICY,
    Federation,
    plain_sum,
    random_codes,
    refusal_of,
    roster,
    run_round,
)

COUNTS = (1, 7, 8, 9, 100)


def cases() -> list[tuple[int, int]]:
    """Every width 4..24 for small cohorts; for larger ones every third, each of them for two sizes."""
    return [
        (members, width)
        for members in range(3, 13)
        for width in range(4, 25)
        if width > (members - 1).bit_length() and (members <= 5 or (width + members) % 3 == 0)
    ]


@pytest.mark.parametrize("members", range(3, 13))
def test_every_width(members: int) -> None:
    tried = 0
    for number, (_, width) in enumerate(case for case in cases() if case[0] == members):
        bits = width - (members - 1).bit_length()
        assert sum_width(bits, members) == width
        count = COUNTS[number % len(COUNTS)]
        codes = random_codes(members, bits, count, seed=number)
        if number % 4 == 1:
            codes = {member: np.full(count, 2**bits - 1, np.uint32) for member in codes}
        federation = Federation(members)
        server = federation.server(federation.proposal(bits=bits, count=count))
        result = run_round(federation, codes, server=server)
        assert result.survivors == tuple(range(members))
        np.testing.assert_array_equal(result.sums, plain_sum(codes, range(members)))
        tried += 1
    assert tried >= 6


def test_a_vector_of_several_blocks_with_one_who_drops_out() -> None:
    federation, count = Federation(5), BLOCK + 3
    codes = random_codes(5, 8, count)
    server = federation.server(federation.proposal(count=count))
    result = run_round(federation, codes, server=server, drops={2: 2})
    assert result.survivors == (0, 1, 3, 4)
    np.testing.assert_array_equal(result.sums, plain_sum(codes, result.survivors))
    assert result.sums.dtype == np.uint16


@pytest.mark.parametrize(("weights", "width"), [((1, 1, 1), 10), ((5, 1, 2), 11), ((1, 2**24 - 3, 1), 32)])
def test_weights(monkeypatch: pytest.MonkeyPatch, weights: tuple[int, ...], width: int) -> None:
    heavy = Roster(
        "federation", tuple(replace(one, weight=w) for one, w in zip(roster(3).members, weights, strict=True))
    )
    monkeypatch.setattr(Federation, "roster", heavy)
    federation = Federation(3, replace(POLICY, weights=(Weighting.ROSTER,)))
    proposal = federation.proposal(weighting=Weighting.ROSTER, count=50)
    assert proposal.width == width
    codes = random_codes(3, 8, 50)
    codes[1][:25] = 255
    result = run_round(federation, codes, server=federation.server(proposal))
    assert result.weight == sum(weights)
    np.testing.assert_array_equal(result.sums, plain_sum(codes, range(3), dict(enumerate(weights))))


def test_weights_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = Roster("federation", tuple(replace(one, weight=2**23) for one in roster(3).members))
    monkeypatch.setattr(Federation, "roster", heavy)
    federation = Federation(3, replace(POLICY, weights=(Weighting.ROSTER,)))
    proposal = federation.proposal(weighting=Weighting.ROSTER)
    assert proposal.width == 33
    assert refusal_of(federation.respond(0, proposal.to_bytes())) == "wrong-width"


def test_who_is_who_does_not_matter() -> None:
    codes = random_codes(4, 8, 50)
    one = run_round(Federation(4), codes, server=Federation(4).server(Federation(4).proposal(count=50)))
    turned = {(member + 1) % 4: vector for member, vector in codes.items()}
    other = run_round(Federation(4), turned, server=Federation(4).server(Federation(4).proposal(count=50)))
    np.testing.assert_array_equal(one.sums, other.sums)


def test_a_cohort_that_is_a_part_of_the_roster() -> None:
    federation = Federation(7, replace(POLICY, fixed_cohort=False))
    server = federation.server(federation.proposal(cohort=(1, 2, 4, 6)))
    codes = random_codes(7, 8, 8)
    result = run_round(federation, codes, server=server)
    assert result.survivors == (1, 2, 4, 6)
    np.testing.assert_array_equal(result.sums, plain_sum(codes, result.survivors))
