from __future__ import annotations

import subprocess
import sys

import pytest

from distro_fed.compression import compressor_names, make_compressor
from distro_fed.errors import SettingsError
from distro_fed.presets import SELECTING


def test_every_name_builds_its_compressor_with_a_codec_of_its_own() -> None:
    compressors = [make_compressor(name) for name in compressor_names()]
    assert [compressor.name for compressor in compressors] == list(compressor_names())
    assert [compressor.codec for compressor in compressors] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_settings_reach_the_compressor() -> None:
    described = [
        make_compressor(n, density=1 / 8, bits=3, rank=2, dtype="float16").describe() for n in compressor_names()
    ]
    assert described == [
        "dense dtype=float16",
        "quantized bits=3",
        "topk density=1/8",
        "dct-topk density=1/8 chunk=64",
        "subspace rank=2 bits=3",
        "lowrank rank=2 bits=3",
        "tracking rank=2 bits=3 decay=64/64",
        "tracking-topk rank=2 density=1/8 decay=64/64",
    ]


def test_settings_of_the_selecting_compressors_reach_them() -> None:
    described = [make_compressor(n, selection="chunk", value_bits=2).describe() for n in SELECTING]
    assert described == [
        "topk density=1/64 per 64x64 chunk value-bits=2",
        "dct-topk density=1/64 chunk=64 value-bits=2",
        "tracking-topk rank=8 density=1/64 value-bits=2 decay=64/64",
    ]


def test_settings_of_other_compressors_are_ignored() -> None:
    make_compressor("dense", density=7.0, selection="?", value_bits=9, bits=99, rank=-1)
    with pytest.raises(SettingsError, match="bits is 99"):
        make_compressor("quantized", bits=99)


def test_an_unknown_name_suggests_one() -> None:
    with pytest.raises(SettingsError, match="did you mean 'dct-topk'"):
        make_compressor("dct_topk")
    with pytest.raises(SettingsError, match="known: dense, quantized") as caught:
        make_compressor("zzz")
    assert "did you mean" not in str(caught.value)


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import distro_fed.compression, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
