"""How much a member's update counts in the mean: what a proposal asks for and a policy allows."""

from __future__ import annotations

from enum import IntEnum


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
