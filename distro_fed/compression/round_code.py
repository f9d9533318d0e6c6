"""How the updates of one round are coded: every member with scales of its own, or all with the same.

With scales of their own, the mean of some updates is known only to those who see each of them: the mean scale times
the mean code is another thing. With the same scales at all members (*common scales*, public and announced with the
round) the sum of the codes is all there is to know, and secure aggregation gives the mean of the updates itself.

A common scale of 0 says that none is known for its tensor: there every member takes its own.

A body tells the scales that its member measured in both cases. They are what the scales of the next round are made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from distro_fed.compression.base import Compressor, Decoded
from distro_fed.compression.scales import fill_scales, tensor_scales, unpack_scales, with_scales
from distro_fed.errors import CorruptBody, SettingsError, UnusableScales

if TYPE_CHECKING:
    import torch

    from distro_fed.compression.quantized import Quantized
    from distro_fed.layout import Layout


@dataclass(frozen=True, slots=True)
class Coded:
    """One update.

    Attributes
    ----------
    sent : bytes
        Body that leaves: the scales measured, and codes.
    scales : bytes
        Scales that the codes stand for, if they are not those measured: the common ones, and the member's own where
        those are 0.
    clipped : float or None
        Share of the values that are beyond the common scales; None without such.
    """

    sent: bytes
    scales: bytes = b""
    clipped: float | None = None

    @property
    def meant(self) -> bytes:
        """Body that says what the update stands for: the scales used, and the same codes."""
        return with_scales(self.sent, self.scales) if self.scales else self.sent


class RoundCode:
    """The code of one round.

    Parameters
    ----------
    compressor : Compressor
        Under masks, its integer code.
    space : Layout
        Coefficients of the round.
    scales : bytes
        Common scales, two bytes each; empty: every member takes its own.

    Attributes
    ----------
    compressor : Compressor
        What decodes the bodies, those of other rounds too.
    scales : bytes
        As announced.

    Raises
    ------
    UnusableScales
        There are common scales and the compressor has no use for them, or they are not one number between 0 and 2**64
        for each tensor of the space.
    """

    def __init__(self, compressor: Compressor, space: Layout, scales: bytes = b"") -> None:
        self.compressor, self._space, self.scales = compressor, space, scales
        self._code: Quantized | None = None
        if not scales:
            return
        if compressor.scaled:
            self._code = compressor.integer_code()
        if self._code is None:
            raise UnusableScales(f"scales are announced, and updates of {compressor.describe()!r} do not have any")
        try:
            self._announced = unpack_scales(np.frombuffer(scales, np.uint8), len(space))
        except CorruptBody as error:
            raise UnusableScales(f"the scales that are announced cannot be used: {error}") from None

    def encode(self, coefficients: torch.Tensor, seed: int) -> Coded:
        """Code coefficients; they and ``seed`` as in :meth:`Compressor.encode`."""
        if self._code is None:
            return Coded(self.compressor.encode(coefficients, self._space, seed))
        scales = self.scales
        if not self._announced.all():
            measured = tensor_scales(coefficients, self._space, "mean" if self._code.bits == 1 else "max")
            scales = fill_scales(scales, self._code.pack(measured))
        body = self._code.encode(coefficients, self._space, seed, scales)
        used = unpack_scales(np.frombuffer(scales, np.uint8), len(self._space))
        return Coded(body, scales, self._code.clipped(coefficients, self._space, used))

    def decode(self, coded: Coded) -> Decoded:
        """What an update stands for."""
        return (self._code or self.compressor).decode(coded.meant, self._space)


def integer_code(compressor: Compressor) -> Quantized:
    """What codes updates that are summed under masks.

    Raises
    ------
    SettingsError
        Updates of the compressor are not integers of a fixed number and size.
    """
    code = compressor.integer_code()
    if code is None:
        raise SettingsError(
            f"compressor {compressor.name!r} with secure aggregation: only integers of a fixed number and size can be "
            "summed under masks; take 'quantized' or 'dense', or in mode 'full' 'subspace', 'lowrank' or 'tracking'"
        )
    return code
