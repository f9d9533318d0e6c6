from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression.chunk_quota import most_by_quota, top_k_by_quota
from distro_fed.compression.sparse import share
from distro_fed.errors import TrainingError
from distro_fed.layout import Layout, TensorSpec


def pieces(size: int, chunk: int) -> list[np.ndarray]:
    """Places of one axis, cut into the fewest pieces of nearly equal length, the longer ones first."""
    return np.array_split(np.arange(size), -(-size // chunk)) if size else []


def slowly(values: np.ndarray, space: Layout, density: float, chunk: int) -> list[int]:
    """Chunk by chunk, each sorted in full: larger magnitude first, then lower position; no zeros."""

    def largest(places: np.ndarray, k: int) -> list[int]:
        order = places[np.argsort(-np.abs(values[places]), kind="stable")][:k]
        return [int(place) for place in order if values[place] != 0]

    chosen: list[int] = []
    pool: list[int] = []
    for spec, where in space.slices():
        places = np.arange(where.start, where.stop).reshape(spec.shape)
        if len(spec.shape) < 2 or places.size == 0:
            pool += places.flatten().tolist()
            continue
        chunks = [
            matrix[np.ix_(rows, columns)].flatten()
            for matrix in places.reshape(-1, *spec.shape[-2:])
            for rows in pieces(spec.shape[-2], chunk)
            for columns in pieces(spec.shape[-1], chunk)
        ]
        if any(round(density * part.size) == 0 for part in chunks):
            pool += places.flatten().tolist()
            continue
        for part in chunks:
            # within a chunk ties go to the lower row, then the lower column: the order of the places
            chosen += largest(part, round(density * part.size))
    return sorted(chosen + largest(np.array(pool, int), share(density, len(pool))))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=4),
    st.sampled_from([1.0, 0.5, 1 / 8, 1 / 64, 1 / 1000]),
    st.sampled_from([2, 7, 16]),
    st.sampled_from([1, 3, 10**6]),
    st.integers(0, 2**32),
)
def test_against_sorting_every_chunk(
    shapes: list[list[int]], density: float, chunk: int, levels: int, seed: int
) -> None:
    space = Layout(TensorSpec(str(index), tuple(shape)) for index, shape in enumerate(shapes))
    values = np.random.default_rng(seed).integers(-levels, levels + 1, space.numel).astype(np.float32)
    found = top_k_by_quota(torch.from_numpy(values), space, density, chunk).tolist()
    assert found == slowly(values, space, density, chunk)
    assert len(found) <= most_by_quota(space, density, chunk)


def test_without_zeros_the_most_is_reached(layout: Layout, delta: torch.Tensor) -> None:
    for density in (1.0, 1 / 8, 1 / 64, 1 / 512):
        assert top_k_by_quota(delta, layout, density, 64).numel() == most_by_quota(layout, density, 64)


def test_every_chunk_has_its_share_however_small_its_values() -> None:
    space = Layout([TensorSpec("a", (128, 128))])
    values = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    values[:64] *= 1e-6
    found = top_k_by_quota(values.flatten(), space, 1 / 64, 64)
    assert int((found < 64 * 128).sum()) == found.numel() // 2 == 2 * 64


def test_nan_in_pool_or_chunk_is_refused(layout: Layout, delta: torch.Tensor) -> None:
    for at in (layout.offsets[1], layout.offsets[4]):
        bad = delta.clone()
        bad[at] = float("nan")
        with pytest.raises(TrainingError):
            top_k_by_quota(bad, layout, 1 / 64, 64)
