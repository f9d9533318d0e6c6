from __future__ import annotations

import pytest

from distro_fed.compression.configured import configured_compressors
from distro_fed.settings import RunSettings


@pytest.mark.parametrize(
    ("config", "up", "down"),
    [
        ({"compressor": "topk"}, "topk density=1/64", "topk density=1/64"),
        (
            {"compressor": "topk", "selection": "chunk", "value-bits": 2, "downlink-density": 0.25},
            "topk density=1/64 per 64x64 chunk value-bits=2",
            "topk density=1/4 per 64x64 chunk value-bits=2",
        ),
        (
            {"compressor": "dct-topk", "value-bits": 2, "density": 1 / 8},
            "dct-topk density=1/8 chunk=64 value-bits=2",
            "dct-topk density=1/8 chunk=64 value-bits=2",
        ),
    ],
)
def test_settings_reach_both_compressors(config: dict[str, object], up: str, down: str) -> None:
    pair = configured_compressors(RunSettings.from_run_config(config))
    assert [compressor.describe() for compressor in pair] == [up, down]
