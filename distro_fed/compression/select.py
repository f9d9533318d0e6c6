"""Find the coefficients of largest magnitude, exactly, without sorting and in bounded memory.

Among equal magnitudes the lower position wins, so the result is the same on every device. Zeros are never selected:
there are fewer positions than asked for where fewer coefficients differ from zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distro_fed.compression.blocks import BLOCK, blocks
from distro_fed.compression.scales import LARGEST
from distro_fed.errors import TrainingError

_MAGNITUDE = 0x7FFFFFFF  # a float32 without its sign, read as an integer, sorts by magnitude
_FIRST_USELESS = 0x5F80  # upper half of the float32 2**64: from here to infinity and NaN


def top_k_global(flat: torch.Tensor, k: int, within: Sequence[slice] | None = None) -> torch.Tensor:
    """Positions of the ``k`` largest magnitudes of a vector.

    Two histograms, over the upper and the lower 16 bits of the magnitude, give the exact threshold; a third pass
    collects what lies above.

    Parameters
    ----------
    flat : torch.Tensor
        float32, any length and device.
    k : int
        How many; may exceed the length.
    within : sequence of slice, optional
        Look only at these ascending parts of the vector.

    Returns
    -------
    torch.Tensor
        int64, ascending, at most ``k`` positions in ``flat``.

    Raises
    ------
    TrainingError
        If a value is NaN, infinite or not below 2**64.
    """
    parts = [slice(0, flat.numel())] if within is None else within
    walk = [block for part in parts for block in blocks(part.start, part.stop)]
    upper = _histogram(2**15, flat)
    for block in walk:
        upper += torch.bincount(_magnitude_bits(flat[block]) >> 16, minlength=2**15)
    if int(upper[_FIRST_USELESS:].sum()):
        _refuse(flat, walk)
    top, wanted = _crossing(upper, k)
    lower = _histogram(2**16, flat)
    for block in walk:
        bits = _magnitude_bits(flat[block])
        lower += torch.bincount(bits[bits >> 16 == top] & 0xFFFF, minlength=2**16)
    bottom, ties = _crossing(lower, wanted)
    threshold = top << 16 | bottom
    found = [torch.zeros(0, dtype=torch.int64, device=flat.device)]
    for block in walk if k > 0 else []:
        bits = _magnitude_bits(flat[block])
        chosen = bits > threshold
        if ties and threshold:
            equal = torch.nonzero(bits == threshold).squeeze(1)[:ties]
            chosen[equal] = True
            ties -= equal.numel()
        found.append(torch.nonzero(chosen).squeeze(1) + block.start)
    return torch.cat(found)


def top_k_per_chunk(grid: torch.Tensor, k: int) -> torch.Tensor:
    """Positions of the ``k`` largest magnitudes in every chunk.

    The ``k`` largest values of a chunk lie in the ``k`` rows with the largest maxima, so only those are compared
    value by value.

    Parameters
    ----------
    grid : torch.Tensor
        float32 view (rows of chunks, height, columns of chunks, width), as
        :func:`~distro_fed.compression.dct.chunk_grids` yields; a chunk has at most 4096 values.
    k : int
        How many in each chunk, at least 1.

    Returns
    -------
    torch.Tensor
        int64, in no order: distances in memory from the grid's first value, by the view's strides.

    Raises
    ------
    TrainingError
        If a value is NaN, infinite or not below 2**64.
    """
    rows, h, across, w = grid.shape
    step = max(1, BLOCK // (h * across * w))
    return torch.cat([_top_k_of(grid[at : at + step], k) + at * grid.stride(0) for at in range(0, rows, step)])


def _top_k_of(grid: torch.Tensor, k: int) -> torch.Tensor:
    rows, h, across, w = grid.shape
    largest = grid.abs().amax(3)
    if not float(largest.amax()) < LARGEST:
        _refuse(grid.reshape(-1), [slice(0, grid.numel())])
    # one integer per row: its largest magnitude, then its place counted backwards, so that ties go to the lower place
    row_keys = largest.permute(0, 2, 1).contiguous().view(torch.int32).to(torch.int64) << 6
    row_keys |= torch.arange(h - 1, -1, -1, device=grid.device)
    best = h - 1 - (row_keys.topk(min(k, h), dim=2, sorted=False).values & 63)
    down = torch.arange(rows, device=grid.device)[:, None, None]
    right = torch.arange(across, device=grid.device)[None, :, None]
    candidates = grid[down, best, right]
    place = best[..., None] * w + torch.arange(w, device=grid.device)
    keys = (_magnitude_bits(candidates).to(torch.int64) << 12 | h * w - 1 - place).flatten(2)
    keys = keys.topk(min(k, keys.shape[2]), dim=2, sorted=False).values
    place = h * w - 1 - (keys & 4095)
    s0, s1, s2, s3 = grid.stride()
    distance = down * s0 + place // w * s1 + right * s2 + place % w * s3
    return distance[keys >> 12 > 0]


def _magnitude_bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32) & _MAGNITUDE


def _histogram(bins: int, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(bins, dtype=torch.int64, device=like.device)


def _crossing(histogram: torch.Tensor, k: int) -> tuple[int, int]:
    """Bin that holds the ``k``-th largest value, and how many of the bin belong to the ``k`` largest."""
    from_top = histogram.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, k))
    if place == histogram.numel():  # fewer than k values
        return 0, int(histogram[0])
    inside = int(histogram[histogram.numel() - 1 - place])
    return histogram.numel() - 1 - place, k - (int(from_top[place]) - inside)


def _refuse(flat: torch.Tensor, walk: Sequence[slice]) -> None:
    for block in walk:
        bad = torch.nonzero(~(flat[block].abs() < LARGEST)).squeeze(1)
        if bad.numel():
            at = int(bad[0]) + block.start
            raise TrainingError(
                f"coefficient {at} is {float(flat[at])}, and only finite values below 2**64 may be sent: "
                "training diverged; lower the learning rate"
            )
