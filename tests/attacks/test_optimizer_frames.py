"""Frames of the optimizer that no honest peer sends. Each is refused by name, and nothing is applied."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distro_fed.compression.positions import encode_positions
from distro_fed.errors import CorruptBody, TrainingError, UpdateError
from distro_fed.optim import DistroAdamW, FrameCoder
from distro_fed.optim.exchange import Answer
from distro_fed.optim.vote_codes import VoteSum, decode_sum, decode_votes, encode_sum
from distro_fed.optim.votes import Votes
from distro_fed.update import Kind, parse_frame

K = 2


def new_optimizer() -> DistroAdamW:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((128, 192), (300,), (64, 40))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return DistroAdamW(parameters, k=K)


OPTIMIZER = new_optimizer()
ORDER = OPTIMIZER.coder.order
FRAME = OPTIMIZER.local_frame()
CHAIN = OPTIMIZER.chain
BODY = bytes(parse_frame(FRAME).body)
TOTAL = OPTIMIZER.coder.answer(0, CHAIN, OPTIMIZER.coder.total({0: FRAME, 1: FRAME}, 0, CHAIN))
SUM_BODY = bytes(parse_frame(TOTAL).body)
VOTES = decode_votes(BODY, ORDER, K)


def one(body: bytes) -> None:
    decode_votes(body, ORDER, K)


def summed(body: bytes) -> None:
    decode_sum(body, ORDER, K)


both = pytest.mark.parametrize(("decode", "body"), [(one, BODY), (summed, SUM_BODY)], ids=["one peer", "sum"])


def gaps(numbers: list[int], count: int | None = None, form: int = 1, skipped: int = 0) -> bytes:
    """Hand-made body with all votes negative."""
    count = len(numbers) if count is None else count
    head = struct.pack("<BIQ", form, skipped, count) + bytes(min(-(-count // 8), 1000))
    return head + encode_positions(np.array(numbers, np.int64))


def fixed(places: bytes, rest: list[int], count: int, skipped: int) -> bytes:
    head = struct.pack("<BIQ", 0, skipped, count) + bytes(-(-count // 8))
    return head + places + encode_positions(np.array(rest, np.int64))


def sum_body(numbers: list[int], cast: list[int], positive: list[int], peers: tuple[int, ...] = (0, 1)) -> bytes:
    values = np.array(numbers, np.int64), np.array(positive, np.int64), np.array(cast, np.int64)
    return encode_sum(VoteSum(peers, Votes(values[0], values[1], values[2] - values[1])))


@both
def test_every_truncation_and_every_tail(decode: Callable[[bytes], None], body: bytes) -> None:
    decode(body)
    for length in range(len(body)):
        with pytest.raises(CorruptBody):
            decode(body[:length])
    for tail in (b"\0", b"\1", b"\xff" * 9, bytes(4096)):
        with pytest.raises(CorruptBody):
            decode(body + tail)


def test_the_hand_made_bodies_are_sound_where_they_should_be() -> None:
    one(gaps([0, 4096, 8192, ORDER.layout.numel - 1]))
    places = bytes(6) + b"\x01" * 6 + bytes(6)  # 12 places: their low bytes, then 4 bits each
    with pytest.raises(CorruptBody, match="increasing"):
        one(fixed(places, [], 12, 0))
    summed(sum_body([5, 9], [2, 1], [1, 0]))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (gaps([ORDER.layout.numel]), "not below"),
        (gaps([ORDER.layout.numel + 10**6]), None),
        (gaps([1, 2, 3]), "chunk 0 has more than k = 2"),
        (gaps(list(range(6 * 4096, 6 * 4096 + ORDER.pool_share(K) + 1))), "votes in the pool; k = 2 allows"),
        (gaps([1], form=2), "form 2"),
        (gaps([1], form=255), "form 255"),
        (gaps([1], skipped=1), "skips 1 chunks"),
        (gaps([1], count=2**64 - 1), None),
        (gaps([5, 9], count=1), None),
        (gaps([5, 9], count=3), None),
        (fixed(bytes(18), [], 11, 0), "fewer than k = 2 in each of 6"),
        (fixed(bytes(18), [], 12, 7), "7 skipped chunks"),
        (fixed(bytes(15), [], 10, 1), None),
        (fixed(bytes(15), [6], 10, 1), "does not name the 1 chunks"),
        (fixed(bytes(17), [], 12, 0), None),
        (fixed(bytes(18), [], 12, 0), "not strictly increasing"),
    ],
    ids=range(16),
)
def test_numbers_and_counts_out_of_range(body: bytes, message: str | None) -> None:
    with pytest.raises(CorruptBody, match=message):
        one(body)
    # in a frame that is sound otherwise: nothing of the other peer's is applied either
    frame = OPTIMIZER.coder._wrap(Kind.CLIENT, 0, CHAIN, body)
    before = OPTIMIZER.parameter_digest()
    with pytest.raises(CorruptBody, match="peer 1: "):
        OPTIMIZER.apply(Answer({0: FRAME, 1: frame}, None, 0, 0))
    assert (OPTIMIZER.parameter_digest(), OPTIMIZER.steps) == (before, 0)


@pytest.mark.parametrize("count", [ORDER.limit(K) + 1, 2**31, 2**32, 2**63, 2**64 - 1])
def test_counts_that_the_model_does_not_allow(count: int) -> None:
    with pytest.raises(CorruptBody, match=str(count)):
        one(BODY[:5] + struct.pack("<Q", count) + BODY[13:])
    start = 4 + 4 * 2
    with pytest.raises(CorruptBody):
        summed(SUM_BODY[:start] + struct.pack("<Q", count) + SUM_BODY[start + 8 :])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (sum_body([5], [3], [1]), "more votes than there are peers"),
        (sum_body([ORDER.layout.numel], [1], [1]), "not below"),
        (sum_body([5], [1], [1], peers=()), "there is none"),
        (sum_body([5], [1], [1], peers=(1, 1)), "not strictly increasing"),
        (sum_body([5], [1], [1], peers=(4, 2)), "not strictly increasing"),
        (struct.pack("<I", 2**32 - 1) + SUM_BODY[4:], "within its head"),
    ],
    ids=range(6),
)
def test_sums_that_cannot_be(body: bytes, message: str) -> None:
    with pytest.raises(CorruptBody, match=message):
        summed(body)


def test_more_positive_votes_than_votes() -> None:
    sound = sum_body([5], [2], [2])
    positive = encode_positions(np.array([3]))
    with pytest.raises(CorruptBody, match="more positive ones"):
        summed(sound[: -len(encode_positions(np.array([2])))] + positive)


@pytest.mark.parametrize("length", [1, 2**40, 2**64 - 1])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_lengths_of_parts_that_do_not_fit(length: int, which: int) -> None:
    start = 4 + 4 * 2 + 8 + 8 * which  # shared, and the lengths of three parts
    with pytest.raises(CorruptBody):
        summed(SUM_BODY[:start] + struct.pack("<Q", length) + SUM_BODY[start + 8 :])


def test_a_refusal_allocates_nothing_that_the_body_asks_for() -> None:
    with torch.device("meta"):
        model = nn.Embedding(49152, 2048)
    order = FrameCoder.of_parameters(model.parameters(), 64).order
    allowed = order.limit(64)
    hostile = [
        struct.pack("<BIQ", 1, 0, allowed),
        struct.pack("<BIQ", 1, 0, allowed) + bytes(1000),
        struct.pack("<BIQ", 0, 0, allowed) + bytes(1000),
        struct.pack("<BIQ", 0, order.chunks, 0),
        struct.pack("<BIQ", 0, order.chunks, 0) + bytes(1000) + b"\1",
    ]
    for body in hostile:
        tracemalloc.start()
        with pytest.raises(CorruptBody):
            decode_votes(body, order, 64)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()


def mutate(data: st.DataObject, sound: bytes) -> bytes:
    mutated = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        kind = data.draw(st.sampled_from(["flip", "set", "insert", "delete"]))
        if kind == "insert":
            mutated[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        elif at < len(mutated):
            if kind == "flip":
                mutated[at] ^= 1 << data.draw(st.integers(0, 7))
            elif kind == "set":
                mutated[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            else:
                del mutated[at : at + data.draw(st.integers(1, 9))]
    return bytes(mutated)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_mutated_bodies_are_refused_or_sound(data: st.DataObject) -> None:
    try:
        votes = decode_votes(mutate(data, BODY), ORDER, K)
    except CorruptBody:
        return
    assert votes.numbers.size <= ORDER.limit(K)
    assert bool((np.diff(votes.numbers, prepend=-1) > 0).all())
    assert int(votes.numbers.max(initial=0)) < ORDER.layout.numel
    assert bool((votes.positive + votes.negative == 1).all())
    assert int(np.bincount(votes.numbers[votes.numbers < 6 * 4096] // 4096, minlength=1).max()) <= K


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_mutated_sums_are_refused_or_sound(data: st.DataObject) -> None:
    try:
        total = decode_sum(mutate(data, SUM_BODY), ORDER, K)
    except CorruptBody:
        return
    votes = total.votes
    assert bool((np.diff(votes.numbers, prepend=-1) > 0).all())
    assert int(votes.numbers.max(initial=0)) < ORDER.layout.numel
    assert int(votes.positive.min(initial=0)) >= 0
    assert int(votes.negative.min(initial=0)) >= 0
    assert int((votes.positive + votes.negative).max(initial=0)) <= len(total.peers)


@settings(deadline=None, max_examples=100)
@given(data=st.data(), as_sum=st.booleans())
def test_mutated_frames_change_nothing(data: st.DataObject, as_sum: bool) -> None:
    frame = mutate(data, TOTAL if as_sum else FRAME)
    if frame in (TOTAL, FRAME):
        return
    answer = Answer({}, frame, 7, 7) if as_sum else Answer({0: FRAME, 1: frame}, None, 7, 7)
    before = [parameter.detach().clone() for parameter in OPTIMIZER.parameters]
    with pytest.raises(UpdateError):
        OPTIMIZER.apply(answer)
    for parameter, value in zip(OPTIMIZER.parameters, before, strict=True):
        assert torch.equal(parameter, value)
    assert (OPTIMIZER.steps, OPTIMIZER.chain, OPTIMIZER.bytes_received) == (0, CHAIN, 0)


def test_a_nan_has_no_code_and_never_gets_into_a_frame() -> None:
    """A frame holds positions and signs only; a gradient with a NaN stops at its own peer."""
    optimizer = new_optimizer()
    optimizer.momentum.coefficients[7] = float("nan")
    with pytest.raises(TrainingError, match="nan"):
        optimizer.local_frame()
