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
    #: each member multiplies its codes by a weight of its own before they are masked, and only the sum of the weights
    #: is told; a proposal's bits have room for them
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


#: bits of a weight that is masked, and the largest; the least is 1
MASKED_BITS, LARGEST_MASKED = 4, 15


def own_weight(examples: int, unit: int) -> int:
    """Weight of a member where weights are masked: its training examples in units, rounded, from 1 to 15."""
    return min(max(round(examples / unit), 1), LARGEST_MASKED)


def proposed_bits(weighting: int, bits: int) -> int:
    """Bits of a value in the vector, for codes of ``bits`` bits."""
    return bits + MASKED_BITS if weighting == Weighting.MASKED else bits


def total_weight(weighting: int, roster: Roster, members: Iterable[int]) -> int:
    """Sum of the weights of some members by which the protocol multiplies; those that are masked it does not see."""
    if weighting == Weighting.ROSTER:
        return sum(roster.members[member].weight for member in members)
    return len(tuple(members))
