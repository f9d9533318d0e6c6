from __future__ import annotations

import random
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.optim.votes import Votes


def votes_of(signs: dict[int, bool]) -> Votes:
    numbers = np.array(sorted(signs), np.int64)
    return Votes.of_one_peer(numbers, np.array([signs[number] for number in sorted(signs)], bool))


def as_dict(votes: Votes) -> dict[int, tuple[int, int]]:
    return {
        int(number): (int(yes), int(no))
        for number, yes, no in zip(votes.numbers, votes.positive, votes.negative, strict=True)
    }


peers = st.lists(st.dictionaries(st.integers(0, 20), st.booleans(), max_size=8), min_size=1, max_size=5)


@settings(deadline=None)
@given(peers, st.randoms(use_true_random=False))
def test_the_total_is_the_same_in_every_order(signs: list[dict[int, bool]], shuffle: random.Random) -> None:
    yes = Counter(number for vote in signs for number, sign in vote.items() if sign)
    no = Counter(number for vote in signs for number, sign in vote.items() if not sign)
    expected = {number: (yes[number], no[number]) for number in sorted(set(yes) | set(no))}
    parts = [votes_of(vote) for vote in signs]
    total = Votes.total(parts)
    assert as_dict(total) == expected
    shuffle.shuffle(parts)
    assert Votes.total(parts).digest() == total.digest()
    middle = len(parts) // 2
    if middle:
        halves = [Votes.total(parts[:middle]), Votes.total(parts[middle:])]
        assert Votes.total(halves).digest() == total.digest()


def test_the_mean_is_over_those_who_voted() -> None:
    total = Votes.total([votes_of({1: True, 2: True}), votes_of({1: True, 2: False}), votes_of({1: False, 3: False})])
    assert as_dict(total) == {1: (2, 1), 2: (1, 1), 3: (0, 1)}
    assert total.coefficients().tolist() == [683, 0, -2048]  # 1/3, 0 and -1 in units of 2**-11


def test_the_digest_is_of_all_three() -> None:
    base = votes_of({4: True})
    others = [votes_of({5: True}), votes_of({4: False}), Votes.total([base, base]), votes_of({})]
    assert len({votes.digest() for votes in [base, *others]}) == 5
