"""Orthonormal rows that everybody derives from a seed, without sending them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import SettingsError

#: the header of a frame has two bytes and a bit for the rank
LARGEST_RANK = 2**16


def public_rows(seed: str, size: int, rank: int) -> NDArray[np.float32]:
    """Random rows that are orthonormal by construction, without a factorisation whose last bits differ by machine.

    They are ``rank`` random rows of the orthonormal DCT-II of length ``size``, with columns in random order and
    random signs. The randomness is SHAKE-256 of the seed, which every platform computes alike.

    Parameters
    ----------
    seed : str
        All that the rows depend on, but for their number: the first rows of a larger rank are those of a smaller one.
    size : int
        Length of a row.
    rank : int
        Number of rows, at most ``size``.

    Returns
    -------
    ndarray of float32, shape (rank, size)
        ``rows @ rows.T`` is the identity up to rounding.
    """
    words = np.frombuffer(hashlib.shake_256(seed.encode()).digest(16 * size), "<u8").reshape(2, size)
    frequencies = np.argsort(words[0], kind="stable")[:rank]
    order = np.argsort(words[1], kind="stable")
    signs = 1.0 - 2.0 * (words[1] & 1)
    # exact integer phases: cos(pi m / (2 size)) has period 4 size
    phase = (2 * order + 1) * frequencies[:, None] % (4 * size)
    lengths = np.sqrt(np.where(frequencies == 0, 1.0, 2.0) / size)
    rows: NDArray[np.float64] = np.cos(np.pi / (2 * size) * phase) * lengths[:, None] * signs
    return rows.astype(np.float32)


def check_rank(rank: int, name: str = "rank", least: int = 1, largest: int = LARGEST_RANK) -> None:
    """Raise :class:`SettingsError` for a number of rows that a frame's header has no room for."""
    if not least <= rank <= largest:
        raise SettingsError(f"{name} is {rank}; use {least} to {largest}")
