"""The largest coefficients of the whole model by one threshold, or of every chunk by a quota."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distro_fed.compression.base import Compressor, Decoded
from distro_fed.compression.chunk_quota import LARGEST_CHUNK, most_by_quota, top_k_by_quota
from distro_fed.compression.select import top_k_global
from distro_fed.compression.sparse import (
    check_density,
    check_value_bits,
    decode_sparse,
    describe_density,
    describe_value_bits,
    encode_sparse,
    share,
)
from distro_fed.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from distro_fed.layout import Layout


@dataclass(frozen=True, slots=True)
class TopK(Compressor):
    """Send value and position of the largest magnitudes.

    ``selection="global"`` looks at all tensors at once: one that moved more than others gets more of the budget, which
    at equal density is better than a quota for each chunk. ``"chunk"`` sends ``round(density * size)`` of every
    64 x 64 chunk of a matrix, as SparseLoCo does (arXiv 2508.15706), so that no tensor is left out for long.

    Parameters
    ----------
    density : float
        Coefficients sent over coefficients there are, 0 < density <= 1.
    selection : str
        ``"global"`` or ``"chunk"``.
    value_bits : int
        1: the sign, and one scale per tensor. 2: the sign and one of two magnitudes per tensor.
    """

    density: float = 1 / 64
    selection: str = "global"
    value_bits: int = 1
    name: ClassVar[str] = "topk"
    codec: ClassVar[int] = 3
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_density(self.density)
        check_value_bits(self.value_bits)
        if self.selection not in ("global", "chunk"):
            raise SettingsError(f"selection is {self.selection!r}; use 'global' or 'chunk'")

    def parameters(self) -> int:
        """Density in units of 2**-30; then 1 for ``selection="chunk"``; ``value_bits - 1`` in the lowest bit."""
        return min(round(self.density * 2**30), 2**30 - 1) << 2 | self._by_chunk << 1 | self.value_bits - 1

    def describe(self) -> str:
        """Name and density, and what else is not the default."""
        chunks = f" per {LARGEST_CHUNK}x{LARGEST_CHUNK} chunk" if self._by_chunk else ""
        return f"topk density={describe_density(self.density)}{chunks}{describe_value_bits(self.value_bits)}"

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body as in :mod:`distro_fed.compression.sparse`."""
        del seed
        if self._by_chunk:
            positions = top_k_by_quota(coefficients, space, self.density, LARGEST_CHUNK)
        else:
            positions = top_k_global(coefficients, share(self.density, space.numel))
        return encode_sparse(coefficients, positions, space, self.value_bits)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check the body; it may hold as many positions as the selection has to give, and fewer."""
        most = most_by_quota(space, self.density, LARGEST_CHUNK) if self._by_chunk else share(self.density, space.numel)
        return decode_sparse(body, space, most, self.value_bits)

    @property
    def _by_chunk(self) -> bool:
        return self.selection == "chunk"
