"""Code a sorted set of positions in ``[0, bound)`` as Golomb-Rice gaps.

A gap is the number of positions left out between one position and the next. With parameter ``r`` it is
sent as its ``r`` low bits and, in unary, the rest (Golomb 1966; Rice 1979). Each run of
:data:`GROUP` gaps has a parameter of its own, so dense and sparse stretches of a model both get short
codes. Three streams follow each other, each starting at a byte:

1. the parameters, 5 bits each (:mod:`~distro_fed.compression.bits`);
2. the low bits: those of all groups with parameter 0, then 1, and so on, packed apart for each parameter;
3. the unary parts: for every gap as many 0 bits as its high part says, then a 1, lowest bit of a byte first.

The number of positions is not part of the code: the caller knows it, and has bounded it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distro_fed.compression.bits import pack_bits, packed_size, unpack_bits
from distro_fed.errors import CorruptBody

#: gaps that share one Rice parameter: 5 bits over 512 gaps cost 0.01 bit each
GROUP = 512
_PARAMETER_BITS = 5
_LARGEST_PARAMETER = 2**_PARAMETER_BITS - 1


def encode_positions(positions: NDArray[np.int64]) -> bytes:
    """Code strictly increasing positions that are not negative.

    Parameters
    ----------
    positions : ndarray of int64, shape (k,)

    Raises
    ------
    ValueError
        If the positions are negative or not strictly increasing.
    """
    if positions.size == 0:
        return b""
    gaps = np.diff(positions, prepend=-1) - 1
    if int(gaps.min()) < 0:
        raise ValueError("positions must be strictly increasing and not negative")
    parameters = _choose_parameters(gaps)
    widths = _per_gap(parameters, gaps.size)
    low = gaps & ((1 << widths) - 1)
    high = gaps >> widths
    ends = np.cumsum(high + 1)
    unary = np.zeros(int(ends[-1]), np.uint8)
    unary[ends - 1] = 1
    parts = [pack_bits(parameters, _PARAMETER_BITS)]
    for width in np.flatnonzero(np.bincount(parameters)):
        parts.append(pack_bits(low[widths == width].astype(np.uint32), int(width)))
    parts.append(np.packbits(unary, bitorder="little").tobytes())
    return b"".join(parts)


def decode_positions(data: bytes | memoryview | NDArray[np.uint8], count: int, bound: int) -> NDArray[np.int64]:
    """Inverse of :func:`encode_positions`.

    Parameters
    ----------
    data : bytes-like
        Exactly the code, nothing before or after it.
    count : int
        Number of positions. Nothing of this size is allocated before the data is known to hold as many.
    bound : int
        All positions are below it; less than 2**62.

    Returns
    -------
    ndarray of int64, shape (count,)
        Strictly increasing, in ``[0, bound)``.

    Raises
    ------
    CorruptBody
        If the data is no code of ``count`` positions below ``bound``, or not the whole of it.
    """
    raw = np.frombuffer(data, np.uint8)
    if not 0 <= count <= min(bound, raw.size * 8):
        raise CorruptBody(f"{raw.size} bytes cannot hold {count} positions below {bound}")
    if count == 0:
        if raw.size:
            raise CorruptBody(f"{raw.size} bytes follow after no positions")
        return np.zeros(0, np.int64)
    groups = -(-count // GROUP)
    start = packed_size(groups, _PARAMETER_BITS)
    parameters = unpack_bits(raw[:start], groups, _PARAMETER_BITS)
    members = np.full(groups, GROUP)
    members[-1] = count - GROUP * (groups - 1)
    per_width = np.bincount(parameters, weights=members).astype(np.int64).tolist()
    unary_start = start + sum(packed_size(size, width) for width, size in enumerate(per_width))
    high = _decode_unary(raw[unary_start:], count, bound)

    widths = _per_gap(parameters, count)
    if np.any(high > (bound >> widths)):
        raise CorruptBody(f"a gap reaches beyond the bound {bound}")
    gaps = high << widths
    for width, size in enumerate(per_width):
        if width and size:
            end = start + packed_size(size, width)
            gaps[widths == width] |= unpack_bits(raw[start:end], size, width).astype(np.int64)
            start = end
    # A gap is below bound + 2**31, so the first sum past the bound is still exact and visible to max().
    positions = np.cumsum(gaps + 1) - 1
    if int(positions.max()) >= bound:
        raise CorruptBody(f"position {int(positions[np.argmax(positions >= bound)])} is not below {bound}")
    return positions


def _decode_unary(raw: NDArray[np.uint8], count: int, bound: int) -> NDArray[np.int64]:
    """High parts of the gaps; the stream must end with the byte that holds the last 1."""
    if raw.size == 0 or raw[-1] == 0:
        raise CorruptBody(f"the unary stream of {raw.size} bytes does not end with a gap")
    if raw.size > (bound + count + 7) // 8:
        raise CorruptBody(f"a unary stream of {raw.size} bytes is too long for {count} positions below {bound}")
    found = int.from_bytes(raw.tobytes(), "little").bit_count()
    if found != count:
        raise CorruptBody(f"the unary stream holds {found} gaps instead of {count}")
    ends = np.flatnonzero(np.unpackbits(raw, bitorder="little"))
    return np.diff(ends, prepend=-1) - 1


def _per_gap(parameters: NDArray[np.unsignedinteger], count: int) -> NDArray[np.int64]:
    return np.repeat(parameters.astype(np.int64), GROUP)[:count]


def _choose_parameters(gaps: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Shortest parameter of each group, found among the three around the estimate from its mean gap."""
    starts = np.arange(0, gaps.size, GROUP)
    sizes = np.diff(starts, append=gaps.size)
    mean = np.add.reduceat(gaps, starts) / sizes
    estimate = np.rint(np.log2(np.maximum(np.log(2) * (mean + 1), 1))).astype(np.int64)
    best = np.zeros(starts.size, np.int64)
    shortest = np.full(starts.size, np.iinfo(np.int64).max)
    for step in (-1, 0, 1):
        candidate = np.clip(estimate + step, 0, _LARGEST_PARAMETER)
        high = gaps >> _per_gap(candidate.astype(np.uint8), gaps.size)
        length = np.add.reduceat(high, starts) + candidate * sizes
        best = np.where(length < shortest, candidate, best)
        shortest = np.minimum(length, shortest)
    return best.astype(np.uint8)
