from __future__ import annotations

from collections.abc import Callable

import pytest

from distro_fed.compression import compressor_names
from distro_fed.errors import SettingsError
from distro_fed.planner.codec import COMPRESSORS, Codec


def test_every_compressor_can_be_planned() -> None:
    assert compressor_names() == COMPRESSORS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Codec("quantised"), "did you mean 'quantized'"),
        (lambda: Codec("quantized", bits=9), "bits of quantized is 9; use 1 to 8"),
        (lambda: Codec("topk", density=0.0), r"density of topk is 0.0; use a fraction"),
        (lambda: Codec("tracking-topk", rank=257), "rank of tracking-topk is 257; use 1 to 256"),
        (lambda: Codec("tracking", rank=2**17), "rank of tracking is 131072; use 1 to 65536"),
        (lambda: Codec("topk", value_bits=3), "value-bits of topk is 3; use 1 or 2"),
        (lambda: Codec("subspace", rank=0), "rank of subspace is 0"),
        (lambda: Codec("dense", dense_dtype="int8"), "use float32 or bfloat16"),
        (lambda: Codec.preset("topk", bits=4), r"bits = 4 has no meaning for topk.*\(topk has density, value-bits\)"),
    ],
)
def test_what_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make()


def test_a_preset_is_what_a_run_takes() -> None:
    assert Codec.preset("subspace").describe() == "subspace rank=1 bits=1"
    assert Codec.preset("dct-topk").describe() == "dct-topk density=1/512"
    assert Codec.preset("topk", density=0.3, value_bits=2).describe() == "topk density=0.3 value-bits=2"
    assert Codec.preset("dense").describe() == "dense dtype=float32"
