"""Train and send every matrix in a low-rank subspace that follows the aggregated updates, on rows and columns in turn.

Updates on top of an even version change a matrix ``W`` (out x in) by ``F^T Q``, those on top of an odd one by
``P^T F``, where the basis, ``Q`` (rank x in) or ``P`` (rank x out), is the factor that the last aggregated update
brought, made orthonormal. As in :mod:`~distro_fed.compression.lowrank` that is half a power iteration in every
update, but here the factor is trained itself, as :mod:`~distro_fed.compression.subspace` trains its coefficients: the
optimizer normalises what is sent, not a gradient of which a projection is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from distro_fed.compression.base import Residual
from distro_fed.compression.lowrank import LowRank
from distro_fed.layout import TensorSpec


@dataclass(frozen=True, slots=True)
class Tracking(LowRank):
    """Send the factor that was trained, quantised; only weights of linear layers are exchanged.

    Parameters
    ----------
    rank : int
        Rows of a basis, 1 to 65536.
    bits : int
        Bits of a value, 1 to 8, as in :class:`~distro_fed.compression.quantized.Quantized`.
    """

    name: ClassVar[str] = "tracking"
    codec: ClassVar[int] = 7
    residual: ClassVar[Residual] = Residual.NONE
    sends_whole: ClassVar[bool] = False

    def projects(self, spec: TensorSpec) -> bool:
        """Whether the tensor is the weight of a linear layer with both sides above the rank."""
        return spec.kind == "matrix" and len(spec.shape) == 2 and min(spec.shape) > self.rank
