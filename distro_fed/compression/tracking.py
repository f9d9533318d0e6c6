"""Train and send every matrix in a low-rank subspace that follows the aggregated updates, on rows and columns in turn.

Updates on top of an even version change a matrix ``W`` (out x in) by ``F^T Q``, those on top of an odd one by
``P^T F``, where the basis, ``Q`` (rank x in) or ``P`` (rank x out), comes out of the aggregated updates so far: the sum
of the factors of that side, of which older ones count less, made orthonormal. As in
:mod:`~distro_fed.compression.lowrank` that is half a power iteration in every update, but

* the factor is trained itself, as :mod:`~distro_fed.compression.subspace` trains its coefficients: the optimizer
  normalises what is sent, not a gradient of which a projection is sent;
* a basis out of one update alone follows the noise of its batches. LoRA has no such noise: the gradient of its A looks
  through a B that all updates so far have made. The sum does the same here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from distro_fed.compression.base import Compressor, Residual, RoundKey
from distro_fed.compression.lowrank import LowRank, seeded_rows
from distro_fed.compression.orthonormal import orthonormal_rows
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

#: the decay is a multiple of 1 / _STEPS, which float32 holds exactly and a frame's header has room for
_STEPS = 64


@dataclass(frozen=True, slots=True)
class Tracking(LowRank):
    """Send the factor that was trained, quantised; only weights of linear layers are exchanged.

    Parameters
    ----------
    rank : int
        Rows of a basis, 1 to 65536.
    bits : int
        Bits of a value, 1 to 8, as in :class:`~distro_fed.compression.quantized.Quantized`.
    decay : float
        What the factors so far count beside the next one of their side, 0 to 1, rounded to a 64th. 0: the last one
        alone; 1: all alike.
    """

    decay: float = 58 / 64
    name: ClassVar[str] = "tracking"
    codec: ClassVar[int] = 7
    residual: ClassVar[Residual] = Residual.NONE
    sends_whole: ClassVar[bool] = False
    projected: ClassVar[str] = "the weight of a linear layer"

    def __post_init__(self) -> None:
        # not super(): a dataclass with slots is another class than the one in which this is written
        LowRank.__post_init__(self)
        if not 0 <= self.decay <= 1:
            raise SettingsError(f"decay of the basis is {self.decay}; use 0 to 1")

    @property
    def _decay_steps(self) -> int:
        return round(self.decay * _STEPS)

    def parameters(self) -> int:
        """Decay in 64ths in the highest bits, then rank, and bits in the lowest byte."""
        return self._decay_steps << 25 | self.rank << 8 | self.bits

    def describe(self) -> str:
        """Name, rank, bits and decay."""
        return f"tracking rank={self.rank} bits={self.bits} decay={self._decay_steps}/{_STEPS}"

    def projects(self, spec: TensorSpec) -> bool:
        """Whether the tensor is the weight of a linear layer with both sides above the rank."""
        return spec.kind == "matrix" and len(spec.shape) == 2 and min(spec.shape) > self.rank

    def remembers_like(self, other: Compressor) -> bool:
        """Whether rank and decay are the same too."""
        same = LowRank.remembers_like(self, other)
        return same and isinstance(other, Tracking) and self._decay_steps == other._decay_steps

    def memory_layout(self, layout: Layout, version: int) -> Layout | None:
        """Of every matrix the basis of this version, and the sums of both sides, (rank, out) and (rank, in).

        None for version 0.
        """
        if version == 0:
            return None
        return Layout(
            TensorSpec(f"{spec.name}[{name}]", self.factor_shape(spec, side))
            for spec in filter(self.projects, layout)
            for name, side in (("basis", version + 1), ("out", 0), ("in", 1))
        )

    def remember(self, coefficients: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor | None:
        """Add the factors of this update to the sums of their side, of which the next bases are made."""
        self._check_memory(layout, key)
        kept: list[torch.Tensor] = []
        sent = known = 0
        turn = key.version % 2
        for spec in filter(self.projects, layout):
            sums, used = self._sums(spec, key, known)
            known += used
            # two roundings, of a product and of a sum: the same bits everywhere
            grown = sums[turn] * (self._decay_steps / _STEPS)
            grown += coefficients[sent : sent + grown.numel()].cpu().view(grown.shape)
            sent += grown.numel()
            sums[turn] = grown
            spare = partial(seeded_rows, spec.name, grown.shape[1], self.rank, key.seed, key.version + 1)
            basis = torch.from_numpy(orthonormal_rows(grown.numpy(), spare))
            kept += [part.reshape(-1) for part in (basis, *sums)]
        return torch.cat(kept)

    def _sums(self, spec: TensorSpec, key: RoundKey, known: int) -> tuple[list[torch.Tensor], int]:
        """Sums of the factors on the side of the outputs and of the inputs; and the values remembered of the matrix."""
        shapes = [self.factor_shape(spec, side) for side in (0, 1)]
        if key.memory is None:
            return [torch.zeros(shape) for shape in shapes], 0
        start = known + math.prod(shapes[1 - key.version % 2])
        sums: list[torch.Tensor] = []
        for shape in shapes:
            sums.append(key.memory[start : start + math.prod(shape)].view(shape))
            start += math.prod(shape)
        return sums, start - known

    def _basis(self, spec: TensorSpec, key: RoundKey, known: int) -> tuple[torch.Tensor, int]:
        rows, used = LowRank._basis(self, spec, key, known)
        return rows, used and used + self.rank * sum(spec.shape)
