"""A low-rank change of every matrix, on bases that the aggregated updates so far have made.

:mod:`~distro_fed.compression.tracking` sends its factors in a few bits a value, and
:mod:`~distro_fed.compression.tracking_topk` their largest values.

A matrix ``W`` (out x in) changes by ``F^T Q + P^T G``: its factors ``F`` (rank x out) and ``G`` (rank x in) are trained
and sent, the bases ``P`` (rank x out) and ``Q`` (rank x in) are public. Those are the directions in which a matrix of
rank ``rank`` with these row and column spaces can move (the tangent space of the low-rank matrices, Vandereycken 2013),
and what one step of LoRA does: there B moves on top of A, and A on top of B, each the sum of its updates so far. Here

* a basis is the sum of the aggregated factors of its side made orthonormal, so a step has the same size in early and
  late rounds, where the factors of LoRA grow;
* bases turn, what they leave behind stays in the weights, and the sum of all rounds has a higher rank than each. Older
  factors may count less in a basis, so that it turns faster.

A basis out of the last update alone would follow the noise of its batches; the gradient of LoRA's A looks through a B
that all updates have made, and so it does here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from distro_fed.compression.base import Compressor, RoundKey, check_memory
from distro_fed.compression.orthonormal import orthonormal_rows, seeded_rows
from distro_fed.compression.public_rows import LARGEST_RANK, check_rank
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

#: the decay is a multiple of 1 / _STEPS, which float32 holds exactly and a frame's header has room for
_STEPS = 64
#: a factor for each side of a matrix, in this order
SIDES = ("out", "in")

Pair = tuple[torch.Tensor, torch.Tensor]


class TrackedFactors(Compressor):
    """Base of compressors whose coefficients are the factors ``F`` and ``G`` of every weight of a linear layer.

    Other tensors are not exchanged.
    """

    #: rows of a basis
    rank: int
    #: what the factors so far count beside the next one in a basis, 0 to 1, rounded to a 64th
    decay: float

    def check_bases(self, largest_rank: int = LARGEST_RANK) -> None:
        """Raise :class:`SettingsError` unless rank and decay are in range."""
        check_rank(self.rank, largest=largest_rank)
        if not 0 <= self.decay <= 1:
            raise SettingsError(f"decay of the basis is {self.decay}; use 0 to 1")

    @property
    def decay_steps(self) -> int:
        """The decay in 64ths."""
        return round(self.decay * _STEPS)

    def describe_decay(self) -> str:
        """End a description with it."""
        return f"decay={self.decay_steps}/{_STEPS}"

    @abstractmethod
    def tensors_of(self, spec: TensorSpec) -> Iterable[TensorSpec]:
        """What the space holds for a matrix that is exchanged: F, and then G, row by row."""

    def exchanges(self, spec: TensorSpec) -> bool:
        """Whether the tensor is the weight of a linear layer with both sides above the rank."""
        return spec.kind == "matrix" and len(spec.shape) == 2 and min(spec.shape) > self.rank

    def space(self, layout: Layout, key: RoundKey) -> Layout:
        """Give the tensors of both factors of every matrix, in the layout's order.

        Raises
        ------
        SettingsError
            If no tensor of the layout is exchanged.
        """
        del key
        return _space(layout, self)

    def bases(self, layout: Layout, key: RoundKey) -> Iterator[tuple[TensorSpec, torch.Tensor, torch.Tensor]]:
        """Every matrix that is exchanged, with orthonormal rows ``P``, (rank, out), and ``Q``, (rank, in)."""
        for spec, (left, right), _ in self._known(layout, key):
            yield spec, left, right

    def analyse(self, delta: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor:
        """``F = Q M^T`` and ``G = P M - (P M Q^T) Q``, which give the projection of ``M`` onto what can be sent."""
        parts: list[torch.Tensor] = []
        places = dict(layout.slices())
        for spec, left, right in self.bases(layout, key):
            change = delta[places[spec]].view(spec.shape)
            rows, columns = right.to(delta.device), left.to(delta.device) @ change
            parts += [(rows @ change.T).reshape(-1), (columns - (columns @ rows.T) @ rows).reshape(-1)]
        return torch.cat(parts)

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, key: RoundKey) -> None:
        """``W += F^T Q + P^T G``."""
        places = dict(layout.slices())
        for (spec, left, right), (outer, inner) in zip(
            self.bases(layout, key), self._factors(coefficients, layout), strict=True
        ):
            on_left = torch.cat([outer, left.to(replica.device)])
            replica[places[spec]].view(spec.shape).addmm_(on_left.T, torch.cat([right.to(replica.device), inner]))

    def remembers_like(self, other: Compressor) -> bool:
        """Whether the decay is the same; the space tells whether the rank is."""
        return isinstance(other, TrackedFactors) and self.decay_steps == other.decay_steps

    def memory_layout(self, layout: Layout, version: int) -> Layout | None:
        """Of every matrix both bases and the sums that they are made of; None for version 0."""
        if version == 0:
            return None
        return Layout(
            TensorSpec(f"{spec.name}[{what} {side}]", (self.rank, size))
            for spec in filter(self.exchanges, layout)
            for what in ("basis", "sum")
            for side, size in zip(SIDES, spec.shape, strict=True)
        )

    def remember(self, coefficients: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor | None:
        """Add the factors of this update to the sums of their side, and make the next bases of them."""
        kept: list[torch.Tensor] = []
        for (spec, _, sums), factors in zip(
            self._known(layout, key), self._factors(coefficients.cpu(), layout), strict=True
        ):
            # two roundings, of a product and of a sum: the same bits everywhere
            grown = [old * (self.decay_steps / _STEPS) + new for old, new in zip(sums, factors, strict=True)]
            for side, rows in zip(SIDES, grown, strict=True):
                spare = partial(self._seeded, spec, side, key.seed, key.version + 1)
                kept.append(torch.from_numpy(orthonormal_rows(rows.numpy(), spare)).reshape(-1))
            kept += [rows.reshape(-1) for rows in grown]
        return torch.cat(kept)

    def _factors(self, coefficients: torch.Tensor, layout: Layout) -> Iterator[Pair]:
        """``F`` and ``G`` of every matrix."""
        start = 0
        for spec in filter(self.exchanges, layout):
            yield self._pair(coefficients, start, spec)
            start += self.rank * sum(spec.shape)

    def _known(self, layout: Layout, key: RoundKey) -> Iterator[tuple[TensorSpec, Pair, Pair]]:
        """Bases and sums of every matrix: remembered, or seeded rows and zeros in version 0."""
        check_memory(self, layout, key)
        start = 0
        for spec in filter(self.exchanges, layout):
            values = self.rank * sum(spec.shape)
            if key.memory is None:
                out, in_ = (torch.from_numpy(self._seeded(spec, side, key.seed, 0)) for side in SIDES)
                yield spec, (out, in_), self._pair(torch.zeros(values), 0, spec)
            else:
                bases, sums = (self._pair(key.memory, first, spec) for first in (start, start + values))
                yield spec, bases, sums
                start += 2 * values

    def _pair(self, flat: torch.Tensor, start: int, spec: TensorSpec) -> Pair:
        """Two matrices that follow each other: (rank, out) and (rank, in)."""
        middle, stop = start + self.rank * spec.shape[0], start + self.rank * sum(spec.shape)
        return flat[start:middle].view(self.rank, -1), flat[middle:stop].view(self.rank, -1)

    def _seeded(self, spec: TensorSpec, side: str, seed: int, version: int) -> NDArray[np.float32]:
        return seeded_rows(f"{spec.name}[{side}]", spec.shape[SIDES.index(side)], self.rank, seed, version)


@lru_cache(maxsize=8)
def _space(layout: Layout, code: TrackedFactors) -> Layout:
    exchanged = list(filter(code.exchanges, layout))
    if not exchanged:
        raise SettingsError(
            f"{code.name} with rank {code.rank} exchanges nothing: none of the {len(layout)} tensors is the weight of "
            "a linear layer with both sides above the rank; lower it, or use quantized"
        )
    return Layout(one for spec in exchanged for one in code.tensors_of(spec))
