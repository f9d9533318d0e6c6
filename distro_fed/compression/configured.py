"""Compressors out of a run's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distro_fed.compression import make_compressor
from distro_fed.settings import RunSettings

if TYPE_CHECKING:
    from distro_fed.compression.base import Compressor


def preset_compressor(name: str) -> Compressor:
    """A compressor with the parameters that a run takes for it when its settings leave them open."""
    return configured_compressors(RunSettings.from_run_config({"compressor": name, "mode": "full"}))[0]


def configured_compressors(settings: RunSettings) -> tuple[Compressor, Compressor]:
    """Uplink and downlink compressor of a run.

    Parameters
    ----------
    settings : RunSettings
        Completed, as :meth:`RunSettings.from_run_config` returns them: presets are filled in.
    """
    chosen = settings.compression

    def make(density: float, bits: int) -> Compressor:
        return make_compressor(
            chosen.compressor,
            density=density,
            selection=chosen.selection,
            value_bits=chosen.value_bits,
            bits=bits,
            rank=chosen.rank,
            dtype=chosen.dense_dtype,
            final_rank=chosen.final_rank,
            basis_rounds=chosen.basis_rounds,
            rounds=settings.federation.num_server_rounds,
            basis_decay=chosen.basis_decay,
        )

    return make(chosen.density, chosen.bits), make(chosen.downlink_density, chosen.downlink_bits)
