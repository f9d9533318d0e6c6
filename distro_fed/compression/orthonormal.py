"""Orthonormal rows out of any rows, with the same bits on every machine.

Members derive a basis from public values that are equal bit for bit; were their bases to differ in one last bit, their
replicas would part. A QR of a linear algebra library does differ: by processor, number of threads and version. Here

* every operation is an elementwise float64 sum, difference, product, quotient or square root, each of which IEEE 754
  defines to the last bit, in an order that this file fixes (sums are taken by halving). Equal rows in give equal rows
  out on every machine that follows IEEE 754;
* the result is rounded to 12 significant bits besides. On a machine that breaks the rule (one that flushes denormal
  numbers to zero, say) a difference in the last of 53 bits vanishes in it almost surely: it survives in one of 2**40
  values. The rows are orthonormal to about 2**-12 then, which a projection does not notice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distro_fed.compression.public_rows import public_rows
from distro_fed.errors import SettingsError

#: a row that has less than this share of its energy outside the rows before it is replaced
_DEPENDENT = 2.0**-20
#: float32 has 24 significant bits, of which these are cleared
_CLEARED_BITS = 12


def orthonormal_rows(rows: NDArray[np.floating], spare: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    """Gram-Schmidt, each row twice.

    Parameters
    ----------
    rows : ndarray of float32 or float64, shape (rank, size)
        Finite, any scale; rank at most size.
    spare : callable
        Returns orthonormal rows of the same shape. A row that depends on those before it (zeros do) is replaced by
        the first of them that does not: among the first ``j + 1`` spare rows there is always one that has ``1 / (j +
        1)`` of its energy outside any ``j`` rows.

    Returns
    -------
    ndarray of float32, shape (rank, size)
        Orthonormal up to rounding to 12 significant bits; row ``j`` spans with those before it what the first
        ``j + 1`` rows given do, but for those that were replaced.
    """
    made = np.zeros(rows.shape)
    for index, row in enumerate(rows):
        chosen = _remainder(row, made[:index])
        if chosen is None:
            others = (_remainder(other, made[:index]) for other in spare())
            chosen = next((other for other in others if other is not None), None)
        if chosen is None:
            raise SettingsError(f"{rows.shape[0]} orthonormal rows of length {rows.shape[1]} do not exist")
        made[index] = chosen
    return coarse(made)


def coarse(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """Round to 12 significant bits."""
    bits = values.astype(np.float32).view(np.uint32)
    half = np.uint32(1 << (_CLEARED_BITS - 1))
    mask = np.uint32(2**32 - 2**_CLEARED_BITS)
    return ((bits + half) & mask).view(np.float32)


def seeded_rows(name: str, size: int, rank: int, seed: int, version: int) -> NDArray[np.float32]:
    """Orthonormal rows for the first update, and in place of what an aggregated update does not determine."""
    return coarse(public_rows(f"distro-fed lowrank\0{seed}\0{version}\0{name}\0{size}", size, rank))


def _remainder(row: NDArray[np.floating], made: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """What of a row is orthogonal to all rows made so far, at length 1; None if that is next to nothing."""
    rest = row.astype(np.float64)
    energy = _sum_by_halving(rest * rest)
    for _ in range(2):  # once leaves what cancellation brings in; twice is enough (Parlett, 1980, section 6.9)
        inside = _sum_by_halving((made * rest).T)
        rest = rest - _sum_by_halving(made * inside[:, None])
    left = _sum_by_halving(rest * rest)
    if not left > _DEPENDENT * energy:
        return None
    return rest / np.sqrt(left)


def _sum_by_halving(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over the first axis, which is overwritten: the second half is added to the first until one is left."""
    count = values.shape[0]
    if count == 0:
        return np.zeros(values.shape[1:])
    while count > 1:
        half = (count + 1) // 2
        values[: count - half] += values[half:count]
        count = half
    total: NDArray[np.float64] = values[0]
    return total
