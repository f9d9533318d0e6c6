"""Orthonormal DCT-II over small chunks of every tensor, in place, as matrix products.

A matrix is cut into chunks of at most ``chunk`` x ``chunk`` and each is replaced by ``D X D'``, as DeMo does
(Peng et al., arXiv 2411.19870, section 3). Three choices differ:

* An axis is cut into the fewest pieces that are small enough, of equal size up to one, instead of into the
  largest divisor: a prime axis of 127 becomes 64 + 63 and not 127 x 1. Multiples of ``chunk`` come out the same.
* More than two axes: the last two are cut, the others count matrices.
* Vectors are cut into pieces of ``chunk`` too. Their order means nothing (a norm has one weight per channel), so a
  longer transform would gather no more energy, and its basis would cost the square of its length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from distro_fed.compression.segments import segment_maxima

if TYPE_CHECKING:
    from distro_fed.layout import Layout

#: values transformed at a time: few enough for a processor's cache, many enough to make few calls
_BLOCK = 2**18
#: values whose sparse inverse is computed together, to make few calls
_BATCH = 2**21
#: values of which products of basis vectors are added at a time; few enough for a second-level cache
_PRODUCTS = 2**17
#: rows of a chunk that are not zero, up to which the sparse inverse is the faster one
_FEW = 32


def dct_(flat: torch.Tensor, layout: Layout, chunk: int = 64) -> torch.Tensor:
    """Replace every tensor of a flat vector by its chunks' DCT-II; returns ``flat``.

    Parameters
    ----------
    flat : torch.Tensor
        Contiguous float32, ``layout.numel`` values, any device. Overwritten.
    layout : Layout
        Where each tensor lies.
    chunk : int
        Longest side of a chunk.
    """
    for spec, where in layout.slices():
        for grid in chunk_grids(flat[where], spec.shape, chunk):
            _transform_(grid, _basis(grid.shape[1]), _basis(grid.shape[3]))
    return flat


def add_inverse_dct_(coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, chunk: int = 64) -> None:
    """Add the inverse of :func:`dct_` to ``replica``, in place.

    Most rows of a chunk are zero if only one or few updates were summed: then only the others are transformed.

    Parameters
    ----------
    coefficients, replica : torch.Tensor
        Contiguous float32, ``layout.numel`` values each. ``coefficients`` may be overwritten.
    layout, chunk
        As in :func:`dct_`.
    """
    for spec, where in layout.slices():
        grids = chunk_grids(coefficients[where], spec.shape, chunk)
        for source, target in zip(grids, chunk_grids(replica[where], spec.shape, chunk), strict=True):
            rows, h, across, w = source.shape
            step = max(1, _BATCH // (h * across * w))
            for first in range(0, rows, step):
                _add_inverse_(source[first : first + step], target[first : first + step])


def chunk_grids(values: torch.Tensor, shape: tuple[int, ...], chunk: int) -> Iterator[torch.Tensor]:
    """View one flat tensor as grids of equal chunks: one grid, or up to four where sizes do not divide.

    Yields
    ------
    torch.Tensor
        A view (rows of chunks, height, columns of chunks, width) that shares memory with ``values``.
    """
    if values.numel() == 0:
        return
    if len(shape) < 2:  # chunks below each other, so that blocks of them are contiguous
        for start, count, width in _cut(values.numel(), chunk):
            yield values[start : start + count * width].view(count, 1, 1, width)
        return
    height, width = shape[-2:]
    rows, columns = _cut(height, chunk), _cut(width, chunk)
    matrices = values.view(-1, height, width)
    if len(rows) == 1:  # no chunk crosses from one matrix into the next: take all of them as one
        matrices = values.view(1, -1, width)
        rows = [(0, matrices.shape[1] // rows[0][2], rows[0][2])]
    for matrix in matrices:
        for top, down, h in rows:
            for left, across, w in columns:
                part = matrix[top : top + down * h, left : left + across * w]
                yield part.unflatten(1, (across, w)).unflatten(0, (down, h))


def grid_shapes(shape: tuple[int, ...], chunk: int) -> list[tuple[int, int]]:
    """Pairs (number of chunks, values in each) of the grids that :func:`chunk_grids` yields, summed by size."""
    if math.prod(shape) == 0:
        return []
    if len(shape) < 2:
        return [(count, width) for _, count, width in _cut(math.prod(shape), chunk)]
    matrices = math.prod(shape[:-2])
    return [
        (matrices * down * across, h * w)
        for _, down, h in _cut(shape[-2], chunk)
        for _, across, w in _cut(shape[-1], chunk)
    ]


def _cut(size: int, chunk: int) -> list[tuple[int, int, int]]:
    """Runs (start, pieces, length) of one axis: lengths differ by one at most, the longer run first."""
    pieces = -(-size // chunk)
    length, longer = divmod(size, pieces)
    runs = [(0, longer, length + 1), (longer * (length + 1), pieces - longer, length)]
    return [run for run in runs if run[1]]


@lru_cache(maxsize=256)
def _basis(size: int) -> torch.Tensor:
    """Orthonormal DCT-II matrix: row k is the k-th cosine."""
    k, i = np.arange(size)[:, None], np.arange(size)[None, :]
    rows = np.cos(np.pi / (2 * size) * ((2 * i + 1) * k % (4 * size))) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return torch.from_numpy(rows.astype(np.float32))


def _add_inverse_(source: torch.Tensor, target: torch.Tensor) -> None:
    rows, h, across, w = source.shape
    factors = _factors(source)
    if factors is None:
        _transform_(source, _basis(h).T, _basis(w).T)
        target.add_(source)
        return
    left, right = factors
    step = min(rows, max(1, _PRODUCTS // (h * across * w)))
    buffer = torch.empty(step * across, h, w, device=source.device)  # fresh memory would cost more than the work
    for first in range(0, rows, step):
        part = target[first : first + step]
        chunks = slice(first * across, (first + part.shape[0]) * across)
        products = torch.bmm(left[chunks].transpose(1, 2), right[chunks], out=buffer[: part.shape[0] * across])
        part.add_(products.view(-1, across, h, w).permute(0, 2, 1, 3))


def _factors(grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Write each chunk's inverse as ``left' right``, with a row of each for every row of the chunk that is not zero.

    Returns
    -------
    tuple of torch.Tensor, or None
        (chunks, terms, height) and (chunks, terms, width); None if a chunk has more than :data:`_FEW` such rows.
    """
    rows, h, across, w = grid.shape
    segments = grid.reshape(-1, w)
    alive = segment_maxima(segments).view(rows, h, across).permute(0, 2, 1).reshape(-1, h) != 0
    terms = max(1, int(alive.sum(1).amax()))
    if terms > _FEW:
        return None
    chunk, u = torch.nonzero(alive).unbind(1)
    slot = chunk * terms + alive.cumsum(1)[alive] - 1
    lines = segments.index_select(0, (chunk // across * h + u) * across + chunk % across)
    left = torch.zeros(alive.shape[0] * terms, h, device=grid.device)
    right = torch.zeros(alive.shape[0] * terms, w, device=grid.device)
    left.index_copy_(0, slot, _basis(h).to(grid.device).index_select(0, u))
    right.index_copy_(0, slot, lines @ _basis(w).to(grid.device))
    return left.view(-1, terms, h), right.view(-1, terms, w)


def _transform_(grid: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Replace every chunk ``X`` by ``left X right'``."""
    left, right = left.to(grid.device), right.to(grid.device)
    rows, h, across, w = grid.shape
    step = min(rows, max(1, _BLOCK // (h * across * w)))
    buffers = torch.empty(2, step, h, across * w, device=grid.device)  # fresh memory would cost more than the work
    for first in range(0, rows, step):
        part = grid[first : first + step]
        once, twice = buffers[:, : part.shape[0]]
        torch.mm(part.reshape(-1, w), right.T, out=once.view(-1, w))  # first, because it reads in the order of memory
        if h == 1:
            part.copy_(once.view(part.shape))
            continue
        target = part.view(once.shape) if part.is_contiguous() else twice
        torch.bmm(left.expand(part.shape[0], h, h), once, out=target)
        if target is twice:
            part.copy_(twice.view(part.shape))
