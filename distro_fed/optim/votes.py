"""What peers say about coefficients, and their sum.

A peer sends no magnitudes: for each coefficient that it selects it votes for a positive or for a negative step.
Votes are whole numbers, so their sum is the same in every order and on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Coefficients are whole numbers of this part.
_ONE = 2**11


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

    def coefficients(self) -> NDArray[np.float64]:
        """Mean vote on each coefficient in units of 2**-11, rounded to whole numbers, so that sums of them are exact.

        The mean is over those who voted on it, as in the public DeMo code, not over all peers.
        """
        return np.rint(_ONE * (self.positive - self.negative) / (self.positive + self.negative))

    def digest(self) -> bytes:
        """16 bytes over all of it."""
        state = hashlib.blake2b(digest_size=16, person=b"df-votes")
        for values in (self.numbers, self.positive, self.negative):
            state.update(values.astype("<i8").tobytes())
        return state.digest()
