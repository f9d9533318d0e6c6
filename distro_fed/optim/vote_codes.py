"""Byte codes of votes: of one peer (13 bits for the one coefficient of a chunk), and of the sum over peers.

One peer, ``C`` full chunks, ``k`` coefficients each::

    form     1 byte: 0 fixed, 1 gaps
    skipped  4 bytes: full chunks without any coefficient (form 0; else 0)
    count    8 bytes: votes, those of full chunks first
    signs    1 bit for each vote, 1 for positive
    places   form 0 only: 12 bits for each vote in a full chunk, ascending within it; k votes in every chunk not skipped
    rest     positions (:mod:`distro_fed.compression.positions`)
               form 0: numbers of the skipped chunks, then C + place in the pool of each vote there
               form 1: numbers of all votes

The shorter form is sent. With k = 1 that is the fixed one: 12 + 1 bits a chunk.

Sum over peers, for each coefficient that any of them voted on::

    peers    4 bytes, and 4 bytes for the id of each, ascending
    count    8 bytes: coefficients
    shared   8 bytes: those with more than one vote
    lengths  8 bytes each: of numbers, which, and votes
    signs    1 bit for each coefficient with one vote
    numbers  positions
    which    positions among the coefficients, of those that are shared
    votes    for each of these its votes minus 2, as gaps of positions
    positive how many of them are positive, as gaps of positions
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distro_fed.compression.bits import pack_bits, packed_size, unpack_bits
from distro_fed.compression.positions import decode_positions, encode_positions
from distro_fed.errors import CorruptBody
from distro_fed.optim.coefficient_order import CHUNK_VALUES, PLACE_BITS, CoefficientOrder
from distro_fed.optim.votes import Votes

_FIXED, _GAPS = 0, 1
_HEAD = struct.Struct("<BIQ")
_SUM_HEAD = struct.Struct("<QQQQQ")


def encode_votes(votes: Votes, order: CoefficientOrder, k: int) -> bytes:
    """Code the votes of one peer."""
    in_chunks = int(np.searchsorted(votes.numbers, order.chunks * CHUNK_VALUES))
    chunk, place = np.divmod(votes.numbers[:in_chunks], CHUNK_VALUES)
    per_chunk = np.bincount(chunk, minlength=order.chunks)
    signs = pack_bits(votes.positive > 0, 1)
    gaps = _HEAD.pack(_GAPS, 0, votes.numbers.size) + signs + encode_positions(votes.numbers)
    if not np.isin(per_chunk, (0, k)).all():
        return gaps
    skipped = np.flatnonzero(per_chunk == 0)
    pool = votes.numbers[in_chunks:] - order.chunks * (CHUNK_VALUES - 1)
    fixed = b"".join(
        (
            _HEAD.pack(_FIXED, skipped.size, votes.numbers.size),
            signs,
            pack_bits(place.astype(np.uint32), PLACE_BITS),
            encode_positions(np.concatenate((skipped, pool))),
        )
    )
    return min(fixed, gaps, key=len)


def decode_votes(body: bytes | memoryview, order: CoefficientOrder, k: int) -> Votes:
    """Inverse of :func:`encode_votes`.

    Raises
    ------
    CorruptBody
        If a rule of the code is broken, or a chunk or the pool holds more votes than ``k`` allows.
    """
    raw = np.frombuffer(body, np.uint8)
    if raw.size < _HEAD.size:
        raise CorruptBody(f"the body ends after {raw.size} bytes, within its head of {_HEAD.size}")
    form, skipped, count = _HEAD.unpack(raw[: _HEAD.size].tobytes())
    if form not in (_FIXED, _GAPS) or (form == _GAPS and skipped):
        raise CorruptBody(f"the body has form {form} and skips {skipped} chunks; forms are 0, and 1 without skipping")
    if skipped > order.chunks or count > order.limit(k):
        raise CorruptBody(
            f"the body claims {count} votes and {skipped} skipped chunks; k = {k} and the model allow at most "
            f"{order.limit(k)} and {order.chunks}"
        )
    signs_end = _HEAD.size + packed_size(count, 1)
    positive = unpack_bits(raw[_HEAD.size : signs_end], count, 1) == 1
    if form == _GAPS:
        numbers = decode_positions(raw[signs_end:], count, order.layout.numel)
    else:
        numbers = _decode_fixed(raw[signs_end:], skipped, count, order, k)
    return Votes.of_one_peer(_check_shares(numbers, order, k), positive)


def _decode_fixed(
    raw: NDArray[np.uint8], skipped: int, count: int, order: CoefficientOrder, k: int
) -> NDArray[np.int64]:
    in_chunks = (order.chunks - skipped) * k
    in_pool = count - in_chunks
    if in_pool < 0:
        raise CorruptBody(f"{count} votes are fewer than k = {k} in each of {order.chunks - skipped} chunks")
    places_end = packed_size(in_chunks, PLACE_BITS)
    places = unpack_bits(raw[:places_end], in_chunks, PLACE_BITS).astype(np.int64)
    rest = decode_positions(raw[places_end:], skipped + in_pool, order.chunks + order.pool)
    if int(np.searchsorted(rest, order.chunks)) != skipped:
        raise CorruptBody(f"the body does not name the {skipped} chunks that it skips")
    chunks = np.delete(np.arange(order.chunks), rest[:skipped])
    numbers = np.repeat(chunks * CHUNK_VALUES, k) + places
    if numbers.size and int(np.diff(numbers, prepend=-1).min()) < 1:
        raise CorruptBody("the places of a chunk are not strictly increasing")
    return np.concatenate((numbers, rest[skipped:] + order.chunks * (CHUNK_VALUES - 1)))


def _check_shares(numbers: NDArray[np.int64], order: CoefficientOrder, k: int) -> NDArray[np.int64]:
    """Nothing but the numbers, if no chunk and not the pool has more than its share."""
    in_chunks = int(np.searchsorted(numbers, order.chunks * CHUNK_VALUES))
    if numbers.size - in_chunks > order.pool_share(k):
        raise CorruptBody(f"{numbers.size - in_chunks} votes in the pool; k = {k} allows {order.pool_share(k)}")
    chunk = numbers[:in_chunks] // CHUNK_VALUES
    crowded = np.flatnonzero(chunk[k:] == chunk[:-k]) if in_chunks > k else np.zeros(0, np.int64)
    if crowded.size:
        raise CorruptBody(f"chunk {int(chunk[crowded[0]])} has more than k = {k} votes")
    return numbers


@dataclass(frozen=True, slots=True)
class VoteSum:
    """Votes of several peers together, and whose they are.

    Attributes
    ----------
    peers : tuple of int
        Ids, ascending.
    votes : Votes
    """

    peers: tuple[int, ...]
    votes: Votes


def encode_sum(total: VoteSum) -> bytes:
    """Code the sum of the votes of several peers."""
    votes = total.votes
    cast = votes.positive + votes.negative
    shared = np.flatnonzero(cast > 1)
    parts = [
        encode_positions(votes.numbers),
        encode_positions(shared),
        _encode_counts(cast[shared] - 2),
        _encode_counts(votes.positive[shared]),
    ]
    peers = np.array(total.peers, "<u4")
    return b"".join(
        (
            len(peers).to_bytes(4, "little"),
            peers.tobytes(),
            _SUM_HEAD.pack(votes.numbers.size, shared.size, *map(len, parts[:3])),
            pack_bits(votes.positive[cast == 1] > 0, 1),
            *parts,
        )
    )


def decode_sum(body: bytes | memoryview, order: CoefficientOrder, k: int) -> VoteSum:
    """Inverse of :func:`encode_sum`.

    Raises
    ------
    CorruptBody
        If a rule of the code is broken, or there are more votes than these peers may cast.
    """
    raw = np.frombuffer(body, np.uint8)
    peers_end = 4 + 4 * int.from_bytes(raw[:4].tobytes(), "little")
    head_end = peers_end + _SUM_HEAD.size
    if raw.size < head_end:
        raise CorruptBody(f"the body ends after {raw.size} bytes, within its head of {max(head_end, 4)}")
    peers = np.frombuffer(raw[4:peers_end].tobytes(), "<u4").astype(np.int64)
    if not peers.size or int(np.diff(peers, prepend=-1).min()) < 1:
        raise CorruptBody(f"the ids of {peers.size} peers are not strictly increasing, or there is none")
    count, shared, *lengths = _SUM_HEAD.unpack(raw[peers_end:head_end].tobytes())
    limit = min(peers.size * order.limit(k), order.layout.numel)
    if not shared <= count <= limit or head_end + packed_size(count - shared, 1) + sum(lengths) > raw.size:
        raise CorruptBody(
            f"the body claims {count} coefficients, {shared} of them shared, in parts of {lengths} bytes; {peers.size} "
            f"peers may vote on {limit}, and {raw.size} bytes are here"
        )
    signs, *parts = np.split(raw[head_end:], np.cumsum([packed_size(count - shared, 1), *lengths]))
    numbers = decode_positions(parts[0], count, order.layout.numel)
    which = decode_positions(parts[1], shared, count)
    votes = _decode_counts(parts[2], shared, peers.size * shared + 1) + 2
    yes = _decode_counts(parts[3], shared, (peers.size + 1) * shared + 1)
    if shared and (int(votes.max()) > peers.size or int((votes - yes).min()) < 0):
        raise CorruptBody(f"a coefficient has more votes than there are peers ({peers.size}), or more positive ones")
    cast = np.ones(count, np.int64)
    cast[which] = votes
    positive = np.zeros(count, np.int64)
    positive[cast == 1] = unpack_bits(signs, count - shared, 1)
    positive[which] = yes
    return VoteSum(tuple(peers.tolist()), Votes(numbers, positive, cast - positive))


def _encode_counts(counts: NDArray[np.int64]) -> bytes:
    return encode_positions(np.cumsum(counts + 1) - 1)


def _decode_counts(raw: NDArray[np.uint8], count: int, bound: int) -> NDArray[np.int64]:
    return np.diff(decode_positions(raw, count, bound), prepend=-1) - 1
