from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from distro_fed.compression.dct_topk import DctTopK
from distro_fed.compression.sparse import describe_density, share
from distro_fed.compression.topk import TopK
from distro_fed.errors import CorruptBody, SettingsError, TrainingError
from distro_fed.layout import Layout, TensorSpec


@pytest.mark.parametrize("density", [1.0, 1 / 8, 1 / 64, 1e-9])
def test_sign_and_scale_of_the_largest(
    density: float, layout: Layout, delta: torch.Tensor, roundtrip: Callable[..., torch.Tensor]
) -> None:
    k = share(density, layout.numel)
    out = roundtrip(TopK(density), delta, layout)
    chosen = torch.zeros(layout.numel, dtype=torch.bool)
    chosen[delta.abs().topk(k).indices] = True
    for _, where in layout.slices():
        picked = delta[where][chosen[where]]
        expected = torch.zeros(chosen[where].numel())
        if picked.numel():
            expected[chosen[where]] = picked.sign() * picked.double().abs().mean().float().bfloat16().float()
        assert torch.equal(out[where], expected)


def test_zeros_are_not_sent(roundtrip: Callable[..., torch.Tensor]) -> None:
    layout = Layout([TensorSpec("a", (1000,))])
    x = torch.zeros(1000)
    x[[3, 500]] = torch.tensor([2.0, -2.0])
    assert torch.equal(roundtrip(TopK(0.5), x, layout), x)
    assert not roundtrip(TopK(0.5), torch.zeros(1000), layout).any()


def test_the_same_input_gives_the_same_bytes_whatever_the_seed(layout: Layout, delta: torch.Tensor) -> None:
    assert TopK().encode(delta, layout, 1) == TopK().encode(delta, layout, 2)


def test_more_positions_than_the_density_allows_are_refused(layout: Layout, delta: torch.Tensor) -> None:
    body = TopK(1 / 16).encode(delta, layout, 0)
    TopK(1 / 16).decode(body, layout)
    with pytest.raises(CorruptBody, match="allow"):
        TopK(1 / 17).decode(body, layout)


def test_bits_per_coefficient_are_near_the_bound() -> None:
    layout = Layout([TensorSpec("a", (1024, 1024), kind="matrix")])
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    k = share(1 / 64, layout.numel)
    # log2 C(n, n/64) / k + 1 sign bit = 8.43
    assert len(TopK(1 / 64).encode(x, layout, 0)) * 8 / k < 8.6
    # log2 C(4096, 64) / 64 + 2 = 9.36
    assert 9.36 < len(TopK(1 / 64, "chunk", 2).encode(x, layout, 0)) * 8 / k < 9.6


@pytest.mark.parametrize("density", [0.0, -1.0, 1.1, float("nan")])
def test_density_out_of_range(density: float) -> None:
    with pytest.raises(SettingsError, match="density is"):
        TopK(density)


def test_nan_is_not_sent(layout: Layout, delta: torch.Tensor) -> None:
    delta[7] = float("nan")
    with pytest.raises(TrainingError):
        TopK().encode(delta, layout, 0)


def test_small_things() -> None:
    assert share(1 / 64, 0) == 0
    assert share(1 / 64, 1) == 1
    assert describe_density(1 / 512) == "1/512"
    assert describe_density(0.3) == "0.3"
    assert describe_density(0.1234563) == "0.1234563"
    assert describe_density(1e-310) == "1e-310"
    assert TopK(1.0).parameters() == 2**32 - 4
    assert TopK(1 / 64).parameters() == 2**26
    assert TopK(1 / 64).describe() == "topk density=1/64"
    assert TopK(1 / 64, "chunk", 2).describe() == "topk density=1/64 per 64x64 chunk value-bits=2"


def test_the_header_tells_all_settings_apart() -> None:
    compressors = [TopK(d, s, v) for d in (1.0, 0.5, 1e-9) for s in ("global", "chunk") for v in (1, 2)]
    assert len({compressor.parameters() for compressor in compressors}) == 12
    assert len({compressor.describe() for compressor in compressors}) == 12
    assert all(0 <= compressor.parameters() < 2**32 for compressor in compressors)


def test_other_selections_and_bits_are_refused() -> None:
    with pytest.raises(SettingsError, match="selection is 'blocks'; use 'global' or 'chunk'"):
        TopK(selection="blocks")
    for bits in (0, 3):
        with pytest.raises(SettingsError, match=f"value_bits is {bits}"):
            TopK(value_bits=bits)


@pytest.mark.parametrize("density", [1 / 16, 1 / 64, 1 / 4096])
def test_by_chunk_it_sends_what_dct_topk_sends_without_a_transform(
    density: float, layout: Layout, delta: torch.Tensor
) -> None:
    assert TopK(density, "chunk").encode(delta, layout, 0) == DctTopK(density).encode(delta, layout, 0)
    assert TopK(density, "chunk").encode(delta, layout, 0) != TopK(density).encode(delta, layout, 0)


def test_more_positions_than_the_chunks_allow_are_refused() -> None:
    layout = Layout([TensorSpec("a", (640, 64), kind="matrix")])
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    density = 1.4 / 4096  # 14 of the whole matrix, and 1 of each of its 10 chunks
    TopK(density, "chunk").decode(TopK(density, "chunk").encode(x, layout, 0), layout)
    with pytest.raises(CorruptBody, match="claims 14 positions; density and layout allow 10"):
        TopK(density, "chunk").decode(TopK(density).encode(x, layout, 0), layout)


def test_an_empty_layout(roundtrip: Callable[..., torch.Tensor]) -> None:
    assert roundtrip(TopK(), torch.zeros(0), Layout([TensorSpec("a", (0,))])).numel() == 0
