from __future__ import annotations

import numpy as np
import pytest

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.payload import (
    decode_payload_sum,
    encode_payload,
    model_and_scales_digest,
    payload_count,
)
from distro_fed.secure_aggregation.weighting import Weighting, masked_share, roster_share, roster_total
from tests.secure_aggregation.members import roster

SIZES, SCALES = [5, 20], np.array([1.0, 0.25], np.float32)


def updates(members: int) -> list[np.ndarray]:
    generator = np.random.default_rng(members)
    spread = np.repeat(SCALES, SIZES)
    return [(generator.uniform(-1, 1, 25) * spread).astype(np.float32) for _ in range(members)]


def seed(member: int) -> bytes:
    return bytes([member]) * 32


@pytest.mark.parametrize("q", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("members", [3, 8])
def test_sum_and_clipped_values(q: int, members: int) -> None:
    vectors = updates(members)
    vectors[0][:3] = 9
    payloads = [encode_payload(v, SIZES, SCALES, q=q, seed=seed(i)) for i, v in enumerate(vectors)]
    assert payloads[0].clipped == (3 if q > 1 else 0)
    assert all(payload.codes.shape == (payload_count(25, q, Weighting.UNIFORM),) for payload in payloads)
    assert max(int(payload.codes.max()) for payload in payloads) < 2**q
    sums = np.sum([payload.codes for payload in payloads], axis=0, dtype=np.uint32)
    total = decode_payload_sum(sums, SIZES, SCALES, q=q, members=members)
    assert (total.clipped, total.weight) == (payloads[0].clipped, 0)
    if q > 1:
        exact = np.sum([np.clip(v, -np.repeat(SCALES, SIZES), np.repeat(SCALES, SIZES)) for v in vectors], axis=0)
        assert (np.abs(total.values - exact) <= members * 2 * np.repeat(SCALES, SIZES) / (2**q - 1) * 1.001).all()


def test_weights_of_the_roster() -> None:
    members, cohort = roster(4), (0, 1, 3)  # weights 1, 2, 4
    shares = [roster_share(members, cohort, member) for member in cohort]
    assert shares == [0.25, 0.5, 1]
    vectors = updates(3)
    payloads = [
        encode_payload(v, SIZES, SCALES, q=16, seed=seed(i), weighting=Weighting.ROSTER, share=share)
        for i, (v, share) in enumerate(zip(vectors, shares, strict=True))
    ]
    sums = np.sum([payload.codes for payload in payloads], axis=0, dtype=np.uint32)
    total = decode_payload_sum(sums, SIZES, SCALES, q=16, members=3, weighting=Weighting.ROSTER)
    mean = total.values / roster_total(members, cohort, cohort)
    np.testing.assert_allclose(mean, np.average(vectors, axis=0, weights=[1, 2, 4]), atol=1e-4)
    assert roster_total(members, cohort, (0, 3)) == 1.25


@pytest.mark.parametrize("q", [2, 8, 13])
def test_masked_weights(q: int) -> None:
    cap, weights = 2**40 - 1, [1, 2**39, 2**40 - 1]
    payloads = [
        encode_payload(
            v, SIZES, SCALES, q=q, seed=seed(i), weighting=Weighting.MASKED, share=masked_share(w, cap), weight=w
        )
        for i, (v, w) in enumerate(zip(updates(3), weights, strict=True))
    ]
    assert {payload.codes.size for payload in payloads} == {payload_count(25, q, Weighting.MASKED)}
    sums = np.sum([payload.codes for payload in payloads], axis=0, dtype=np.uint32)
    total = decode_payload_sum(sums, SIZES, SCALES, q=q, members=3, weighting=Weighting.MASKED)
    assert total.weight == sum(weights)
    assert total.clipped == 0


@pytest.mark.parametrize("weight", [0, -1, 101])
def test_a_weight_beyond_the_cap_is_an_error(weight: int) -> None:
    with pytest.raises(EncodingError, match=r"1\.\.100"):
        masked_share(weight, 100)


@pytest.mark.parametrize("weighting", [Weighting.ROSTER, Weighting.MASKED])
def test_signs_cannot_be_weighted(weighting: Weighting) -> None:
    with pytest.raises(EncodingError, match="q >= 2"):
        encode_payload(updates(1)[0], SIZES, SCALES, q=1, seed=seed(0), weighting=weighting, share=0.5)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_shares_lie_between_0_and_1(share: float) -> None:
    with pytest.raises(EncodingError, match="share"):
        encode_payload(updates(1)[0], SIZES, SCALES, q=8, seed=seed(0), share=share)


@pytest.mark.parametrize("weight", [-1, 2**40])
def test_a_count_has_40_bits(weight: int) -> None:
    with pytest.raises(EncodingError, match="count"):
        encode_payload(
            updates(1)[0], SIZES, SCALES, q=8, seed=seed(0), weighting=Weighting.MASKED, share=1.0, weight=weight
        )


def test_a_sum_of_another_length() -> None:
    with pytest.raises(EncodingError, match="26 sums; 30"):
        decode_payload_sum(np.zeros(26, np.uint32), SIZES, SCALES, q=8, members=3)


def test_the_digest_covers_model_and_scales() -> None:
    assert model_and_scales_digest(b"m" * 16, SCALES) == model_and_scales_digest(b"m" * 16, SCALES.copy())
    assert model_and_scales_digest(b"m" * 16, SCALES) != model_and_scales_digest(b"n" * 16, SCALES)
    assert model_and_scales_digest(b"m" * 16, SCALES) != model_and_scales_digest(
        b"m" * 16, SCALES * np.float32(1.0000001)
    )


def test_words_of_weightings() -> None:
    assert [Weighting.from_word(weighting.word) for weighting in Weighting] == list(Weighting)
    with pytest.raises(ValueError, match="uniform, roster, masked"):
        Weighting.from_word("Uniform")
