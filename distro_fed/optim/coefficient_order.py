"""Number the DCT coefficients of a model so that a chunk's place fits 12 bits and small tensors share one pool.

First come the coefficients of all full chunks (64 x 64), chunk by chunk and row by row within each; then, in the same
manner, those of everything else: vectors, and chunks with fewer than 4096 values. The number of a full chunk's
coefficient is ``4096 * chunk + place``. The rest is the *pool*: its coefficients are selected together, because a
quota for every small chunk would exceed the density that ``k`` of 4096 stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from distro_fed.compression.dct import chunk_grids
from distro_fed.compression.select import top_k_global, top_k_per_chunk
from distro_fed.layout import Layout

#: longest side of a chunk
CHUNK = 64
#: values of a full chunk
CHUNK_VALUES = CHUNK * CHUNK
#: bits of a place within a full chunk
PLACE_BITS = 12


@dataclass(frozen=True, slots=True)
class Grid:
    """Chunks of equal size that lie beside and below each other in one tensor.

    Attributes
    ----------
    first : int
        Number of its first coefficient; the others follow, chunk by chunk.
    start : int
        Where that coefficient lies in the flat vector of all tensors.
    tensor : int
        Index of the tensor in the layout.
    shape, strides : tuple of int
        Rows of chunks, height, columns of chunks, width; as :func:`~distro_fed.compression.dct.chunk_grids` has it.
    """

    first: int
    start: int
    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def chunk_values(self) -> int:
        """Values of one chunk."""
        return self.shape[1] * self.shape[3]

    @property
    def size(self) -> int:
        """Values of all chunks."""
        return self.shape[0] * self.shape[2] * self.chunk_values

    def view(self, flat: torch.Tensor, flat_start: int = 0) -> torch.Tensor:
        """The grid in a contiguous vector that begins ``flat_start`` values after the flat vector of all tensors."""
        return torch.as_strided(flat, self.shape, self.strides, flat.storage_offset() + self.start - flat_start)


class CoefficientOrder:
    """The numbering of one layout, and the selection that follows it.

    Attributes
    ----------
    layout : Layout
    grids : tuple of Grid
        In the order of their numbers.
    chunks : int
        Full chunks.
    pool : int
        Coefficients outside full chunks.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        nothing = torch.empty(layout.numel, device="meta")
        found = [
            Grid(0, int(grid.storage_offset()), tensor, tuple(grid.shape), tuple(grid.stride()))
            for tensor, (spec, where) in enumerate(layout.slices())
            for grid in chunk_grids(nothing[where], spec.shape, CHUNK)
        ]
        found.sort(key=lambda grid: grid.chunk_values != CHUNK_VALUES)  # stable: full chunks first
        firsts = np.cumsum([0, *(grid.size for grid in found)], dtype=np.int64)[:-1]
        self.grids = tuple(replace(grid, first=int(first)) for grid, first in zip(found, firsts, strict=True))
        rows = [(grid.first, grid.start, *grid.shape, *grid.strides) for grid in self.grids]
        self._table = np.array(rows, np.int64).reshape(-1, 10)
        self._full = [grid for grid in self.grids if grid.chunk_values == CHUNK_VALUES]
        self.chunks = sum(grid.size for grid in self._full) // CHUNK_VALUES
        self.pool = layout.numel - self.chunks * CHUNK_VALUES

    @cached_property
    def grids_of_tensors(self) -> tuple[tuple[Grid, ...], ...]:
        """The grids of each tensor."""
        grouped: list[list[Grid]] = [[] for _ in self.layout]
        for grid in self.grids:
            grouped[grid.tensor].append(grid)
        return tuple(map(tuple, grouped))

    @cached_property
    def single_layouts(self) -> tuple[Layout, ...]:
        """One layout for each tensor alone, to transform one after the other in little memory."""
        return tuple(Layout([spec]) for spec in self.layout)

    def pool_share(self, k: int) -> int:
        """Coefficients that the pool may send when a full chunk sends ``k``: the same density, but at least one."""
        return min(self.pool, max(1, round(k * self.pool / CHUNK_VALUES)))

    def limit(self, k: int) -> int:
        """Coefficients that one peer may send in a step."""
        return self.chunks * k + self.pool_share(k)

    def select(self, coefficients: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The ``k`` largest magnitudes of every full chunk, and the largest of the pool.

        Among equal magnitudes the lower number wins; zeros are never selected.

        Parameters
        ----------
        coefficients : torch.Tensor
            Contiguous float32, ``layout.numel`` values that lie where :func:`~distro_fed.compression.dct.dct_`
            leaves them.

        Returns
        -------
        numbers, positions : torch.Tensor
            int64, ascending numbers, and where each lies in ``coefficients``; on the same device.

        Raises
        ------
        TrainingError
            If a coefficient is NaN, infinite or not below 2**64.
        """
        numbers, positions = [], []
        for grid in self._full:
            distance = top_k_per_chunk(grid.view(coefficients), k)
            i, rest = distance // grid.strides[0], distance % grid.strides[0]
            u, rest = rest // grid.strides[1], rest % grid.strides[1]
            j, v = rest // grid.strides[2], rest % grid.strides[2]
            numbers.append(grid.first + (i * grid.shape[2] + j) * CHUNK_VALUES + u * CHUNK + v)
            positions.append(distance + grid.start)
        if self.pool:
            pool = [grid.view(coefficients).permute(0, 2, 1, 3).reshape(-1) for grid in self.grids[len(self._full) :]]
            chosen = top_k_global(torch.cat(pool), self.pool_share(k)) + self.chunks * CHUNK_VALUES
            numbers.append(chosen)
            positions.append(torch.from_numpy(self.positions(chosen.cpu().numpy())).to(chosen.device))
        ascending, order = torch.sort(torch.cat(numbers))
        return ascending, torch.cat(positions)[order]

    def positions(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where coefficients lie in the flat vector."""
        index = np.searchsorted(self._table[:, 0], numbers, side="right") - 1
        first, start, _, h, across, w, *strides = self._table[index].T
        chunk, place = np.divmod(numbers - first, h * w)
        result = start + chunk // across * strides[0] + place // w * strides[1]
        result += chunk % across * strides[2] + place % w * strides[3]
        return np.asarray(result, np.int64)
