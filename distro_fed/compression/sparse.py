"""Body of the selecting compressors: positions, one sign each, and one scale per tensor.

::

    count      8 bytes, little-endian
    scales     2 bytes for each tensor: mean magnitude of its selected coefficients
    signs      1 bit for each position, 1 for positive, padded to a byte
    positions  the rest, coded by distro_fed.compression.positions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from distro_fed.compression.base import Decoded
from distro_fed.compression.bits import pack_bits, packed_size, unpack_bits
from distro_fed.compression.positions import decode_positions, encode_positions
from distro_fed.compression.scales import SCALE_BYTES, pack_scales, unpack_scales
from distro_fed.errors import CorruptBody, SettingsError

if TYPE_CHECKING:
    from distro_fed.layout import Layout

_COUNT_BYTES = 8


def check_density(density: float) -> None:
    """Raise :class:`SettingsError` unless 0 < density <= 1."""
    if not 0 < density <= 1:
        raise SettingsError(f"density is {density}; use a fraction above 0 and at most 1, such as {1 / 64}")


def describe_density(density: float) -> str:
    """Density as a person writes it: ``1/64`` where it is one over a whole number."""
    inverse = round(1 / density)
    return f"1/{inverse}" if abs(density * inverse - 1) < 1e-9 else f"{density:g}"


def share(density: float, size: int) -> int:
    """How many of ``size`` values a density stands for: nearest whole number, at least 1 unless there are none."""
    return min(size, max(1, round(density * size)))


def encode_sparse(coefficients: torch.Tensor, positions: torch.Tensor, space: Layout) -> bytes:
    """Code the selected coefficients as sign and scale.

    Parameters
    ----------
    coefficients : torch.Tensor
        Flat float32, ``space.numel`` values.
    positions : torch.Tensor
        int64, ascending, on the same device; the coefficients there are finite and not zero.
    """
    values = coefficients[positions].cpu().numpy()
    places = positions.cpu().numpy()
    starts = np.searchsorted(places, space.offsets)
    sums = np.concatenate(([0.0], np.cumsum(np.abs(values), dtype=np.float64)))
    scales = np.diff(sums[starts]) / np.maximum(np.diff(starts), 1)
    return b"".join(
        (
            places.size.to_bytes(_COUNT_BYTES, "little"),
            pack_scales(scales.astype(np.float32)),
            pack_bits(values > 0, 1),
            encode_positions(places),
        )
    )


def decode_sparse(body: bytes | memoryview, space: Layout, limit: int) -> Decoded:
    """Inverse of :func:`encode_sparse`; ``limit`` is the number of positions that settings and layout allow.

    Raises
    ------
    CorruptBody
        If a rule of the format is broken, or there are more than ``limit`` positions.
    """
    raw = np.frombuffer(body, np.uint8)
    scales_end = _COUNT_BYTES + SCALE_BYTES * len(space)
    if raw.size < scales_end:
        raise CorruptBody(f"the body ends after {raw.size} bytes, within its {scales_end} bytes of count and scales")
    count = int.from_bytes(raw[:_COUNT_BYTES].tobytes(), "little")
    if count > limit:
        raise CorruptBody(f"the body claims {count} positions; density and layout allow {limit}")
    scales = unpack_scales(raw[_COUNT_BYTES:scales_end], len(space))
    signs_end = scales_end + packed_size(count, 1)
    positive = unpack_bits(raw[scales_end:signs_end], count, 1)
    positions = decode_positions(raw[signs_end:], count, space.numel)
    values = np.repeat(scales, np.diff(np.searchsorted(positions, space.offsets)))
    np.negative(values, out=values, where=positive == 0)
    return _Sparse(positions, values)


@dataclass(frozen=True, slots=True)
class _Sparse(Decoded):
    positions: NDArray[np.int64]
    values: NDArray[np.float32]

    def add_to(self, accumulator: torch.Tensor, weight: float = 1.0) -> None:
        products = torch.from_numpy(self.values * np.float32(weight)).to(accumulator.device)
        accumulator.index_add_(0, torch.from_numpy(self.positions).to(accumulator.device), products)
