"""Attacks on the masks themselves, and why Flower's own are not used."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from distro_fed.secure_aggregation.key_agreement import derive, pair_mask_key, private_key, public_key, self_mask_key
from distro_fed.secure_aggregation.masked_vector import VectorSum
from distro_fed.secure_aggregation.masks import KeyStream, Masks, word_type
from distro_fed.secure_aggregation.messages import parse
from tests.secure_aggregation.members import Federation, plain_sum, random_codes, up_to


def stream(key: bytes, count: int = 64) -> list[int]:
    words = np.zeros(count, word_type(16))
    Masks([key], [], 16).apply(words)
    return words.tolist()


def folded(key: bytes) -> int:
    """How SecAgg+ makes a key into the seed of its generator."""
    seed = 0
    for start in range(0, len(key), 4):
        seed ^= int.from_bytes(key[start : start + 4], "little")
    return seed


def test_keys_with_equal_folds_have_different_masks() -> None:
    one = bytes(range(32))
    other = one[4:8] + one[:4] + one[8:]
    assert folded(one) == folded(other)
    assert stream(one) != stream(other)


def test_every_bit_of_a_key_counts() -> None:
    key = bytes(range(32))
    number = int.from_bytes(key, "little")
    changed = {tuple(stream((number ^ 1 << bit).to_bytes(32, "little"))) for bit in range(256)}
    assert len(changed | {tuple(stream(key))}) == 257


def test_a_search_of_short_seeds_finds_nothing() -> None:
    """2**16 keys made from a short seed in the ways in which libraries have made them, against one mask."""
    target, found = np.empty(8, np.uint8), np.empty(8, np.uint8)
    KeyStream(derive(b"secret" * 5, b"salt", b"info")).fill(target)
    for seed in range(2**15):
        for key in (seed.to_bytes(32, "little"), seed.to_bytes(4, "little") * 8):
            KeyStream(key).fill(found)
            assert found.tobytes() != target.tobytes()


def test_masks_of_pairs_members_and_transcripts_are_different() -> None:
    privates = [private_key(bytes([number]) * 32) for number in range(1, 5)]
    publics = [public_key(private) for private in privates]
    keys = {
        pair_mask_key(privates[i], publics[j], transcript, i, j)
        for i, j in itertools.combinations(range(4), 2)
        for transcript in (b"t" * 32, b"u" * 32)
    }
    keys |= {self_mask_key(b"s" * 32, transcript, i) for i in range(4) for transcript in (b"t" * 32, b"u" * 32)}
    assert len(keys) == 2 * 6 + 2 * 4
    assert all(len(key) == 32 for key in keys)
    one_side = pair_mask_key(privates[0], publics[1], b"t" * 32, 0, 1)
    assert one_side == pair_mask_key(privates[1], publics[0], b"t" * 32, 1, 0)


def test_all_others_together_still_miss_the_victims_own_mask() -> None:
    """The server and all other members pool what they know: only the self-mask is left, and it covers everything."""
    members, count = 4, 4000
    federation = Federation(members)
    server = federation.server(federation.proposal(count=count))
    codes = random_codes(members, 8, count)
    messages = up_to(federation, server, 2, codes)
    replies = {member: federation.respond(member, data, codes[member]) for member, data in messages.items()}
    left = VectorSum(count, 10)
    left.add(parse(replies[0]).body)
    known = []
    for member in range(1, members):
        [attempt] = federation.client(member)._load(federation.states[member]).attempts
        public = attempt.keys[0][32:64]
        known.append(pair_mask_key(attempt.secrets.mask_private, public, attempt.masking_transcript, member, 0))
    rest = left.remove(Masks([], known, 10))
    assert abs(float(np.corrcoef(rest.astype(float), codes[0].astype(float))[0, 1])) < 5 / np.sqrt(count)
    assert len(np.unique(rest)) > 900
    # with the self-mask as well, the vector would be open: the pairwise masks were the right ones
    [attempt] = federation.client(0)._load(federation.states[0]).attempts
    own = self_mask_key(attempt.secrets.self_mask, attempt.masking_transcript, 0)
    bare = VectorSum(count, 10)
    bare.add(parse(replies[0]).body)
    np.testing.assert_array_equal(bare.remove(Masks([], [*known, own], 10)), plain_sum(codes, [0]))


def test_the_same_update_in_two_rounds_looks_unrelated() -> None:
    federation, count = Federation(3), 4000
    codes = random_codes(3, 8, count)
    bodies = []
    for round_ in (1, 2):
        messages = up_to(federation, federation.server(federation.proposal(round_, count=count)), 2, codes)
        total = VectorSum(count, 10)
        total.add(parse(federation.respond(0, messages[0], codes[0])).body)
        bodies.append(total.remove(Masks([], [], 10)).astype(float))
    assert abs(float(np.corrcoef(*bodies)[0, 1])) < 5 / np.sqrt(count)
    # a mask used twice would show the difference of the updates, here nothing
    assert np.count_nonzero(bodies[0] == bodies[1]) < 30


def test_flower_keys_with_equal_folds_have_equal_masks() -> None:
    """Why its generator is not used: 32 bits decide, and 28 of a base64 text. If this fails, it was mended."""
    utils = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")
    one = bytes(range(32))
    other = one[4:8] + one[:4] + one[8:]
    first, second = (utils.pseudo_rand_gen(key, 2**16, [(64,)])[0] for key in (one, other))
    np.testing.assert_array_equal(first, second)


def test_flower_answers_for_a_node_that_is_active_and_dead() -> None:
    """Why its last stage is not used: both shares together open that node's vector. If this fails, it was mended."""
    mod = pytest.importorskip("flwr.client.mod.secure_aggregation.secaggplus_mod")
    state = mod.SecAggPlusState(
        threshold=1, nid=0, rd_seed_share_dict={1: b"own mask"}, sk1_share_dict={1: b"mask key"}
    )
    assert mod._unmask(state, {"active_nids": [1], "dead_nids": [1]})["shares"] == [b"own mask", b"mask key"]
