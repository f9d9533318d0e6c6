"""How much a member's update counts in the mean: what a proposal asks for and a policy allows."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from distro_fed.secure_aggregation.roster import Roster


class Weighting(IntEnum):
    """Numbers stand in proposals, names in policies."""

    #: every member counts the same
    UNIFORM = 0
    #: weights from the roster, known to all
    ROSTER = 1

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


def total_weight(weighting: int, roster: Roster, members: Iterable[int]) -> int:
    """Sum of the weights of some members; each multiplies its codes by its own."""
    if weighting == Weighting.ROSTER:
        return sum(roster.members[member].weight for member in members)
    return len(tuple(members))
