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

import numpy as np
import torch
from numpy.typing import NDArray

from distro_fed.compression.base import Compressor, Residual, RoundKey
from distro_fed.compression.orthonormal import coarse, orthonormal_rows
from distro_fed.compression.public_rows import public_rows
from distro_fed.compression.quantized import Quantized, QuantizedCoefficients
from distro_fed.errors import ReplicaError, SettingsError
from distro_fed.layout import Layout, TensorSpec

_LARGEST_RANK = 2**16


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
    #: tensors that are not projected are sent as they are; else they are not exchanged
    sends_whole: ClassVar[bool] = True
    #: what is projected, for messages
    projected: ClassVar[str] = "a matrix"

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= _LARGEST_RANK:
            raise SettingsError(f"rank is {self.rank}; use 1 to {_LARGEST_RANK}")
        Quantized(self.bits)

    def parameters(self) -> int:
        """Rank, and bits in the lowest byte."""
        return self.rank << 8 | self.bits

    def describe(self) -> str:
        """Name, rank and bits."""
        return f"{self.name} rank={self.rank} bits={self.bits}"

    def space(self, layout: Layout, key: RoundKey) -> Layout:
        """Give a vector for every column of every factor, and the tensors that are sent whole, in the layout's order.

        Raises
        ------
        SettingsError
            If no tensor of the layout is projected.
        """
        return _space(layout, self, key.version % 2 == 1)

    def projects(self, spec: TensorSpec) -> bool:
        """Whether the tensor is a matrix with both sides above the rank."""
        return len(spec.shape) > 1 and min(_as_matrix(spec)) > self.rank

    def factor_shape(self, spec: TensorSpec, version: int) -> tuple[int, int]:
        """Shape of what is sent of a matrix: (rank, out) on top of an even version, (rank, in) of an odd one."""
        return self.rank, _as_matrix(spec)[version % 2]

    def bases(self, layout: Layout, key: RoundKey) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Every matrix that is projected, with its basis as orthonormal rows: (rank, in) on top of an even version."""
        for spec, _, _, _, rows in self._parts(layout, key):
            if rows is not None:
                yield spec, rows

    def analyse(self, delta: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor:
        """``Q^T M^T`` (even versions) or ``P^T M`` (odd ones): one row for every column of the factor."""
        out = torch.empty(self.space(layout, key).numel, dtype=torch.float32, device=delta.device)
        for _, where, target, matrix, rows in self._parts(layout, key):
            if rows is None:
                out[target] = delta[where]
                continue
            change = delta[where].view(matrix)
            change = change if key.version % 2 else change.T
            torch.matmul(rows.to(delta.device), change, out=out[target].view(self.rank, -1))
        return out

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, key: RoundKey) -> None:
        """``W += (M Q) Q^T``, or ``W += P (P^T M)``."""
        for _, where, source, matrix, rows in self._parts(layout, key):
            if rows is None:
                replica[where] += coefficients[source]
                continue
            basis, factor = rows.to(replica.device), coefficients[source].view(self.rank, -1)
            left, right = (basis, factor) if key.version % 2 else (factor, basis)
            replica[where].view(matrix).addmm_(left.T, right)

    def remembers_like(self, other: Compressor) -> bool:
        """Whether the other one is of the same kind and rank."""
        return type(self) is type(other) and isinstance(other, LowRank) and self.rank == other.rank

    def memory_layout(self, layout: Layout, version: int) -> Layout | None:
        """Give a tensor (rank, size) for the basis of every matrix that is projected; None for version 0."""
        if version == 0:
            return None
        return Layout(
            TensorSpec(spec.name, self.factor_shape(spec, version + 1)) for spec in layout if self.projects(spec)
        )

    def remember(self, coefficients: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor | None:
        """Bases of the next version: the factors, made orthonormal."""
        bases: list[torch.Tensor] = []
        start = 0
        for spec in layout:
            if not self.projects(spec):
                start += spec.numel if self.sends_whole else 0
                continue
            size = self.factor_shape(spec, key.version)[1]
            factor = coefficients[start : start + self.rank * size].cpu().view(self.rank, size).numpy()
            spare = partial(seeded_rows, spec.name, size, self.rank, key.seed, key.version + 1)
            bases.append(torch.from_numpy(orthonormal_rows(factor, spare)).view(-1))
            start += self.rank * size
        return torch.cat(bases)

    def _parts(
        self, layout: Layout, key: RoundKey
    ) -> Iterator[tuple[TensorSpec, slice, slice, tuple[int, int], torch.Tensor | None]]:
        """Every tensor that is exchanged: its place, that of its coefficients, its shape as a matrix, its basis."""
        self._check_memory(layout, key)
        start = known = 0
        for spec, where in layout.slices():
            matrix = _as_matrix(spec)
            if not self.projects(spec):
                if self.sends_whole:
                    yield spec, where, slice(start, start + spec.numel), matrix, None
                    start += spec.numel
                continue
            sent = self.rank * self.factor_shape(spec, key.version)[1]
            rows, used = self._basis(spec, key, known)
            yield spec, where, slice(start, start + sent), matrix, rows
            start, known = start + sent, known + used

    def _check_memory(self, layout: Layout, key: RoundKey) -> None:
        remembered = self.memory_layout(layout, key.version)
        expected = 0 if remembered is None else remembered.numel
        given = 0 if key.memory is None else key.memory.numel()
        if given != expected:
            raise ReplicaError(f"version {key.version} remembers {expected} values, but its key holds {given}")

    def _basis(self, spec: TensorSpec, key: RoundKey, known: int) -> tuple[torch.Tensor, int]:
        """Basis of a matrix, and how many remembered values it has, the first of which is number ``known``."""
        size = self.factor_shape(spec, key.version + 1)[1]
        if key.memory is None:
            return torch.from_numpy(seeded_rows(spec.name, size, self.rank, key.seed, 0)), 0
        values = self.rank * size
        return key.memory[known : known + values].view(self.rank, size), values


def seeded_rows(name: str, size: int, rank: int, seed: int, version: int) -> NDArray[np.float32]:
    """Orthonormal rows for the first update, and in place of what an aggregated update does not determine."""
    return coarse(public_rows(f"distro-fed lowrank\0{seed}\0{version}\0{name}\0{size}", size, rank))


def _as_matrix(spec: TensorSpec) -> tuple[int, int]:
    first = spec.shape[0] if spec.shape else 1
    return first, math.prod(spec.shape[1:])


@lru_cache(maxsize=8)
def _space(layout: Layout, code: LowRank, odd: bool) -> Layout:
    if not any(map(code.projects, layout)):
        raise SettingsError(
            f"{code.name} with rank {code.rank} projects nothing: none of the {len(layout)} tensors is "
            f"{code.projected} with both sides above the rank; lower it, or use quantized"
        )
    specs: list[TensorSpec] = []
    for spec in layout:
        if code.projects(spec):
            side = code.factor_shape(spec, int(odd))[1]
            specs += [TensorSpec(f"{spec.name}[{row}]", (side,), "float32", "vector") for row in range(code.rank)]
        elif code.sends_whole:
            specs.append(TensorSpec(spec.name, spec.shape, "float32", spec.kind))
    return Layout(specs)
