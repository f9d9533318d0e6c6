"""One magnitude per tensor: measured, rounded to bfloat16, and checked when it comes in.

A scale is sent as the upper two bytes of a float32, little-endian. It is never negative, and at most
:data:`LARGEST`, so that sums over any number of members stay finite.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from distro_fed.compression.blocks import BLOCK, blocks
from distro_fed.errors import CorruptBody, TrainingError

if TYPE_CHECKING:
    import torch

    from distro_fed.layout import Layout

#: coefficients stay below it, a scale may reach it by rounding; far above anything that training gives
LARGEST = 2.0**64
#: bytes of one scale
SCALE_BYTES = 2
_SMALLEST_NORMAL = np.float32(2.0**-126)


def tensor_scales(flat: torch.Tensor, space: Layout, statistic: Literal["mean", "max"]) -> NDArray[np.float32]:
    """Mean or largest magnitude of each tensor, 0 for an empty one.

    Returns
    -------
    ndarray of float32, shape (len(space),)

    Raises
    ------
    TrainingError
        If a coefficient is NaN, infinite or not below :data:`LARGEST`.
    """
    import torch

    scales = np.zeros(len(space), np.float32)
    buffer = torch.empty(min(BLOCK, space.numel), device=flat.device)  # fresh memory would cost more than the work
    for index, (spec, where) in enumerate(space.slices()):
        total = largest = 0.0
        for block in blocks(where.start, where.stop):
            if statistic == "max":
                low, high = torch.aminmax(flat[block])
                here = max(-float(low), float(high))
            else:
                magnitudes = torch.abs(flat[block], out=buffer[: block.stop - block.start])
                here = float(magnitudes.amax())
                total += float(magnitudes.sum())
            if not here < LARGEST:  # a NaN compares false
                raise TrainingError(not_usable(spec.name, here))
            largest = max(largest, here)
        scales[index] = largest if statistic == "max" else total / max(spec.numel, 1)
    return scales


def not_usable(name: str, value: float) -> str:
    """Message about a coefficient that must not be sent."""
    return (
        f"the update of tensor {name!r} holds {value}, and only finite values below 2**64 may be sent: "
        "training diverged; lower the learning rate"
    )


def share_beyond(flat: torch.Tensor, space: Layout, scales: NDArray[np.float32]) -> float:
    """Share of the coefficients whose magnitude is above the scale of their tensor."""
    import torch

    count = 0
    for (_, where), scale in zip(space.slices(), scales.tolist(), strict=True):
        for block in blocks(where.start, where.stop):
            count += int(torch.count_nonzero(flat[block].abs() > scale))
    return count / max(space.numel, 1)


def with_scales(body: bytes | memoryview, scales: bytes) -> bytes:
    """A body that starts with scales, with other scales in their place."""
    return b"".join((scales, memoryview(body)[len(scales) :]))


def scales_digest(common: bytes) -> str:
    """Sixteen hexadecimal digits, by which a member says which common scales it coded with; empty for none."""
    return hashlib.blake2b(common, digest_size=8, person=b"df-scales").hexdigest() if common else ""


def fill_scales(common: bytes, measured: bytes) -> bytes:
    """Scales that an update is coded with: the common ones, and where those are 0 the ones that were measured."""
    announced, own = np.frombuffer(common, "<u2"), np.frombuffer(measured, "<u2")
    return np.where(announced == 0, own, announced).astype("<u2").tobytes()


def pack_scales(scales: NDArray[np.float32], *, up: bool = False) -> bytes:
    """Round to bfloat16, to nearest even or ``up``, and lay out as two bytes each.

    ``up`` keeps every value of a tensor within its scale, which unbiased rounding needs. It also lifts
    denormal scales to the smallest normal one, because some devices divide by them as by zero.
    """
    if up:
        scales = np.where(scales > 0, np.maximum(scales, _SMALLEST_NORMAL), scales)
    bits = np.ascontiguousarray(scales, np.float32).view(np.uint32)
    rounded = (bits + 0xFFFF if up else bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()


def unpack_scales(raw: NDArray[np.uint8], count: int) -> NDArray[np.float32]:
    """Inverse of :func:`pack_scales`; ``raw`` holds exactly ``count`` scales.

    Raises
    ------
    CorruptBody
        If the length is wrong, or a scale is NaN, infinite, negative or above :data:`LARGEST`.
    """
    if raw.size != count * SCALE_BYTES:
        raise CorruptBody(f"{count} scales take {count * SCALE_BYTES} bytes, but {raw.size} are here")
    bits = np.frombuffer(raw.tobytes(), "<u2").astype(np.uint32) << 16
    scales = bits.view(np.float32)
    sound = (bits < 2**31) & (scales <= LARGEST)
    if not sound.all():
        first = int(np.argmin(sound))
        raise CorruptBody(f"scale {first} is {scales[first]}; a scale lies between 0 and 2**64")
    return scales
