"""Train and send every matrix inside a public random subspace that is new in every round.

In one round a matrix ``W`` (out x in) may only change by ``B A``, where ``A`` (rank x in) has orthonormal rows
that everybody derives from the run's seed. Only ``B`` (out x rank) travels, in a few bits a value: no positions, no
state, a fixed size, and sums are exact. Because ``A`` changes every round, the sum of all rounds has full rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from distro_fed.compression.base import Residual, RoundKey
from distro_fed.compression.public_rows import check_rank, public_rows
from distro_fed.compression.quantized import Quantized, QuantizedCoefficients
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec


@dataclass(frozen=True, slots=True)
class Subspace(QuantizedCoefficients):
    """Send the coefficients ``B`` of every matrix in a seeded subspace, quantised.

    Tensors that are no matrix, and matrices whose smaller side is at most the largest rank of the run, are not
    exchanged.

    Parameters
    ----------
    rank : int
        Rows of the basis in the first round, 1 to 65536.
    bits : int
        Bits of a value of ``B``, 1 to 8, as in :class:`~distro_fed.compression.quantized.Quantized`.
    final_rank : int
        Rows of the basis in round ``rounds`` and later, reached from ``rank`` in equal steps; 0: as ``rank``.
    basis_rounds : int
        Rounds one after the other that share a basis, of which each takes the rows that its rank asks for.
    rounds : int
        Rounds of the run, for ``final_rank``.
    """

    rank: int = 8
    bits: int = 1
    final_rank: int = 0
    basis_rounds: int = 1
    rounds: int = 1
    name: ClassVar[str] = "subspace"
    codec: ClassVar[int] = 5
    #: coefficients of two rounds belong to two bases
    residual: ClassVar[Residual] = Residual.NONE

    def __post_init__(self) -> None:
        check_rank(self.rank)
        check_rank(self.final_rank, "final rank", least=0)
        for name, value in (("basis rounds", self.basis_rounds), ("rounds", self.rounds)):
            if value < 1:
                raise SettingsError(f"{name} of the subspace is {value}; it must be at least 1")
        Quantized(self.bits)

    def parameters(self) -> int:
        """Rank of the first round, and bits in the lowest byte."""
        return self.rank << 8 | self.bits

    def parameters_in(self, key: RoundKey) -> int:
        """Rank of this round, and bits in the lowest byte."""
        return self.rank_in(key) << 8 | self.bits

    def describe(self) -> str:
        """Name, rank, bits, and the schedule if there is one."""
        growing = self.final_rank not in (0, self.rank)
        rank = f"{self.rank}-{self.final_rank} over {self.rounds} rounds" if growing else f"{self.rank}"
        shared = f" basis-rounds={self.basis_rounds}" if self.basis_rounds > 1 else ""
        return f"subspace rank={rank} bits={self.bits}{shared}"

    def rank_in(self, key: RoundKey) -> int:
        """Rank of one round: on the line from ``rank`` in round 1 to ``final_rank`` in round ``rounds``, rounded."""
        if self.final_rank == 0 or self.rounds == 1:
            return self.rank
        steps = self.rounds - 1
        done = min(max(key.round - 1, 0), steps)
        return self.rank + ((self.final_rank - self.rank) * done * 2 + steps) // (2 * steps)

    def space(self, layout: Layout, key: RoundKey) -> Layout:
        """Give a tensor (out, rank) under the matrix' own name for every matrix that is exchanged.

        Raises
        ------
        SettingsError
            If no tensor of the layout is exchanged.
        """
        rank = self.rank_in(key)
        specs = [TensorSpec(s.name, (s.shape[0], rank), "float32", "matrix") for s in layout if self.exchanges(s)]
        if not specs:
            raise SettingsError(
                f"subspace with rank {self._largest_rank} leaves nothing to train: none of the {len(layout)} tensors "
                "is the weight of a linear layer with both sides above the rank; lower it, or use quantized or topk"
            )
        return Layout(specs)

    def exchanges(self, spec: TensorSpec) -> bool:
        """Whether the tensor is a matrix with both sides above all ranks of the run."""
        return spec.kind == "matrix" and len(spec.shape) == 2 and min(spec.shape) > self._largest_rank

    @property
    def _largest_rank(self) -> int:
        return max(self.rank, self.final_rank)

    def basis(self, spec: TensorSpec, key: RoundKey) -> torch.Tensor:
        """Public basis of one matrix, float32, shape (rank, in): the same for ``basis_rounds`` rounds."""
        first = key.round - (key.round - 1) % self.basis_rounds
        return basis(spec, self.rank_in(key), RoundKey(key.seed, first))

    def analyse(self, delta: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor:
        """``B = dW A^T`` for every matrix: the nearest change that the subspace allows."""
        space = self.space(layout, key)
        out = torch.empty(space.numel, dtype=torch.float32, device=delta.device)
        matrices = ((spec, where) for spec, where in layout.slices() if self.exchanges(spec))
        for (spec, where), (small, target) in zip(matrices, space.slices(), strict=True):
            rows = self.basis(spec, key).to(delta.device)
            torch.matmul(delta[where].view(spec.shape), rows.T, out=out[target].view(small.shape))
        return out

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, key: RoundKey) -> None:
        """``W += B A`` for every matrix."""
        matrices = ((spec, where) for spec, where in layout.slices() if self.exchanges(spec))
        for (spec, where), (small, source) in zip(matrices, self.space(layout, key).slices(), strict=True):
            rows = self.basis(spec, key).to(replica.device)
            replica[where].view(spec.shape).addmm_(coefficients[source].view(small.shape), rows)


def basis(spec: TensorSpec, rank: int, key: RoundKey) -> torch.Tensor:
    """Public basis of one matrix in one round: :func:`~distro_fed.compression.public_rows.public_rows`.

    Parameters
    ----------
    spec : TensorSpec
        Matrix of shape (out, in).
    rank : int
        At most ``in``.
    key : RoundKey
        The run's seed and the round.

    Returns
    -------
    torch.Tensor
        float32, shape (rank, in), on the CPU; ``A @ A.T`` is the identity up to rounding.
    """
    size = spec.shape[1]
    if not 1 <= rank <= size:
        raise SettingsError(f"rank {rank} does not fit the {size} columns of {spec.name!r}")
    seed = f"distro-fed basis\0{key.seed}\0{key.round}\0{spec.name}\0{size}"
    return torch.from_numpy(public_rows(seed, size, rank))
