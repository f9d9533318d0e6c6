"""DisTrO / DeMo: the largest DCT coefficients of every chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distro_fed.compression.base import Compressor, Decoded, RoundKey
from distro_fed.compression.chunk_quota import LARGEST_CHUNK, most_by_quota, top_k_by_quota
from distro_fed.compression.dct import add_inverse_dct_, dct_
from distro_fed.compression.sparse import (
    check_density,
    check_value_bits,
    decode_sparse,
    describe_density,
    describe_value_bits,
    encode_sparse,
)
from distro_fed.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from distro_fed.layout import Layout


@dataclass(frozen=True, slots=True)
class DctTopK(Compressor):
    """Send value and position of the largest DCT coefficients of every chunk.

    Every chunk of a matrix sends ``round(density * its size)`` coefficients (Peng et al., arXiv 2411.19870). Tensors
    without such chunks are transformed too but selected together (:mod:`~distro_fed.compression.chunk_quota`).

    Parameters
    ----------
    density : float
        Coefficients sent over coefficients there are, 0 < density <= 1. DeMo's ``k`` of 64 x 64 is ``k / 4096``.
    chunk : int
        Longest side of a chunk, 2 to 64.
    value_bits : int
        1: the sign, and one scale per tensor. 2: the sign and one of two magnitudes per tensor.
    """

    density: float = 1 / 64
    chunk: int = LARGEST_CHUNK
    value_bits: int = 1
    name: ClassVar[str] = "dct-topk"
    codec: ClassVar[int] = 4
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_density(self.density)
        check_value_bits(self.value_bits)
        if not 2 <= self.chunk <= LARGEST_CHUNK:
            raise SettingsError(f"chunk is {self.chunk}; use 2 to {LARGEST_CHUNK}")

    def parameters(self) -> int:
        """Density in units of 2**-25; then ``value_bits - 1`` in one bit and ``chunk - 1`` in the lowest 6."""
        return min(round(self.density * 2**25), 2**25 - 1) << 7 | self.value_bits - 1 << 6 | self.chunk - 1

    def describe(self) -> str:
        """Name, density and chunk, and bits of a value if there are two."""
        density, bits = describe_density(self.density), describe_value_bits(self.value_bits)
        return f"dct-topk density={density} chunk={self.chunk}{bits}"

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
        positions = top_k_by_quota(coefficients, space, self.density, self.chunk)
        return encode_sparse(coefficients, positions, space, self.value_bits)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check the body; it may hold as many positions as chunks and pool have to give, and fewer."""
        return decode_sparse(body, space, most_by_quota(space, self.density, self.chunk), self.value_bits)
