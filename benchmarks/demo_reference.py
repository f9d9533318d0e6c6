"""The DeMo way to select and exchange coefficients, written for reading, as the slow side of a comparison.

Follows the public reference implementation of Peng et al. (arXiv 2411.19870): a DCT-II by one einsum per tensor, top-k
in every chunk, int64 indices and float32 values, and the way back. A chunk's side is the largest divisor up to 64.
"""

from __future__ import annotations

import math

import torch

CHUNK = 64
BITS_PER_COEFFICIENT = 64 + 32


def basis(size: int) -> torch.Tensor:
    """Orthonormal DCT-II, one cosine per column."""
    k, i = torch.arange(size, dtype=torch.float64)[None], torch.arange(size, dtype=torch.float64)[:, None]
    columns = torch.cos(math.pi * (2 * i + 1) * k / (2 * size)) * math.sqrt(2 / size)
    columns[:, 0] /= math.sqrt(2)
    return columns.float()


def divisor(size: int) -> int:
    """Side of a chunk."""
    return max(side for side in range(1, min(size, CHUNK) + 1) if size % side == 0)


def transform(tensor: torch.Tensor) -> torch.Tensor:
    """Chunks of DCT coefficients: (rows of chunks, columns of chunks, height, width), or (chunks, width)."""
    if tensor.dim() < 2:
        w = divisor(tensor.numel())
        return torch.einsum("xj,jl->xl", tensor.view(-1, w), basis(w))
    h, w = divisor(tensor.shape[0]), divisor(tensor.shape[1])
    chunks = tensor.view(tensor.shape[0] // h, h, tensor.shape[1] // w, w)
    return torch.einsum("yjxl,jb,ld->yxbd", chunks, basis(h), basis(w))


def inverse(chunks: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Inverse of :func:`transform`."""
    if chunks.dim() == 2:
        return torch.einsum("xl,jl->xj", chunks, basis(chunks.shape[1])).reshape(shape)
    h, w = chunks.shape[2:]
    return torch.einsum("yxbd,jb,ld->yjxl", chunks, basis(h), basis(w)).reshape(shape)


def compress(tensor: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Size]:
    """Indices (int64) and values of the ``k`` largest coefficients of each chunk, and the shape of the chunks."""
    chunks = transform(tensor)
    flat = chunks.flatten(2) if chunks.dim() == 4 else chunks
    indices = torch.topk(flat.abs(), k=min(k, flat.shape[-1]), dim=-1, largest=True, sorted=False).indices
    return indices, torch.gather(flat, -1, indices), chunks.shape


def decompress(indices: torch.Tensor, values: torch.Tensor, chunks: torch.Size, shape: torch.Size) -> torch.Tensor:
    """Dense tensor of the received coefficients."""
    flat = torch.zeros(chunks).flatten(2) if len(chunks) == 4 else torch.zeros(chunks)
    # the mean over those who sent a coefficient, as the reference does; here one member sent all of them
    flat.scatter_reduce_(-1, indices, values, reduce="mean", include_self=False)
    return inverse(flat.view(chunks), shape)
