"""The common half of a step: votes -> inverse DCT -> sign -> parameters, with the same bits at every peer.

The sign of a sum of cosines hangs on its last bit wherever the sum is zero or nearly so, and floating-point sums depend
on the device, the number of threads and the library. Here all sums are exact: the basis is rounded to whole numbers,
votes are whole numbers, and float64 holds every sum of their products. Peers with different processors stay equal.
A sum that may be zero but for the rounding of the basis counts as zero: 1 part in 2**15 of the largest one possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from distro_fed.optim.coefficient_order import CoefficientOrder
from distro_fed.optim.votes import Votes

# Cosines times 2**15, twice, times votes whose magnitudes in a chunk sum to 2**23 at most: exact below 2**53.
_BASIS_ONE = 2**15
# Two cosines are off by 1/2 at most, so their product by less than this.
_PRODUCT_ERROR = 2**15 + 1
#: values transformed at a time; few enough for a processor's cache
_BLOCK = 2**17
#: coefficients of a chunk up to which a product of basis vectors for each is the faster way
_FEW = 32


@torch.no_grad()
def step_parameters(
    parameters: Sequence[nn.Parameter],
    order: CoefficientOrder,
    votes: Votes,
    rates: Sequence[float],
    decays: Sequence[float],
) -> None:
    """``theta <- (1 - eta lambda) theta - eta sign(T' q)``, in place (arXiv 2411.19870, Algorithm 1).

    Parameters
    ----------
    parameters : sequence of Parameter
        In the order of ``order.layout``.
    votes : Votes
        Of all peers together.
    rates, decays : sequence of float
        Learning rate ``eta`` and weight decay ``lambda`` of each parameter.
    """
    values = votes.coefficients()
    device = parameters[0].device
    if device.type == "mps":  # has no float64
        device = torch.device("cpu")
    signs = torch.empty(max(spec.numel for spec in order.layout), device=device)
    tensors = zip(parameters, rates, decays, order.layout.offsets, order.grids_of_tensors, strict=False)
    for parameter, rate, decay, start, grids in tensors:
        if decay:
            parameter.mul_(1 - rate * decay)
        bounds = [np.searchsorted(votes.numbers, (grid.first, grid.first + grid.size)) for grid in grids]
        if all(low == high for low, high in bounds):
            continue
        step = signs[: parameter.numel()]
        for grid, (low, high) in zip(grids, bounds, strict=True):
            _write_signs(grid.view(step, start), votes.numbers[low:high] - grid.first, values[low:high])
        parameter.add_(step.view(parameter.shape).to(parameter.device), alpha=-rate)


def _write_signs(grid: torch.Tensor, numbers: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """Fill a grid of chunks with the signs of their inverse DCT."""
    rows, h, across, w = grid.shape
    chunk, place = np.divmod(numbers, h * w)
    slot = np.arange(chunk.size) - np.searchsorted(chunk, chunk)  # how many coefficients of the chunk come before
    blur = _PRODUCT_ERROR * float(np.bincount(chunk, np.abs(values)).max(initial=0))
    at_once = max(1, _BLOCK // (h * across * w))
    for top in range(0, rows, at_once):
        part = grid[top : top + at_once]
        here = slice(*np.searchsorted(chunk, (top * across, (top + at_once) * across)))
        sums = _inverse(
            part.shape[0] * across, h, w, chunk[here] - top * across, slot[here], place[here], values[here], grid.device
        )
        part.copy_(nn.functional.hardshrink(sums, blur).sign_().view(-1, across, h, w).permute(0, 2, 1, 3))


def _inverse(
    chunks: int,
    h: int,
    w: int,
    chunk: NDArray[np.int64],
    slot: NDArray[np.int64],
    place: NDArray[np.int64],
    values: NDArray[np.float64],
    device: torch.device,
) -> torch.Tensor:
    """Inverse DCT of ``chunks`` chunks up to a positive factor, exact; float64, shape (chunks, h, w)."""
    left, right = _basis(h).to(device), _basis(w).to(device)
    terms = int(slot.max(initial=0)) + 1
    c, u, v = (torch.from_numpy(index).to(device) for index in (chunk, place // w, place % w))
    coefficients = torch.from_numpy(values).to(device)
    if terms <= _FEW:
        line = c * terms + torch.from_numpy(slot).to(device)
        columns = torch.zeros(2, chunks * terms, max(h, w), dtype=torch.float64, device=device)
        columns[0, :, :h].index_copy_(0, line, left[u])
        columns[1, :, :w].index_copy_(0, line, right[v] * coefficients[:, None])
        down, across = columns.view(2, chunks, terms, -1)
        return torch.bmm(down[:, :, :h].transpose(1, 2), across[:, :, :w])
    dense = torch.zeros(chunks, h, w, dtype=torch.float64, device=device)
    dense[c, u, v] = coefficients
    return left.T @ (dense @ right)


@lru_cache(maxsize=256)
def _basis(size: int) -> torch.Tensor:
    """Row k is the k-th cosine of the DCT-II in units of 2**-15, without the factor that all rows share."""
    k, i = np.arange(size)[:, None], np.arange(size)[None, :]
    rows = np.cos(np.pi / (2 * size) * ((2 * i + 1) * k % (4 * size)))
    rows[0] = np.sqrt(0.5)
    return torch.from_numpy(np.rint(rows * _BASIS_ONE))
