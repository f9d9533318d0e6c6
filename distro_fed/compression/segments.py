"""Largest magnitude of every row of a long matrix: the one full pass that selection and sparse inverse need."""

from __future__ import annotations

import torch

from distro_fed.compression.blocks import BLOCK


def segment_maxima(segments: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each row; NaN if the row holds one.

    Parameters
    ----------
    segments : torch.Tensor
        float32, shape (count, width), neither of them 0.

    Returns
    -------
    torch.Tensor
        float32, shape (count,).
    """
    count, width = segments.shape
    maxima = torch.empty(count, device=segments.device)
    step = min(count, max(1, BLOCK // width))
    buffer = torch.empty(step, width, device=segments.device)  # fresh memory would cost more than the work
    for first in range(0, count, step):
        part = segments[first : first + step]
        torch.amax(torch.abs(part, out=buffer[: part.shape[0]]), 1, out=maxima[first : first + step])
    return maxima
