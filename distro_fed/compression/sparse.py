"""Body of the selecting compressors: positions, one or two bits each, and one or two scales per tensor.

::

    count      8 bytes, little-endian
    scales     2 bytes for each tensor: mean magnitude of its selected coefficients
    codes      1 bit for each position, 1 for positive, padded to a byte
    positions  the rest, coded by distro_fed.compression.positions

With two bits a value the magnitudes of a tensor are split in two where the squared error is least. Then the scales of
all tensors' lower halves come first and those of the upper halves after them, and a second, higher bit of the code is 1
for the upper half. SparseLoCo spends the same two bits on four bins of equal width over six standard deviations (arXiv
2508.15706). Values that were selected by magnitude lie in two clusters, one for each sign, so that these bins mostly
tell the sign only: their error is 3 times as large on normal values at density 1/64, and 5 times on their cubes. It is
smaller only where one sign's values are much larger than the other's.
"""

from __future__ import annotations

import itertools
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


def check_value_bits(value_bits: int) -> None:
    """Raise :class:`SettingsError` unless it is 1 or 2."""
    if value_bits not in (1, 2):
        raise SettingsError(f"value_bits is {value_bits}; use 1 (the sign) or 2 (sign and one of two magnitudes)")


def describe_density(density: float) -> str:
    """Density as a person writes it: ``1/64`` where it is one over a whole number."""
    inverse = round(1 / max(density, 1e-9))
    # nine digits: of fewer than a billion values two densities that read the same select the same number
    return f"1/{inverse}" if abs(density * inverse - 1) < 1e-9 else f"{density:.9g}"


def describe_value_bits(value_bits: int) -> str:
    """Continue a description with the bits of a value; nothing for the usual one."""
    return "" if value_bits == 1 else f" value-bits={value_bits}"


def share(density: float, size: int) -> int:
    """How many of ``size`` values a density stands for: nearest whole number, at least 1 unless there are none."""
    return min(size, max(1, round(density * size)))


def encode_sparse(coefficients: torch.Tensor, positions: torch.Tensor, space: Layout, value_bits: int = 1) -> bytes:
    """Code the selected coefficients.

    Parameters
    ----------
    coefficients : torch.Tensor
        Flat float32, ``space.numel`` values.
    positions : torch.Tensor
        int64, ascending, on the same device; the coefficients there are finite and not zero.
    space : Layout
        Where each tensor lies.
    value_bits : int
        1 or 2.
    """
    values = coefficients[positions].cpu().numpy()
    places = positions.cpu().numpy()
    starts = np.searchsorted(places, space.offsets)
    codes = (values > 0).astype(np.uint8)
    magnitudes = np.abs(values)
    if value_bits == 1:
        sums = np.concatenate(([0.0], np.cumsum(magnitudes, dtype=np.float64)))
        scales = np.diff(sums[starts]) / np.maximum(np.diff(starts), 1)
    else:
        scales = _two_scales(magnitudes, starts, codes)
    return b"".join(
        (
            places.size.to_bytes(_COUNT_BYTES, "little"),
            pack_scales(scales.astype(np.float32)),
            pack_bits(codes, value_bits),
            encode_positions(places),
        )
    )


def _two_scales(
    magnitudes: NDArray[np.float32], starts: NDArray[np.int64], codes: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Split each tensor's magnitudes in two with the least squared error; marks the upper half in ``codes``.

    Returns
    -------
    ndarray of float64, shape (2 * tensors,)
        Means of all lower halves, then of all upper halves.
    """
    scales = np.zeros((2, starts.size - 1))
    for index, (start, stop) in enumerate(itertools.pairwise(starts.tolist())):
        if start == stop:
            continue
        ordered = np.sort(magnitudes[start:stop])
        sums = np.cumsum(ordered, dtype=np.float64)
        total, size = sums[-1], ordered.size
        lower = np.arange(1, size)
        # the least error leaves the most of the squares to the two means
        explained = sums[:-1] ** 2 / lower + (total - sums[:-1]) ** 2 / (size - lower)
        border = ordered[np.argmax(explained) if size > 1 else 0]
        below = int(np.searchsorted(ordered, border, side="right"))
        scales[0, index] = sums[below - 1] / below
        scales[1, index] = (total - sums[below - 1]) / (size - below) if below < size else scales[0, index]
        codes[start:stop] |= (magnitudes[start:stop] > border).astype(np.uint8) << 1
    return scales.reshape(-1)


def decode_sparse(body: bytes | memoryview, space: Layout, limit: int, value_bits: int = 1) -> Sparse:
    """Inverse of :func:`encode_sparse`; ``limit`` is the number of positions that settings and layout allow.

    Raises
    ------
    CorruptBody
        If a rule of the format is broken, or there are more than ``limit`` positions.
    """
    raw = np.frombuffer(body, np.uint8)
    tensors = len(space)
    scales_end = _COUNT_BYTES + SCALE_BYTES * tensors * value_bits
    if raw.size < scales_end:
        raise CorruptBody(f"the body ends after {raw.size} bytes, within its {scales_end} bytes of count and scales")
    count = int.from_bytes(raw[:_COUNT_BYTES].tobytes(), "little")
    if count > limit:
        raise CorruptBody(f"the body claims {count} positions; density and layout allow {limit}")
    scales = unpack_scales(raw[_COUNT_BYTES:scales_end], tensors * value_bits)
    codes_end = scales_end + packed_size(count, value_bits)
    codes = unpack_bits(raw[scales_end:codes_end], count, value_bits)
    positions = decode_positions(raw[codes_end:], count, space.numel)
    per_tensor = np.diff(np.searchsorted(positions, space.offsets))
    values = np.repeat(scales[:tensors], per_tensor)
    if value_bits == 2:
        np.copyto(values, np.repeat(scales[tensors:], per_tensor), where=codes >= 2)
    np.negative(values, out=values, where=codes & 1 == 0)
    return Sparse(positions, values)


@dataclass(frozen=True, slots=True)
class Sparse(Decoded):
    """Coefficients at some positions; all others were not sent."""

    positions: NDArray[np.int64]
    values: NDArray[np.float32]

    def add_to(self, accumulator: torch.Tensor, weight: float = 1.0) -> None:
        """Add the coefficients where they were sent."""
        products = torch.from_numpy(self.values * np.float32(weight)).to(accumulator.device)
        accumulator.index_add_(0, torch.from_numpy(self.positions).to(accumulator.device), products)

    def add_weight_to(self, weights: torch.Tensor, weight: float) -> None:
        """Add ``weight`` to ``weights``, flat float32 with ``space.numel`` values, wherever a coefficient was sent."""
        sent = torch.from_numpy(self.positions).to(weights.device)
        weights.index_add_(0, sent, torch.full(sent.shape, weight, device=weights.device))
