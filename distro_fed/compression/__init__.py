"""Pure tensor functions and byte codes: pseudo-gradient -> coefficients -> body, and back.

:func:`make_compressor` builds a compressor from its name; importing this package does not import torch.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from distro_fed.errors import SettingsError

if TYPE_CHECKING:
    from distro_fed.compression.base import Compressor

__all__ = ["compressor_names", "make_compressor"]

_NAMES = ("dense", "quantized", "topk", "dct-topk", "subspace", "lowrank", "tracking", "tracking-topk")


def compressor_names() -> tuple[str, ...]:
    """Names that :func:`make_compressor` knows, in the order of their codec numbers."""
    return _NAMES


def make_compressor(
    name: str,
    *,
    density: float = 1 / 64,
    selection: str = "global",
    value_bits: int = 1,
    bits: int = 1,
    rank: int = 8,
    dtype: str = "float32",
    final_rank: int = 0,
    basis_rounds: int = 1,
    rounds: int = 1,
    basis_decay: float = 1.0,
) -> Compressor:
    """Build a compressor; settings that it does not use are ignored.

    Parameters
    ----------
    name : str
        One of :func:`compressor_names`.
    density : float
        ``topk``, ``dct-topk``, ``tracking-topk``: coefficients sent over coefficients there are, above 0 and at most 1.
    selection : str
        ``topk``: ``"global"`` (one threshold for the model) or ``"chunk"`` (a quota for each chunk of a matrix).
    value_bits : int
        ``topk``, ``dct-topk``, ``tracking-topk``: bits of a selected value, 1 or 2.
    bits : int
        ``quantized``, ``subspace``, ``lowrank``, ``tracking``: bits of a value, 1 to 8.
    rank : int
        ``subspace``, ``lowrank``, ``tracking``: rows of the basis, 1 to 65536; ``tracking-topk``: 1 to 256.
    dtype : str
        ``dense``: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    final_rank, basis_rounds, rounds : int
        ``subspace``: rank in the last of ``rounds`` rounds (0: the same in all), and rounds that share a basis.
    basis_decay : float
        ``tracking``, ``tracking-topk``: what older updates count in the basis, 0 to 1.

    Raises
    ------
    SettingsError
        If the name is unknown or a setting of this compressor is out of range.
    """
    if name == "dense":
        from distro_fed.compression.dense import Dense

        return Dense(dtype)
    if name == "quantized":
        from distro_fed.compression.quantized import Quantized

        return Quantized(bits)
    if name == "topk":
        from distro_fed.compression.topk import TopK

        return TopK(density, selection, value_bits)
    if name == "dct-topk":
        from distro_fed.compression.dct_topk import DctTopK

        return DctTopK(density, value_bits=value_bits)
    if name == "subspace":
        from distro_fed.compression.subspace import Subspace

        return Subspace(rank, bits, final_rank, basis_rounds, rounds)
    if name == "lowrank":
        from distro_fed.compression.lowrank import LowRank

        return LowRank(rank, bits)
    if name == "tracking":
        from distro_fed.compression.tracking import Tracking

        return Tracking(rank, bits, basis_decay)
    if name == "tracking-topk":
        from distro_fed.compression.tracking_topk import TrackingTopK

        return TrackingTopK(rank, density, value_bits, basis_decay)
    close = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise SettingsError(f"unknown compressor {name!r}{hint} (known: {', '.join(_NAMES)})")
