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

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from distro_fed.compression.base import Residual, RoundKey
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
        What the factors so far count beside the next one of their side, 0 to 1; rounded to 1/64. 0: the last one alone.
    """

    decay: float = 58 / 64
    name: ClassVar[str] = "tracking"
    codec: ClassVar[int] = 7
    residual: ClassVar[Residual] = Residual.NONE
    sends_whole: ClassVar[bool] = False

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

    def memory_layout(self, layout: Layout, version: int) -> Layout | None:
        """Give a tensor for the sums of both sides of every matrix, (rank, out) and (rank, in); None for version 0."""
        if version == 0:
            return None
        return Layout(
            TensorSpec(f"{spec.name}[{side}]", self.factor_shape(spec, version))
            for spec in filter(self.projects, layout)
            for version, side in enumerate(("out", "in"))
        )

    def remember(self, coefficients: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor | None:
        """Sums of both sides: those remembered, with the factors of this update added on their side."""
        self._check_memory(layout, key)
        sums: list[torch.Tensor] = []
        sent = known = 0
        turn = key.version % 2
        for spec in filter(self.projects, layout):
            sides = list(self._sums(spec, key, known))
            known += sum(side.numel() for side in sides)
            # two roundings, of a product and of a sum: the same bits everywhere
            grown = sides[turn] * (self._decay_steps / _STEPS)
            grown += coefficients[sent : sent + grown.numel()].cpu().view(grown.shape)
            sent += grown.numel()
            sides[turn] = grown
            sums += [side.reshape(-1) for side in sides]
        return torch.cat(sums)

    def _sums(self, spec: TensorSpec, key: RoundKey, known: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of the factors on the side of the outputs, and of the inputs."""
        (rank, rows), (_, columns) = self.factor_shape(spec, 0), self.factor_shape(spec, 1)
        if key.memory is None:
            seeded = seeded_rows(spec.name, columns, rank, key.seed, 0)
            return torch.zeros(rank, rows), torch.from_numpy(seeded)
        middle = known + rank * rows
        return (
            key.memory[known:middle].view(rank, rows),
            key.memory[middle : middle + rank * columns].view(rank, columns),
        )

    def _basis(self, spec: TensorSpec, key: RoundKey, known: int) -> tuple[torch.Tensor, int]:
        sides = self._sums(spec, key, known)
        used = sides[1 - key.version % 2]
        if key.memory is None:
            return used, 0
        spare = partial(seeded_rows, spec.name, used.shape[1], self.rank, key.seed, key.version)
        rows = torch.from_numpy(orthonormal_rows(used.numpy(), spare))
        return rows, sum(one.numel() for one in sides)
