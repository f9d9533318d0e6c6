"""Find the coefficients of largest magnitude, exactly, without sorting and in bounded memory.

Among equal magnitudes the lower position wins, so the result is the same on every device. Zeros are never selected:
there are fewer positions than asked for where fewer coefficients differ from zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distro_fed.compression.blocks import BLOCK, blocks
from distro_fed.compression.scales import LARGEST
from distro_fed.compression.segments import segment_maxima
from distro_fed.errors import TrainingError

_MAGNITUDE = 0x7FFFFFFF  # a float32 without its sign, read as an integer, sorts by magnitude
_STRIDE = 61  # one value in so many is looked at first; a prime, not to meet the same columns of every row
_BATCH = 2**20  # values whose chunks are searched together, to make few calls
_PLACE_BITS = 12  # a chunk has at most 4096 values


def top_k_global(flat: torch.Tensor, k: int, within: Sequence[slice] | None = None) -> torch.Tensor:
    """Positions of the ``k`` largest magnitudes of a vector.

    A sample gives a magnitude that somewhat more than ``k`` values should reach. If at least ``k`` do, and not many
    more, the answer is among them; otherwise it is sought among all.

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
    found = [torch.zeros(0, dtype=torch.int64, device=flat.device)]
    floor, room = _sampled_floor(flat, walk, k), 2 * k + BLOCK
    buffer = torch.empty(BLOCK, device=flat.device)  # fresh memory would cost more than the work
    for block in walk:
        magnitudes = torch.abs(flat[block], out=buffer[: block.stop - block.start])
        if not float(magnitudes.amax()) < LARGEST:  # a NaN compares false
            _refuse(magnitudes)
        if floor > 0 and room > 0:
            found.append(torch.nonzero(magnitudes >= floor).squeeze(1) + block.start)
            room -= found[-1].numel()
    candidates = torch.cat(found)
    if candidates.numel() >= k and room > 0:
        return candidates[_exact_top_k(flat[candidates], k, list(blocks(0, candidates.numel())))]
    return _exact_top_k(flat, k, walk)


def _sampled_floor(flat: torch.Tensor, walk: Sequence[slice], k: int) -> float:
    """Magnitude that a quarter more than ``k`` values should reach; 0 if a sample cannot tell."""
    total = sum(block.stop - block.start for block in walk)
    if k <= 0 or total < 64 * _STRIDE:
        return 0.0
    sample = torch.cat([flat[block][::_STRIDE] for block in walk]).abs()
    rank = int(1.25 * k * sample.numel() / total) + 32
    return float(sample.topk(rank, sorted=True).values[-1]) if rank < sample.numel() else 0.0


def _exact_top_k(flat: torch.Tensor, k: int, walk: Sequence[slice]) -> torch.Tensor:
    """Two histograms, over the upper and the lower 16 bits, give the exact threshold; a third pass collects."""
    upper = torch.zeros(2**15, dtype=torch.int64, device=flat.device)
    lower = torch.zeros(2**16, dtype=torch.int64, device=flat.device)
    for block in walk:
        upper += torch.bincount(_magnitude_bits(flat[block]) >> 16, minlength=2**15)
    top, wanted = _crossing(upper, k)
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


def _crossing(histogram: torch.Tensor, k: int) -> tuple[int, int]:
    """Bin that holds the ``k``-th largest value, and how many of that bin belong to the ``k`` largest."""
    from_top = histogram.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, k))
    if place == histogram.numel():  # fewer than k values
        return 0, int(histogram[0])
    bin_ = histogram.numel() - 1 - place
    return bin_, k - int(from_top[place]) + int(histogram[bin_])


def top_k_per_chunk(grid: torch.Tensor, k: int) -> torch.Tensor:
    """Positions of the ``k`` largest magnitudes in every chunk.

    The ``k`` largest values of a chunk lie in the ``k`` rows with the largest maxima, so only those are compared value
    by value; a chunk whose ``k``-th value occurs more than once is sorted.

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
    step = max(1, _BATCH // (h * across * w))
    found = []
    for first in range(0, rows, step):
        part = grid[first : first + step]
        place, taken = _places_per_chunk(part, k)
        i = torch.arange(part.shape[0], device=grid.device)[:, None, None]
        j = torch.arange(across, device=grid.device)[None, :, None]
        u, v = place // w, place % w
        distance = (i + first) * grid.stride(0) + u * grid.stride(1) + j * grid.stride(2) + v * grid.stride(3)
        found.append(distance[taken])
    return torch.cat(found)


def _places_per_chunk(grid: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (row by row in their chunk) of the ``k`` largest magnitudes, and which of them are not zero.

    Both of shape (rows of chunks, columns of chunks, k).
    """
    rows, h, across, w = grid.shape
    segments = grid.reshape(-1, w)
    in_memory = segment_maxima(segments)
    if not float(in_memory.amax()) < LARGEST:  # a NaN compares false
        _refuse(in_memory)
    maxima = in_memory.view(rows, h, across).permute(0, 2, 1).contiguous()
    best = maxima.topk(min(k, h), dim=2, sorted=False).indices
    i = torch.arange(rows, device=grid.device)[:, None, None]
    j = torch.arange(across, device=grid.device)[None, :, None]
    lines = ((i * h + best) * across + j).flatten()
    candidates = segments.index_select(0, lines).abs_().view(rows, across, -1)
    values, chosen = candidates.topk(min(k, h * w), dim=2, sorted=False)
    place = best.gather(2, chosen // w) * w + chosen % w

    # What was left out, in other rows or in these, may equal the smallest of what was taken.
    left_out = torch.maximum(maxima.scatter(2, best, 0.0).amax(2), candidates.scatter_(2, chosen, 0.0).amax(2))
    ambiguous = (left_out > 0) & (left_out >= values.amin(2))
    if bool(ambiguous.any()):
        # one integer per value: its magnitude, then its place counted backwards, so that ties go to the lower place
        chunks = grid.permute(0, 2, 1, 3)[ambiguous].flatten(1)
        backwards = torch.arange(h * w - 1, -1, -1, device=grid.device)
        keys = (_magnitude_bits(chunks).to(torch.int64) << _PLACE_BITS) | backwards
        keys = keys.topk(place.shape[2], dim=1, sorted=False).values
        place[ambiguous] = h * w - 1 - (keys & 2**_PLACE_BITS - 1)
    return place, values > 0


def _magnitude_bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32) & _MAGNITUDE


def _refuse(magnitudes: torch.Tensor) -> None:
    worst = magnitudes[~(magnitudes < LARGEST)][0]
    raise TrainingError(
        f"a coefficient is {float(worst)}, and only finite values below 2**64 may be sent: "
        "training diverged; lower the learning rate"
    )
