"""Every coefficient as a floating-point number: the reference that the other compressors are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from distro_fed.compression.base import Compressor, Decoded
from distro_fed.compression.blocks import blocks
from distro_fed.compression.quantized import FixedPoint
from distro_fed.compression.scales import LARGEST, not_usable
from distro_fed.errors import CorruptBody, SettingsError, TrainingError
from distro_fed.layout import DTYPES

if TYPE_CHECKING:
    from distro_fed.layout import Layout


@dataclass(frozen=True, slots=True)
class Dense(Compressor):
    """Send every coefficient in ``dtype``, rounded to nearest. Under masks, where only integers are summed, in 16 bits.

    Parameters
    ----------
    dtype : str
        ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    """

    dtype: str = "float32"
    name: ClassVar[str] = "dense"
    codec: ClassVar[int] = 1
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SettingsError(f"dense dtype is {self.dtype!r}; use one of {', '.join(DTYPES)}")

    def parameters(self) -> int:
        """Place of the dtype in :data:`~distro_fed.layout.DTYPES`."""
        return DTYPES.index(self.dtype)

    def describe(self) -> str:
        """Name and dtype."""
        return f"dense dtype={self.dtype}"

    def integer_code(self) -> FixedPoint:
        """16 bits a value: a step is 2**-15 of a tensor's scale."""
        return FixedPoint()

    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Body: ``space.numel`` little-endian numbers."""
        del seed
        body = bytearray(space.numel * self._torch_dtype.itemsize)
        out = torch.frombuffer(body, dtype=self._torch_dtype) if body else torch.empty(0, dtype=self._torch_dtype)
        for spec, where in space.slices():
            for block in blocks(where.start, where.stop):
                out[block] = coefficients[block]
                largest = float(out[block].float().abs().amax())
                if largest < LARGEST:
                    continue
                original = float(coefficients[block].abs().amax())
                if original < LARGEST:
                    raise TrainingError(
                        f"tensor {spec.name!r} holds {original}, too large for {self.dtype}: use bfloat16"
                    )
                raise TrainingError(not_usable(spec.name, original))
        return bytes(body)

    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check the length and every value."""
        expected = space.numel * self._torch_dtype.itemsize
        if len(body) != expected:
            raise CorruptBody(
                f"{space.numel} values of {self.dtype} take {expected} bytes, but the body has {len(body)}"
            )
        # torch warns about a buffer that it could write to; nothing here does, but a copy is cheap beside the update
        values = torch.frombuffer(bytearray(body), dtype=self._torch_dtype) if body else torch.empty(0)
        for block in blocks(0, space.numel):
            largest = float(values[block].float().abs().amax())
            if not largest < LARGEST:
                raise CorruptBody(
                    f"a value between {block.start} and {block.stop} is {largest}; finite values below 2**64 only"
                )
        return _Values(values)

    @property
    def _torch_dtype(self) -> torch.dtype:
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[self.dtype]


@dataclass(frozen=True, slots=True)
class _Values(Decoded):
    values: torch.Tensor

    def add_to(self, accumulator: torch.Tensor, weight: float = 1.0) -> None:
        for block in blocks(0, self.values.numel()):
            values = self.values[block].to(accumulator.device, torch.float32)
            accumulator[block].add_(values * float(np.float32(weight)))
