"""Project every matrix on one side, in turn: on columns in one update, on rows in the next.

Of a change ``M`` (out x in) of a matrix, updates on top of an even version send ``M Q``, and those on top of an odd
one ``P^T M``, where ``Q`` (in x rank) and ``P`` (out x rank) are orthonormal and public: the factor that the last
aggregated update brought, made orthonormal. So ``P`` comes out of ``M Q`` and the next ``Q`` out of ``P^T M``: half a
power iteration in every update, which turns the bases towards the largest singular vectors of what the members have
in common. PowerSGD (Vogels et al., arXiv 1905.13727) sends both factors in one step; here an update takes one of
them, all members project on the same basis, and so their sum is exact and its size known.

What a projection leaves out is not lost with error feedback: the residual is kept in the tensors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import torch

from distro_fed.compression.base import Residual, RoundKey, check_memory
from distro_fed.compression.orthonormal import orthonormal_rows, seeded_rows
from distro_fed.compression.public_rows import check_rank
from distro_fed.compression.quantized import Quantized, QuantizedCoefficients
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec


@dataclass(frozen=True, slots=True)
class LowRank(QuantizedCoefficients):
    """Send one factor of every matrix, quantised; the basis is that of the last aggregated update.

    Tensors with more than two axes count as matrices (first axis x all others). Tensors with fewer axes, and matrices
    whose smaller side is at most ``rank``, are sent whole. Every column of a factor has a scale of its own, because a
    power iteration orders them by size.

    Parameters
    ----------
    rank : int
        Columns of a factor, 1 to 65536.
    bits : int
        Bits of a value, 1 to 8, as in :class:`~distro_fed.compression.quantized.Quantized`.
    """

    rank: int = 8
    bits: int = 8
    name: ClassVar[str] = "lowrank"
    codec: ClassVar[int] = 6
    residual: ClassVar[Residual] = Residual.IN_TENSORS

    def __post_init__(self) -> None:
        check_rank(self.rank)
        Quantized(self.bits)

    def parameters(self) -> int:
        """Rank, and bits in the lowest byte."""
        return self.rank << 8 | self.bits

    def describe(self) -> str:
        """Name, rank and bits."""
        return f"lowrank rank={self.rank} bits={self.bits}"

    def space(self, layout: Layout, key: RoundKey) -> Layout:
        """Give a vector for every column of every factor, and the tensors that are sent whole, in the layout's order.

        Raises
        ------
        SettingsError
            If no tensor of the layout is projected.
        """
        return _space(layout, self.rank, key.version % 2 == 1)

    def analyse(self, delta: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor:
        """``Q^T M^T`` (even versions) or ``P^T M`` (odd ones): one row for every column of the factor."""
        out = torch.empty(self.space(layout, key).numel, dtype=torch.float32, device=delta.device)
        for where, target, matrix, rows in self._parts(layout, key):
            if rows is None:
                out[target] = delta[where]
                continue
            change = delta[where].view(matrix)
            change = change if key.version % 2 else change.T
            torch.matmul(rows.to(delta.device), change, out=out[target].view(self.rank, -1))
        return out

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, key: RoundKey) -> None:
        """``W += (M Q) Q^T``, or ``W += P (P^T M)``."""
        for where, source, matrix, rows in self._parts(layout, key):
            if rows is None:
                replica[where] += coefficients[source]
                continue
            basis, factor = rows.to(replica.device), coefficients[source].view(self.rank, -1)
            left, right = (basis, factor) if key.version % 2 else (factor, basis)
            replica[where].view(matrix).addmm_(left.T, right)

    def memory_layout(self, layout: Layout, version: int) -> Layout | None:
        """Give a tensor (rank, size) for the basis of every matrix that is projected; None for version 0."""
        if version == 0:
            return None
        return Layout(
            TensorSpec(spec.name, (self.rank, _as_matrix(spec)[0 if version % 2 else 1]))
            for spec in layout
            if _is_projected(spec, self.rank)
        )

    def remember(self, coefficients: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor | None:
        """Bases of the next version: the factors, made orthonormal."""
        bases: list[torch.Tensor] = []
        start = 0
        for spec in layout:
            if not _is_projected(spec, self.rank):
                start += spec.numel
                continue
            size = _as_matrix(spec)[1 if key.version % 2 else 0]
            factor = coefficients[start : start + self.rank * size].cpu().view(self.rank, size).numpy()
            spare = partial(seeded_rows, spec.name, size, self.rank, key.seed, key.version + 1)
            bases.append(torch.from_numpy(orthonormal_rows(factor, spare)).view(-1))
            start += self.rank * size
        return torch.cat(bases)

    def _parts(
        self, layout: Layout, key: RoundKey
    ) -> Iterator[tuple[slice, slice, tuple[int, int], torch.Tensor | None]]:
        """For every tensor: its place, that of its coefficients, its shape as a matrix, and the basis as rows."""
        check_memory(self, layout, key)
        start = known = 0
        for spec, where in layout.slices():
            matrix = _as_matrix(spec)
            if not _is_projected(spec, self.rank):
                yield where, slice(start, start + spec.numel), matrix, None
                start += spec.numel
                continue
            size, sent = matrix if key.version % 2 else matrix[::-1]
            if key.memory is None:
                rows = torch.from_numpy(seeded_rows(spec.name, size, self.rank, key.seed, 0))
            else:
                rows = key.memory[known : known + self.rank * size].view(self.rank, size)
            yield where, slice(start, start + self.rank * sent), matrix, rows
            start, known = start + self.rank * sent, known + self.rank * size


def _as_matrix(spec: TensorSpec) -> tuple[int, int]:
    first = spec.shape[0] if spec.shape else 1
    return first, math.prod(spec.shape[1:])


def _is_projected(spec: TensorSpec, rank: int) -> bool:
    return len(spec.shape) > 1 and min(_as_matrix(spec)) > rank


@lru_cache(maxsize=8)
def _space(layout: Layout, rank: int, odd: bool) -> Layout:
    if not any(_is_projected(spec, rank) for spec in layout):
        raise SettingsError(
            f"lowrank with rank {rank} projects nothing: none of the {len(layout)} tensors is a matrix with both sides "
            "above the rank; lower it, or use quantized"
        )
    specs: list[TensorSpec] = []
    for spec in layout:
        if _is_projected(spec, rank):
            side = _as_matrix(spec)[1 if odd else 0]
            specs += [TensorSpec(f"{spec.name}[{column}]", (side,), "float32", "vector") for column in range(rank)]
        else:
            specs.append(TensorSpec(spec.name, spec.shape, "float32", spec.kind))
    return Layout(specs)
