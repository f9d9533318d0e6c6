"""Send both factors of a low-rank change in a few bits a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from distro_fed.compression.quantized import Quantized, QuantizedCoefficients
from distro_fed.compression.tracking_bases import SIDES, TrackedFactors
from distro_fed.layout import TensorSpec


@dataclass(frozen=True, slots=True)
class Tracking(QuantizedCoefficients, TrackedFactors):
    """Send both factors of every weight of a linear layer, quantised; other tensors are not exchanged.

    Every row of a factor has a scale of its own.

    Parameters
    ----------
    rank : int
        Rows of a basis, 1 to 65536.
    bits : int
        Bits of a value, 1 to 8, as in :class:`~distro_fed.compression.quantized.Quantized`.
    decay : float
        What the factors so far count beside the next one in a basis, 0 to 1, rounded to a 64th. 0: the last one alone;
        1: all alike.
    """

    rank: int = 1
    bits: int = 1
    decay: float = 1.0
    name: ClassVar[str] = "tracking"
    codec: ClassVar[int] = 7

    def __post_init__(self) -> None:
        self.check_bases()
        Quantized(self.bits)

    def parameters(self) -> int:
        """Decay in 64ths in the highest bits, then rank, and bits in the lowest byte."""
        return self.decay_steps << 25 | self.rank << 8 | self.bits

    def describe(self) -> str:
        """Name, rank, bits and decay."""
        return f"tracking rank={self.rank} bits={self.bits} {self.describe_decay()}"

    def tensors_of(self, spec: TensorSpec) -> Iterator[TensorSpec]:
        """A vector for every row of both factors."""
        for side, size in zip(SIDES, spec.shape, strict=True):
            for row in range(self.rank):
                yield TensorSpec(f"{spec.name}[{side} {row}]", (size,), "float32", "vector")
