"""How much a member's update counts in the mean.

A member multiplies its values by its weight over the largest one before they are rounded, so that the codes of all
members have one range; the sum is divided by the sum of these shares. One bit a value has only signs, which a factor
does not change: there, all members count the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.roster import Roster


class Weighting(IntEnum):
    """Numbers stand in proposals, names in policies."""

    #: every member counts the same
    UNIFORM = 0
    #: weights from the roster, known to all
    ROSTER = 1
    #: each member's own weight, of which only the sum becomes known
    MASKED = 2

    @property
    def word(self) -> str:
        """Name in a policy file."""
        return self.name.lower()

    @classmethod
    def from_word(cls, word: str) -> Weighting:
        """Inverse of :attr:`word`; ValueError if there is none."""
        for weighting in cls:
            if weighting.word == word:
                return weighting
        raise ValueError(f"{word!r} is not one of {', '.join(weighting.word for weighting in cls)}")


def roster_share(roster: Roster, cohort: Iterable[int], member: int) -> float:
    """Weight of a member over the largest weight in the cohort, 0 < share <= 1."""
    return roster.members[member].weight / max(roster.members[other].weight for other in cohort)


def roster_total(roster: Roster, cohort: Iterable[int], survivors: Iterable[int]) -> float:
    """Sum of :func:`roster_share` over the members in the sum."""
    largest = max(roster.members[other].weight for other in cohort)
    return sum(roster.members[member].weight for member in survivors) / largest


def masked_share(weight: int, cap: int) -> float:
    """A member's own weight over the cap.

    Raises
    ------
    EncodingError
        If the weight is not in 1..cap: a larger one would make the sum wrong.
    """
    if not 1 <= weight <= cap:
        raise EncodingError(
            f"weight {weight} is not in 1..{cap}, the range that members agreed on; raise weight-cap in all policies"
        )
    return weight / cap
