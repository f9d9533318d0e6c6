"""What peers say about coefficients, and their sum.

A peer sends no magnitudes: for each coefficient that it selects it votes for a positive or for a negative step.
Votes are whole numbers, so their sum is the same in every order and on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: how votes become a coefficient
Rule = Literal["mean", "sum"]
RULES: tuple[Rule, ...] = ("mean", "sum")
_MEAN_ONE = 2**11


@dataclass(frozen=True, slots=True)
class Votes:
    """Votes of one or more peers.

    Attributes
    ----------
    numbers : ndarray of int64, shape (count,)
        Coefficients, strictly increasing, numbered by :class:`~distro_fed.optim.coefficient_order.CoefficientOrder`.
    positive, negative : ndarray of int64, shape (count,)
        Peers that voted for each sign; their sum is at least 1.
    """

    numbers: NDArray[np.int64]
    positive: NDArray[np.int64]
    negative: NDArray[np.int64]

    @classmethod
    def of_one_peer(cls, numbers: NDArray[np.int64], positive: NDArray[np.bool_]) -> Votes:
        """One vote for each coefficient."""
        return cls(numbers, positive.astype(np.int64), (~positive).astype(np.int64))

    @classmethod
    def total(cls, parts: Sequence[Votes]) -> Votes:
        """Sum over peers."""
        numbers = np.concatenate([part.numbers for part in parts])
        order = np.argsort(numbers, kind="stable")  # merges the sorted parts
        numbers = numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        if not starts.size:
            return cls(numbers, numbers, numbers)
        sums = (
            np.add.reduceat(np.concatenate([getattr(part, side) for part in parts])[order], starts)
            for side in ("positive", "negative")
        )
        return cls(numbers[starts], *sums)

    def coefficients(self, rule: Rule) -> NDArray[np.float64]:
        """Aggregated coefficients up to a positive factor, as whole numbers, so that sums of them are exact.

        ``mean`` divides by the peers that voted on the coefficient, as the public DeMo code does, and rounds to units
        of 2**-11; ``sum`` does not, so a coefficient that more peers chose weighs more.
        """
        difference = (self.positive - self.negative).astype(np.float64)
        return np.rint(difference * _MEAN_ONE / (self.positive + self.negative)) if rule == "mean" else difference

    def digest(self) -> bytes:
        """16 bytes over all of it."""
        state = hashlib.blake2b(digest_size=16, person=b"df-votes")
        for values in (self.numbers, self.positive, self.negative):
            state.update(values.astype("<i8").tobytes())
        return state.digest()
