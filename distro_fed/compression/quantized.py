"""Every coefficient in 1 to 8 bits, with one scale per tensor.

With ``L = 2**bits``, code ``c`` stands for ``scale * (2 c - L + 1) / (L - 1)``: levels from ``-scale`` to
``scale``, symmetric, none of them zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from distro_fed.compression.base import Compressor, Decoded
from distro_fed.compression.bits import check_padding, pack_bits, packed_size, unpack_slice
from distro_fed.compression.blocks import blocks
from distro_fed.compression.scales import SCALE_BYTES, pack_scales, tensor_scales, unpack_scales
from distro_fed.errors import CorruptBody, SettingsError

if TYPE_CHECKING:
    from distro_fed.layout import Layout


class QuantizedCoefficients(Compressor):
    """Base of compressors whose coefficients are coded as :class:`Quantized` codes those of its own."""

    bits: int
    linear: ClassVar[bool] = True

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

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body: a scale for each tensor, then the codes of all tensors as one packed stream."""
        measured = tensor_scales(coefficients, space, "mean" if self.bits == 1 else "max")
        packed = pack_scales(measured, up=self.bits > 1)
        scales = unpack_scales(np.frombuffer(packed, np.uint8), len(space))
        generator = torch.Generator().manual_seed(seed)
        codes = np.empty(space.numel, np.uint8)
        for (_, where), scale in zip(space.slices(), scales.tolist(), strict=True):
            for block in blocks(where.start, where.stop):
                values = coefficients[block]
                chosen = _signs(values, generator) if self.bits == 1 else self._levels(values, scale, generator)
                codes[block] = chosen.cpu().numpy()
        return packed + pack_bits(codes, self.bits)

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

    def integers(self, body: bytes | memoryview, space: Layout) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Codes of all tensors, ``(space.numel,)``, and the scale of each tensor, ``(len(space),)``.

        A secure sum adds both up, since code ``c`` stands for ``scale * (2 c - L + 1) / (L - 1)``.

        Raises
        ------
        CorruptBody
        """
        self.decode(body, space)
        raw = np.frombuffer(body, np.uint8)
        start = len(space) * SCALE_BYTES
        return unpack_slice(raw[start:], 0, space.numel, self.bits), unpack_scales(raw[:start], len(space))

    def _levels(self, values: torch.Tensor, scale: float, generator: torch.Generator) -> torch.Tensor:
        if scale == 0.0:
            return torch.zeros(values.numel(), dtype=torch.uint8)
        steps = 2**self.bits - 1
        # drawn on the CPU: the same seed gives the same body on every device
        noise = torch.rand(values.numel(), generator=generator).to(values.device)
        place = (values / scale).add_(1.0).mul_(steps / 2).add_(noise).floor_()
        # place + noise < steps + 1 rounds up to steps + 1 now and then, as float32
        return place.clamp_(max=steps).to(torch.uint8)


def _signs(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    positive = values > 0
    zero = torch.nonzero(values == 0).squeeze(1)
    if zero.numel():
        drawn = torch.randint(0, 2, (zero.numel(),), generator=generator, dtype=torch.uint8)
        positive[zero] = drawn.to(values.device, torch.bool)
    return positive.to(torch.uint8)


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
                values = table.take(unpack_slice(self.packed, block.start, block.stop, self.bits))
                accumulator[block].add_(torch.from_numpy(values).to(accumulator.device))
