"""Compressors out of a run's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distro_fed.compression import make_compressor
from distro_fed.settings import CompressionSettings, RunSettings

if TYPE_CHECKING:
    from distro_fed.compression.base import Compressor


def preset_compressor(name: str) -> Compressor:
    """A compressor with the parameters that a run takes for it when its settings leave them open."""
    return configured_compressors(RunSettings.from_run_config({"compressor": name, "mode": "full"}).compression)[0]


def configured_compressors(settings: CompressionSettings) -> tuple[Compressor, Compressor]:
    """Uplink and downlink compressor of a run.

    Parameters
    ----------
    settings : CompressionSettings
        Completed, as :meth:`RunSettings.from_run_config` returns them: presets are filled in.
    """

    def make(density: float, bits: int) -> Compressor:
        return make_compressor(
            settings.compressor, density=density, bits=bits, rank=settings.rank, dtype=settings.dense_dtype
        )

    return make(settings.density, settings.bits), make(settings.downlink_density, settings.downlink_bits)
