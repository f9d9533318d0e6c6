"""Send the largest values of both factors of a low-rank change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distro_fed.compression.base import Decoded
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
from distro_fed.compression.tracking_bases import SIDES, TrackedFactors
from distro_fed.layout import TensorSpec

if TYPE_CHECKING:
    import torch

    from distro_fed.layout import Layout

#: the frame's header has a byte for the rank and two for the density
_LARGEST_RANK = 256
_DENSITY_STEPS = 2**16


@dataclass(frozen=True, slots=True)
class TrackingTopK(TrackedFactors):
    """Send the largest values of the factors of all weights of linear layers, by one threshold for the model.

    The largest 1/14 of rank 2 or 1/33 of rank 4, with two bits a value, take about the bytes of all of rank 1 in one
    bit. What was not sent has to wait in residuals, at members and server, or most of the update is lost.

    Parameters
    ----------
    rank : int
        Rows of a basis, 1 to 256.
    density : float
        Values sent over values there are, 0 < density <= 1.
    value_bits : int
        1: the sign, and one scale per factor. 2: the sign and one of two magnitudes per factor.
    decay : float
        As in :class:`~distro_fed.compression.tracking.Tracking`.
    """

    rank: int = 2
    density: float = 1 / 16
    value_bits: int = 1
    decay: float = 1.0
    name: ClassVar[str] = "tracking-topk"
    codec: ClassVar[int] = 8
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_bases(_LARGEST_RANK)
        check_density(self.density)
        check_value_bits(self.value_bits)

    def parameters(self) -> int:
        """Decay in 64ths in the highest 7 bits, then ``rank - 1``, ``value_bits - 1``, and density in units of 2**-16.

        The rank has a byte, and the bits of a value one bit.
        """
        density = min(round(self.density * _DENSITY_STEPS), _DENSITY_STEPS - 1)
        return self.decay_steps << 25 | (self.rank - 1) << 17 | (self.value_bits - 1) << 16 | density

    def describe(self) -> str:
        """Name, rank, density, bits of a value if there are two, and decay."""
        density, bits = describe_density(self.density), describe_value_bits(self.value_bits)
        return f"tracking-topk rank={self.rank} density={density}{bits} {self.describe_decay()}"

    def tensors_of(self, spec: TensorSpec) -> Iterator[TensorSpec]:
        """Both factors as they are: few values of a row are sent, too few for a scale of its own."""
        for side, size in zip(SIDES, spec.shape, strict=True):
            yield TensorSpec(f"{spec.name}[{side}]", (self.rank, size))

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body as in :mod:`distro_fed.compression.sparse`."""
        del seed
        positions = top_k_global(coefficients, share(self.density, space.numel))
        return encode_sparse(coefficients, positions, space, self.value_bits)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check the body; it may hold as many positions as the density stands for, and fewer."""
        return decode_sparse(body, space, share(self.density, space.numel), self.value_bits)
