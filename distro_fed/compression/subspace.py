"""Train and send every matrix inside a public random subspace that is new in every round.

In one round a matrix ``W`` (out x in) may only change by ``B A``, where ``A`` (rank x in) has orthonormal rows
that everybody derives from the run's seed. Only ``B`` (out x rank) travels, in a few bits a value: no positions, no
state, a fixed size, and sums are exact. Because ``A`` changes every round, the sum of all rounds has full rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from distro_fed.compression.base import Compressor, Decoded, RoundKey
from distro_fed.compression.quantized import Quantized
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec

_LARGEST_RANK = 2**16


@dataclass(frozen=True, slots=True)
class Subspace(Compressor):
    """Send the coefficients ``B`` of every matrix in a seeded subspace, quantised.

    Tensors that are no matrix, and matrices whose smaller side is at most ``rank``, are not exchanged.

    Parameters
    ----------
    rank : int
        Rows of the basis, 1 to 65536.
    bits : int
        Bits of a value of ``B``, 1 to 8, as in :class:`~distro_fed.compression.quantized.Quantized`.
    """

    rank: int = 8
    bits: int = 1
    name: ClassVar[str] = "subspace"
    codec: ClassVar[int] = 5
    linear: ClassVar[bool] = True
    #: coefficients of two rounds belong to two bases
    keeps_space: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= _LARGEST_RANK:
            raise SettingsError(f"rank is {self.rank}; use 1 to {_LARGEST_RANK}")
        Quantized(self.bits)

    def parameters(self) -> int:
        """Rank, and bits in the lowest byte."""
        return self.rank << 8 | self.bits

    def describe(self) -> str:
        """Name, rank and bits."""
        return f"subspace rank={self.rank} bits={self.bits}"

    def space(self, layout: Layout) -> Layout:
        """Give a tensor (out, rank) under the matrix' own name for every matrix that is exchanged.

        Raises
        ------
        SettingsError
            If no tensor of the layout is exchanged.
        """
        specs = [TensorSpec(s.name, (s.shape[0], self.rank), "float32", "matrix") for s in layout if self.exchanges(s)]
        if not specs:
            raise SettingsError(
                f"subspace with rank {self.rank} leaves nothing to train: none of the {len(layout)} tensors is the "
                "weight of a linear layer with both sides above the rank; lower it, or use quantized or topk"
            )
        return Layout(specs)

    def exchanges(self, spec: TensorSpec) -> bool:
        """Whether the tensor is a matrix with both sides above the rank."""
        return spec.kind == "matrix" and len(spec.shape) == 2 and min(spec.shape) > self.rank

    def analyse(self, delta: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor:
        """``B = dW A^T`` for every matrix: the nearest change that the subspace allows."""
        space = self.space(layout)
        out = torch.empty(space.numel, dtype=torch.float32, device=delta.device)
        matrices = ((spec, where) for spec, where in layout.slices() if self.exchanges(spec))
        for (spec, where), (small, target) in zip(matrices, space.slices(), strict=True):
            rows = basis(spec, self.rank, key).to(delta.device)
            torch.matmul(delta[where].view(spec.shape), rows.T, out=out[target].view(small.shape))
        return out

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, key: RoundKey) -> None:
        """``W += B A`` for every matrix."""
        matrices = ((spec, where) for spec, where in layout.slices() if self.exchanges(spec))
        for (spec, where), (small, source) in zip(matrices, self.space(layout).slices(), strict=True):
            rows = basis(spec, self.rank, key).to(replica.device)
            replica[where].view(spec.shape).addmm_(coefficients[source].view(small.shape), rows)

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body of :class:`~distro_fed.compression.quantized.Quantized` over all ``B``."""
        return Quantized(self.bits).encode(coefficients, space, seed)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """As :class:`~distro_fed.compression.quantized.Quantized` does."""
        return Quantized(self.bits).decode(body, space)


def basis(spec: TensorSpec, rank: int, key: RoundKey) -> torch.Tensor:
    """Public basis of one matrix in one round.

    ``rank`` random rows of the orthonormal DCT-II of size ``in``, with columns in random order and random signs:
    orthonormal by construction, without a factorisation whose last bits would differ between machines. The
    randomness is SHAKE-256 of seed, round, name and size, which every platform computes alike.

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
    seed = f"distro-fed basis\0{key.seed}\0{key.round}\0{spec.name}\0{size}".encode()
    words = np.frombuffer(hashlib.shake_256(seed).digest(16 * size), "<u8").reshape(2, size)
    frequencies = np.argsort(words[0], kind="stable")[:rank]
    order = np.argsort(words[1], kind="stable")
    signs = 1.0 - 2.0 * (words[1] & 1)
    # exact integer phases: cos(pi m / (2 in)) has period 4 in
    phase = (2 * order + 1) * frequencies[:, None] % (4 * size)
    rows = np.cos(np.pi / (2 * size) * phase) * np.sqrt(np.where(frequencies == 0, 1.0, 2.0) / size)[:, None]
    return torch.from_numpy((rows * signs).astype(np.float32))
