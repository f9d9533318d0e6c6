"""The largest coefficients of the whole model, by one threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distro_fed.compression.base import Compressor, Decoded
from distro_fed.compression.select import top_k_global
from distro_fed.compression.sparse import check_density, decode_sparse, describe_density, encode_sparse, share

if TYPE_CHECKING:
    import torch

    from distro_fed.layout import Layout


@dataclass(frozen=True, slots=True)
class TopK(Compressor):
    """Send sign and position of the largest magnitudes over all tensors, and one scale per tensor.

    A tensor that moved more than others gets more of the budget, which at equal density is better than a
    quota for each chunk.

    Parameters
    ----------
    density : float
        Coefficients sent over coefficients there are, 0 < density <= 1.
    """

    density: float = 1 / 64
    name: ClassVar[str] = "topk"
    codec: ClassVar[int] = 3
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_density(self.density)

    def parameters(self) -> int:
        """Density in units of 2**-32."""
        return min(round(self.density * 2**32), 2**32 - 1)

    def describe(self) -> str:
        """Name and density."""
        return f"topk density={describe_density(self.density)}"

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body as in :mod:`distro_fed.compression.sparse`."""
        del seed
        return encode_sparse(coefficients, top_k_global(coefficients, share(self.density, space.numel)), space)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check the body; it may hold ``round(density * space.numel)`` positions, and fewer."""
        return decode_sparse(body, space, share(self.density, space.numel))
