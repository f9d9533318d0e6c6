from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.layout import Layout, TensorSpec
from distro_fed.optim.coefficient_order import CHUNK_VALUES, CoefficientOrder
from distro_fed.optim.vote_codes import VoteSum, decode_sum, decode_votes, encode_sum, encode_votes
from distro_fed.optim.votes import Votes

ORDER = CoefficientOrder(Layout([TensorSpec("a", (256, 192)), TensorSpec("b", (300,)), TensorSpec("c", (64, 70))]))


def random_votes(order: CoefficientOrder, k: int, seed: int, *, skip: float = 0.0, thin: float = 0.0) -> Votes:
    """k in every chunk but those skipped; with ``thin`` some of them are missing."""
    rng = np.random.default_rng(seed)
    numbers = [
        chunk * CHUNK_VALUES + np.sort(rng.choice(CHUNK_VALUES, k, replace=False))
        for chunk in range(order.chunks)
        if rng.random() >= skip
    ]
    pool = order.pool_share(k)
    numbers.append(order.chunks * CHUNK_VALUES + np.sort(rng.choice(order.pool, pool, replace=False)))
    flat = np.concatenate(numbers).astype(np.int64)
    flat = flat[rng.random(flat.size) >= thin]
    return Votes.of_one_peer(flat, rng.random(flat.size) < 0.5)


@settings(deadline=None, max_examples=80)
@given(st.sampled_from([1, 2, 3, 8, 100]), st.integers(0, 2**32), st.floats(0, 1), st.sampled_from([0.0, 0.3]))
def test_round_trip_of_one_peer(k: int, seed: int, skip: float, thin: float) -> None:
    votes = random_votes(ORDER, k, seed, skip=skip, thin=thin)
    back = decode_votes(encode_votes(votes, ORDER, k), ORDER, k)
    assert back.digest() == votes.digest()


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([1, 4]), st.lists(st.integers(0, 3), min_size=1, max_size=9), st.floats(0, 1))
def test_round_trip_of_a_sum(k: int, seeds: list[int], skip: float) -> None:
    """Equal seeds: peers that agree on everything."""
    total = Votes.total([random_votes(ORDER, k, seed, skip=skip) for seed in seeds])
    ids = tuple(3 * index for index in range(len(seeds)))
    back = decode_sum(encode_sum(VoteSum(ids, total)), ORDER, k)
    assert back.peers == ids
    assert back.votes.digest() == total.digest()


def test_nothing_at_all() -> None:
    nothing = Votes.of_one_peer(np.zeros(0, np.int64), np.zeros(0, bool))
    assert decode_votes(encode_votes(nothing, ORDER, 1), ORDER, 1).numbers.size == 0
    assert decode_sum(encode_sum(VoteSum((0, 7), nothing)), ORDER, 1).votes.numbers.size == 0


@pytest.mark.parametrize("shape", [(64, 64), (1024, 512), (64 * 33, 64)])
def test_one_coefficient_a_chunk_takes_exactly_13_bits(shape: tuple[int, int]) -> None:
    order = CoefficientOrder(Layout([TensorSpec("a", shape)]))
    chunks = shape[0] * shape[1] // CHUNK_VALUES
    rng = np.random.default_rng(0)
    numbers = np.arange(chunks) * CHUNK_VALUES + rng.integers(0, CHUNK_VALUES, chunks)
    body = encode_votes(Votes.of_one_peer(numbers, rng.random(chunks) < 0.5), order, 1)
    head = 13
    assert len(body) == head + -(-chunks * 12 // 8) + -(-chunks // 8)


def test_a_skipped_chunk_costs_less_than_it_saves() -> None:
    order = CoefficientOrder(Layout([TensorSpec("a", (4096, 1024)), TensorSpec("b", (1,))]))
    all_, few = (len(encode_votes(random_votes(order, 1, 0, skip=skip), order, 1)) for skip in (0.0, 0.2))
    assert few < 0.88 * all_


def test_many_coefficients_a_chunk_take_the_shorter_gaps() -> None:
    order = CoefficientOrder(Layout([TensorSpec("a", (2048, 2048)), TensorSpec("b", (1,))]))
    for k, most in ((2, 13.1), (4, 12.7), (8, 11.7), (32, 9.7)):
        votes = random_votes(order, k, 0)
        bits = 8 * len(encode_votes(votes, order, k)) / votes.numbers.size
        assert bits < most, k


def test_a_sum_is_not_longer_than_the_frames_that_it_replaces() -> None:
    order = CoefficientOrder(Layout([TensorSpec("a", (2048, 2048)), TensorSpec("b", (1,))]))
    apart = [random_votes(order, 1, seed) for seed in range(8)]
    frames = sum(len(encode_votes(votes, order, 1)) for votes in apart)
    assert len(encode_sum(VoteSum(tuple(range(8)), Votes.total(apart)))) < 1.02 * frames
    alike = [random_votes(order, 1, 0) for _ in range(8)]
    assert len(encode_sum(VoteSum(tuple(range(8)), Votes.total(alike)))) < 0.25 * frames
