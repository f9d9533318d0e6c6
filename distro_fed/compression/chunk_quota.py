"""A quota of the density for every chunk of a matrix, and one pool for tensors too small to have chunks.

DeMo selects so after a DCT (Peng et al., arXiv 2411.19870), SparseLoCo without one (arXiv 2508.15706). Tensors with
fewer than two axes, and those whose chunks are too small for one coefficient each, are selected together: a quota
of one for each of them would exceed the density.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distro_fed.compression.dct import chunk_grids, grid_shapes
from distro_fed.compression.select import top_k_global, top_k_per_chunk
from distro_fed.compression.sparse import share

if TYPE_CHECKING:
    from distro_fed.layout import Layout, TensorSpec

#: longest side of a chunk: DeMo's and SparseLoCo's
LARGEST_CHUNK = 64


def top_k_by_quota(coefficients: torch.Tensor, space: Layout, density: float, chunk: int) -> torch.Tensor:
    """Positions of the largest magnitudes: ``round(density * size)`` of every chunk, and as many of the pool.

    Parameters
    ----------
    coefficients : torch.Tensor
        Flat contiguous float32, ``space.numel`` values, any device.
    space : Layout
        Where each tensor lies.
    density : float
        0 < density <= 1.
    chunk : int
        Longest side of a chunk, at most :data:`LARGEST_CHUNK`.

    Returns
    -------
    torch.Tensor
        int64, ascending; zeros are left out.

    Raises
    ------
    TrainingError
        If a value is NaN, infinite or not below 2**64.
    """
    pool = [where for spec, where in space.slices() if _pooled(spec, density, chunk)]
    found = [top_k_global(coefficients, _pool_share(space, density, chunk), pool)]
    for spec, where in space.slices():
        if not _pooled(spec, density, chunk):
            for grid in chunk_grids(coefficients[where], spec.shape, chunk):
                start = int(grid.storage_offset() - coefficients.storage_offset())
                found.append(top_k_per_chunk(grid, round(density * grid.shape[1] * grid.shape[3])) + start)
    return torch.sort(torch.cat(found)).values


def most_by_quota(space: Layout, density: float, chunk: int) -> int:
    """How many positions :func:`top_k_by_quota` returns if no coefficient is zero."""
    most = _pool_share(space, density, chunk)
    for spec in space:
        if not _pooled(spec, density, chunk):
            most += sum(chunks * round(density * size) for chunks, size in grid_shapes(spec.shape, chunk))
    return most


def _pooled(spec: TensorSpec, density: float, chunk: int) -> bool:
    return len(spec.shape) < 2 or any(round(density * size) == 0 for _, size in grid_shapes(spec.shape, chunk))


def _pool_share(space: Layout, density: float, chunk: int) -> int:
    return share(density, sum(spec.numel for spec in space if _pooled(spec, density, chunk)))
