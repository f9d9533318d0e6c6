from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression import select
from distro_fed.compression.dct import chunk_grids
from distro_fed.compression.select import top_k_global, top_k_per_chunk
from distro_fed.errors import TrainingError


def expected(values: np.ndarray, k: int) -> list[int]:
    """Positions by a full stable sort: larger magnitude first, then lower position; no zeros."""
    order = np.argsort(-np.abs(values), kind="stable")[:k]
    return sorted(int(i) for i in order if values[i] != 0)


@settings(deadline=None)
@given(st.integers(0, 3000), st.integers(0, 3100), st.integers(0, 40), st.integers(0, 2**32))
def test_global_against_a_sort_with_many_ties(n: int, k: int, levels: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-levels, levels + 1, n).astype(np.float32) / 7
    assert top_k_global(torch.from_numpy(values), k).tolist() == expected(values, k)


@pytest.mark.parametrize("k", [1, 100, 5000, 150_000])
def test_global_through_the_sample(k: int) -> None:
    values = (torch.randn(200_000, generator=torch.Generator().manual_seed(k)) ** 3).numpy()
    assert top_k_global(torch.from_numpy(values), k).tolist() == expected(values, k)


def test_a_sample_that_misleads_costs_time_and_nothing_else() -> None:
    values = torch.full((200_000,), 1e-3)
    values[:: select._STRIDE] = 9.0  # only what the sample looks at is large
    assert top_k_global(values, 10_000).tolist() == expected(values.numpy(), 10_000)
    values[:: select._STRIDE] = 0.0  # and now the other way round
    assert top_k_global(values, 10_000).tolist() == expected(values.numpy(), 10_000)


def test_one_magnitude_everywhere() -> None:
    values = torch.full((600_000,), -2.5)
    assert top_k_global(values, 1000).tolist() == list(range(1000))


def test_only_within_the_given_parts() -> None:
    values = torch.arange(100.0)
    assert top_k_global(values, 4, [slice(10, 12), slice(50, 53)]).tolist() == [11, 50, 51, 52]
    assert top_k_global(values, 4, []).tolist() == []


def test_denormals_are_told_apart() -> None:
    values = torch.tensor([1e-45, 3e-45, 0.0, -2e-40])
    assert top_k_global(values, 2).tolist() == [1, 3]


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(1, 140), st.integers(1, 140)),
    st.integers(1, 70),
    st.sampled_from([0, 1, 3, 10**6]),
    st.integers(0, 2**32),
)
def test_per_chunk_against_a_sort(shape: tuple[int, int], k: int, levels: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    matrix = generator.integers(-levels, levels + 1, shape).astype(np.float32)
    values = torch.from_numpy(matrix).flatten()
    where = np.arange(values.numel()).reshape(shape)
    for grid, places in zip(
        chunk_grids(values, shape, 64), chunk_grids(torch.from_numpy(where).flatten(), shape, 64), strict=True
    ):
        found = sorted((top_k_per_chunk(grid, k) + int(grid.storage_offset())).tolist())
        wanted = []
        for i in range(grid.shape[0]):
            for j in range(grid.shape[2]):
                chunk = places[i, :, j].flatten().numpy()
                wanted += [int(chunk[p]) for p in expected(grid[i, :, j].flatten().numpy(), k)]
        assert found == sorted(wanted)


def test_per_chunk_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(64 * 5 * 128)
    grid = next(chunk_grids(values, (64 * 5, 128), 64))
    whole = top_k_per_chunk(grid, 3)
    monkeypatch.setattr(select, "BLOCK", 1)
    monkeypatch.setattr(select, "_BATCH", 2 * 64 * 128)
    assert sorted(top_k_per_chunk(grid, 3).tolist()) == sorted(whole.tolist())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2.0**64])
@pytest.mark.parametrize("n", [5000, 300_000])
def test_what_is_not_finite_is_refused(bad: float, n: int) -> None:
    values = torch.randn(n)
    values[1234] = bad
    with pytest.raises(TrainingError, match="a coefficient is"):
        top_k_global(values, 10)
    with pytest.raises(TrainingError, match="a coefficient is"):
        top_k_per_chunk(next(chunk_grids(values, (n // 50, 50), 64)), 2)
