"""Every coefficient in 1 to 8 bits, with one scale per tensor.

With ``L = 2**bits``, code ``c`` stands for ``scale * (2 c - L + 1) / (L - 1)``: levels from ``-scale`` to
``scale``, symmetric, none of them zero.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from distro_fed.compression.base import Compressor, Decoded
from distro_fed.compression.bits import check_padding, pack_bits, packed_size, unpack_slice
from distro_fed.compression.blocks import BLOCK, blocks
from distro_fed.compression.random_rounding import RandomRounding
from distro_fed.compression.scales import SCALE_BYTES, pack_scales, share_beyond, tensor_scales, unpack_scales
from distro_fed.errors import CorruptBody, SettingsError

if TYPE_CHECKING:
    from distro_fed.layout import Layout

Codes = NDArray[np.uint8] | NDArray[np.uint16]


class QuantizedCoefficients(Compressor):
    """Base of compressors whose coefficients are coded as :class:`Quantized` codes those of its own."""

    bits: int
    linear: ClassVar[bool] = True
    scaled: ClassVar[bool] = True

    def integer_code(self) -> Quantized:
        """Integers of ``bits`` bits, and a scale for each tensor of the space."""
        return Quantized(self.bits)

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body of :class:`Quantized` over all tensors of the space."""
        return self.integer_code().encode(coefficients, space, seed)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """As :class:`Quantized` does."""
        return self.integer_code().decode(body, space)


@dataclass(frozen=True, slots=True)
class Quantized(Compressor):
    """Send every coefficient in a few bits.

    One bit is the sign, and the scale the tensor's mean magnitude: the best choice for one level
    (1-bit SGD, Seide et al. 2014), biased unless a residual makes up for it; the sign of 0 is drawn at
    random, so that untouched values do not drift. Two bits and more are rounded at random to one of the
    two nearest levels, without bias (QSGD, Alistarh et al. 2017), and the scale is the largest magnitude.

    Parameters
    ----------
    bits : int
        1 to 8.
    """

    bits: int = 1
    name: ClassVar[str] = "quantized"
    codec: ClassVar[int] = 2
    linear: ClassVar[bool] = True
    scaled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise SettingsError(f"bits is {self.bits}; use 1 to 8, or the compressor dense")

    def parameters(self) -> int:
        """Bits of a value."""
        return self.bits

    def describe(self) -> str:
        """Name and bits."""
        return f"quantized bits={self.bits}"

    def integer_code(self) -> Quantized:
        """Itself."""
        return self

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int, scales: bytes = b"") -> bytes:
        """Body: a scale for each tensor, then the codes of all tensors as one packed stream.

        Parameters
        ----------
        coefficients, space, seed
            As in :meth:`Compressor.encode`.
        scales : bytes
            Common scales, as :meth:`pack` gives them: the codes stand for these, and values beyond them get the
            outermost level. The body tells the scales that were measured all the same. By default the two are one.
        """
        measured = self.pack(tensor_scales(coefficients, space, "mean" if self.bits == 1 else "max"))
        used = unpack_scales(np.frombuffer(scales or measured, np.uint8), len(space))
        rounding = RandomRounding(seed)
        # a buffer that grows would be copied again and again
        body = io.BytesIO(bytes(len(measured) + packed_size(space.numel, self.bits)))
        body.write(measured)
        # the codes of one block at a time, packed while they are in the cache; a block may hold many tensors
        codes = np.empty(min(BLOCK, space.numel), np.uint8 if self.bits <= 8 else "<u2")
        for (_, where), scale in zip(space.slices(), used.tolist(), strict=True):
            start = where.start
            while start < where.stop:
                first = start % BLOCK
                size = min(where.stop - start, BLOCK - first)
                values, out = coefficients[start : start + size], codes[first : first + size]
                self._code(values.clamp(-scale, scale) if scales and self.bits > 1 else values, scale, rounding, out)
                start += size
                if start % BLOCK == 0:
                    body.write(self._packed(codes))
        body.write(self._packed(codes[: space.numel % BLOCK]))
        return body.getvalue()

    def pack(self, scales: NDArray[np.float32]) -> bytes:
        """Scales in two bytes each; of two bits and more rounded up, so that no value gets beyond its scale."""
        return pack_scales(scales, up=self.bits > 1)

    def clipped(self, coefficients: torch.Tensor, space: Layout, scales: NDArray[np.float32]) -> float:
        """Share of the values that common scales clip; none of one bit, whose only level is the scale."""
        return 0.0 if self.bits == 1 else share_beyond(coefficients, space, scales)

    def _code(self, values: torch.Tensor, scale: float, rounding: RandomRounding, out: Codes) -> None:
        if self.bits == 1:
            out[:] = _signs(values, rounding)
        elif scale == 0.0:
            # under masks they are read with the mean of the members' scales: as nothing, on average
            np.add(rounding.coins(out.size), 2 ** (self.bits - 1) - 1, out=out, dtype=out.dtype)
        else:
            rounding.codes(values.detach().cpu().numpy(), scale, 2**self.bits - 1, out)

    def _packed(self, codes: Codes) -> bytes | memoryview:
        return codes.data if self.bits in (8, 16) else pack_bits(codes, self.bits)  # whole bytes are their own packing

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check the length, the scales and the padding; every code is a level."""
        raw = np.frombuffer(body, np.uint8)
        start = len(space) * SCALE_BYTES
        expected = start + packed_size(space.numel, self.bits)
        if raw.size != expected:
            raise CorruptBody(
                f"{space.numel} values of {self.bits} bits in {len(space)} tensors take {expected} bytes, "
                f"but the body has {raw.size}"
            )
        check_padding(raw[start:], space.numel, self.bits)
        return _Codes(raw[start:], self.bits, unpack_scales(raw[:start], len(space)), space)

    def integers(self, body: bytes | memoryview, space: Layout) -> tuple[Codes, NDArray[np.float32]]:
        """Codes of all tensors, ``(space.numel,)``, and the scale of each tensor, ``(len(space),)``.

        A secure sum adds both up, since code ``c`` stands for ``scale * (2 c - L + 1) / (L - 1)``.

        Raises
        ------
        CorruptBody
        """
        self.decode(body, space)
        raw = np.frombuffer(body, np.uint8)
        start = len(space) * SCALE_BYTES
        return _codes(raw[start:], 0, space.numel, self.bits), unpack_scales(raw[:start], len(space))


@dataclass(frozen=True, slots=True)
class FixedPoint(Quantized):
    """Every value in 16 bits, rounded at random to one of the two nearest of 65,536 levels.

    It takes the place of :class:`~distro_fed.compression.dense.Dense` where integers are summed, and is in no frame:
    its bodies stay at the member. Rounded to nearest, values that nobody changed, which lie between two levels, would
    move by half a step in every round.
    """

    bits: int = 16
    name: ClassVar[str] = "fixed-point"

    def __post_init__(self) -> None:
        """16 bits are right."""

    def describe(self) -> str:
        """Name and bits."""
        return f"fixed-point bits={self.bits}"


def _codes(packed: NDArray[np.uint8], start: int, stop: int, bits: int) -> Codes:
    return packed.view("<u2")[start:stop] if bits == 16 else unpack_slice(packed, start, stop, bits)


def _signs(values: torch.Tensor, rounding: RandomRounding) -> NDArray[np.uint8]:
    positive: NDArray[np.bool_] = (values > 0).cpu().numpy()
    zero = torch.nonzero(values == 0).squeeze(1).cpu().numpy()
    if zero.size:
        positive[zero] = rounding.coins(zero.size)
    return positive.view(np.uint8)


@dataclass(frozen=True, slots=True)
class _Codes(Decoded):
    packed: NDArray[np.uint8]
    bits: int
    scales: NDArray[np.float32]
    space: Layout

    def add_to(self, accumulator: torch.Tensor, weight: float = 1.0) -> None:
        steps = 2**self.bits - 1
        levels = (2 * np.arange(steps + 1, dtype=np.float32) - np.float32(steps)) / np.float32(steps)
        for (_, where), scale in zip(self.space.slices(), self.scales, strict=True):
            table = (levels * scale) * np.float32(weight)
            for block in blocks(where.start, where.stop):
                values = table.take(_codes(self.packed, block.start, block.stop, self.bits))
                accumulator[block].add_(torch.from_numpy(values).to(accumulator.device))
