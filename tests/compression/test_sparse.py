from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression.sparse import decode_sparse, encode_sparse
from distro_fed.layout import Layout, TensorSpec


def coded(values: torch.Tensor, positions: torch.Tensor, space: Layout, value_bits: int) -> torch.Tensor:
    body = encode_sparse(values, positions, space, value_bits)
    out = torch.zeros(space.numel)
    decode_sparse(body, space, positions.numel(), value_bits).add_to(out)
    return out


def best_two(magnitudes: np.ndarray) -> float:
    """Least squared error of two levels: every split of the sorted magnitudes is tried."""
    ordered = np.sort(magnitudes.astype(np.float64))
    return min(
        sum(float(((part - part.mean()) ** 2).sum()) for part in (ordered[:cut], ordered[cut:]) if part.size)
        for cut in range(ordered.size)
    )


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
    st.floats(0, 1),
    st.sampled_from([2, 30, 10**6]),
    st.sampled_from([1, 2]),
    st.integers(0, 2**32),
)
def test_round_trip(sizes: list[int], share: float, levels: int, value_bits: int, seed: int) -> None:
    space = Layout(TensorSpec(str(index), (size,)) for index, size in enumerate(sizes))
    random = np.random.default_rng(seed)
    values = (random.integers(1, levels + 1, space.numel) * random.choice([-1, 1], space.numel)).astype(np.float32)
    positions = np.flatnonzero(random.random(space.numel) < share)
    out = coded(torch.from_numpy(values), torch.from_numpy(positions), space, value_bits).numpy()
    sent = np.zeros(space.numel, bool)
    sent[positions] = True
    assert not out[~sent].any()
    assert np.array_equal(np.sign(out[sent]), np.sign(values[sent]))
    for _, where in space.slices():
        mine, theirs = np.abs(values[where][sent[where]]), np.abs(out[where][sent[where]])
        if mine.size == 0:
            continue
        assert len(set(theirs.tolist())) <= value_bits
        error = float(((mine.astype(np.float64) - theirs) ** 2).sum())
        best = best_two(mine) if value_bits == 2 else float(((mine - mine.mean(dtype=np.float64)) ** 2).sum())
        rounding = mine.size * (2.0**-8 * float(mine.max())) ** 2  # a scale is a bfloat16
        # the levels are means, so a rounded level adds its own square and nothing else
        assert error <= best + rounding + 1e-6 * best + 1e-9


def four_bins(values: np.ndarray) -> np.ndarray:
    """SparseLoCo's quantiser, arXiv 2508.15706: equal bins over six standard deviations, each bin's mean."""
    shift = values.mean()
    centred = values - shift
    width = 6 * centred.std(ddof=1) / 4
    bins = np.clip(np.rint(centred / width + 2), 0, 3)
    out = np.zeros_like(values)
    for number in range(4):
        if (bins == number).any():
            out[bins == number] = centred[bins == number].mean() + shift
    return out


@pytest.mark.parametrize(("power", "times"), [(1, 2.5), (3, 4.0)])
def test_two_magnitudes_lose_less_than_four_equal_bins(power: int, times: float) -> None:
    space = Layout([TensorSpec("a", (2**18,))])
    values = torch.randn(2**18, generator=torch.Generator().manual_seed(0)) ** power
    positions = values.abs().topk(2**12).indices.sort().values
    sent = values[positions].numpy().astype(np.float64)
    mine = coded(values, positions, space, 2)[positions].numpy()
    assert times * float(((mine - sent) ** 2).sum()) < float(((four_bins(sent) - sent) ** 2).sum())


@pytest.mark.parametrize("value_bits", [1, 2])
@pytest.mark.parametrize("density", [1 / 16, 1 / 64, 1 / 512])
def test_a_body_is_near_the_entropy_bound(value_bits: int, density: float) -> None:
    space = Layout([TensorSpec("a", (2**20,))])
    values = torch.randn(2**20, generator=torch.Generator().manual_seed(1))
    k = round(density * 2**20)
    positions = values.abs().topk(k).indices.sort().values
    size = len(encode_sparse(values, positions, space, value_bits))
    bound = (math.lgamma(2**20 + 1) - math.lgamma(k + 1) - math.lgamma(2**20 - k + 1)) / math.log(2) + value_bits * k
    # everything that is not position or value: the count and a scale for each level
    assert bound <= 8 * (size - 8 - 2 * value_bits) < 1.02 * bound


def test_the_weight_goes_where_a_coefficient_was_sent() -> None:
    space = Layout([TensorSpec("a", (6,))])
    values = torch.tensor([0.0, 3.0, 0.0, 0.0, -3.0, 0.0])
    sparse = decode_sparse(encode_sparse(values, torch.tensor([1, 4]), space), space, 2)
    weights = torch.ones(6)
    sparse.add_weight_to(weights, 2.5)
    assert weights.tolist() == [1.0, 3.5, 1.0, 1.0, 3.5, 1.0]
