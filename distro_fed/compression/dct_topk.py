"""DisTrO / DeMo: the largest DCT coefficients of every chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from distro_fed.compression.base import Compressor, Decoded, RoundKey
from distro_fed.compression.dct import add_inverse_dct_, chunk_grids, dct_, grid_shapes
from distro_fed.compression.select import top_k_global, top_k_per_chunk
from distro_fed.compression.sparse import check_density, decode_sparse, describe_density, encode_sparse, share
from distro_fed.errors import SettingsError

if TYPE_CHECKING:
    from distro_fed.layout import Layout, TensorSpec

_LARGEST_CHUNK = 64


@dataclass(frozen=True, slots=True)
class DctTopK(Compressor):
    """Send sign and position of the largest DCT coefficients, and one scale per tensor.

    Every chunk of a matrix sends ``round(density * its size)`` coefficients (Peng et al., arXiv 2411.19870). Tensors
    with fewer than two axes, and those whose chunks are too small for one coefficient each, are
    transformed too but selected together, as one pool: a quota of one for each would exceed the density.

    Parameters
    ----------
    density : float
        Coefficients sent over coefficients there are, 0 < density <= 1. DeMo's ``k`` of 64 x 64 is ``k / 4096``.
    chunk : int
        Longest side of a chunk, 2 to 64.
    """

    density: float = 1 / 64
    chunk: int = _LARGEST_CHUNK
    name: ClassVar[str] = "dct-topk"
    codec: ClassVar[int] = 4
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_density(self.density)
        if not 2 <= self.chunk <= _LARGEST_CHUNK:
            raise SettingsError(f"chunk is {self.chunk}; use 2 to {_LARGEST_CHUNK}")

    def parameters(self) -> int:
        """Density in units of 2**-26, and ``chunk - 1`` in the lowest 6 bits."""
        return min(round(self.density * 2**26), 2**26 - 1) << 6 | self.chunk - 1

    def describe(self) -> str:
        """Name, density and chunk."""
        return f"dct-topk density={describe_density(self.density)} chunk={self.chunk}"

    def analyse(self, delta: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor:
        """DCT-II of every chunk, in place."""
        del key
        return dct_(delta, layout, self.chunk)

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, key: RoundKey) -> None:
        """Add the inverse DCT."""
        del key
        add_inverse_dct_(coefficients, replica, layout, self.chunk)

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body as in :mod:`distro_fed.compression.sparse`."""
        del seed
        pool = [where for spec, where in space.slices() if self._pooled(spec)]
        found = [top_k_global(coefficients, self._pool_share(space), pool)]
        for spec, where in space.slices():
            if not self._pooled(spec):
                for grid in chunk_grids(coefficients[where], spec.shape, self.chunk):
                    start = int(grid.storage_offset() - coefficients.storage_offset())
                    found.append(top_k_per_chunk(grid, round(self.density * grid.shape[1] * grid.shape[3])) + start)
        return encode_sparse(coefficients, torch.sort(torch.cat(found)).values, space)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check the body; it may hold as many positions as chunks and pool have to give, and fewer."""
        limit = self._pool_share(space)
        for spec in space:
            if not self._pooled(spec):
                limit += sum(
                    chunks * round(self.density * size) for chunks, size in grid_shapes(spec.shape, self.chunk)
                )
        return decode_sparse(body, space, limit)

    def _pooled(self, spec: TensorSpec) -> bool:
        return len(spec.shape) < 2 or any(
            round(self.density * size) == 0 for _, size in grid_shapes(spec.shape, self.chunk)
        )

    def _pool_share(self, space: Layout) -> int:
        return share(self.density, sum(spec.numel for spec in space if self._pooled(spec)))
