from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from distro_fed.compression.base import RoundKey
from distro_fed.compression.dct_topk import DctTopK
from distro_fed.errors import CorruptBody, SettingsError, TrainingError
from distro_fed.layout import Layout, TensorSpec

KEY = RoundKey(1, 1)


def test_full_density_gives_signs_of_all_coefficients(layout: Layout, delta: torch.Tensor) -> None:
    compressor = DctTopK(1.0)
    coefficients = compressor.analyse(delta.clone(), layout, KEY)
    replica = delta.clone()
    compressor.synthesise(coefficients.clone(), replica, layout, KEY)
    torch.testing.assert_close(replica, 2 * delta, atol=1e-8, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 8, 32])
def test_every_chunk_sends_its_k_largest(k: int, roundtrip: Callable[..., torch.Tensor]) -> None:
    layout = Layout([TensorSpec("norm", (100,), kind="vector"), TensorSpec("a", (128, 192), kind="matrix")])
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(k))
    x[:100] *= 1e-3
    out = roundtrip(DctTopK(k / 4096), x, layout)
    chunks = x[100:].view(2, 64, 3, 64).permute(0, 2, 1, 3).flatten(2)
    sent = out[100:].view(2, 64, 3, 64).permute(0, 2, 1, 3).flatten(2)
    assert sorted(map(tuple, torch.nonzero(sent).tolist())) == sorted(
        (i, j, int(p)) for i in range(2) for j in range(3) for p in chunks[i, j].abs().topk(k).indices
    )
    assert bool((sent.sign() * chunks >= 0).all())
    assert int((out[:100] != 0).sum()) == max(1, round(100 * k / 4096))


def test_small_chunks_are_pooled_to_keep_the_density(layout: Layout, delta: torch.Tensor) -> None:
    body = DctTopK(1 / 512).encode(delta, layout, 0)
    count = int.from_bytes(body[:8], "little")
    assert count == pytest.approx(layout.numel / 512, rel=0.1)


def test_more_positions_than_chunks_allow_are_refused(layout: Layout, delta: torch.Tensor) -> None:
    body = DctTopK(1 / 64).encode(delta, layout, 0)
    DctTopK(1 / 64).decode(body, layout)
    with pytest.raises(CorruptBody, match="allow"):
        DctTopK(1 / 100).decode(body, layout)


def test_zeros_are_not_sent(layout: Layout) -> None:
    assert DctTopK().encode(torch.zeros(layout.numel), layout, 0)[:8] == bytes(8)


def test_a_smooth_matrix_is_one_coefficient(roundtrip: Callable[..., torch.Tensor]) -> None:
    layout = Layout([TensorSpec("a", (64, 64), kind="matrix")])
    compressor, replica = DctTopK(1 / 4096), torch.zeros(4096)
    coefficients = roundtrip(compressor, compressor.analyse(torch.full((4096,), 0.25), layout, KEY), layout)
    compressor.synthesise(coefficients, replica, layout, KEY)
    torch.testing.assert_close(replica, torch.full((4096,), 0.25))


def test_settings() -> None:
    for bad in (0, 1, 65):
        with pytest.raises(SettingsError, match=f"chunk is {bad}"):
            DctTopK(chunk=bad)
    with pytest.raises(SettingsError, match="density"):
        DctTopK(2.0)
    assert DctTopK(8 / 4096).describe() == "dct-topk density=1/512 chunk=64"
    assert DctTopK(1.0).parameters() < 2**32
    assert DctTopK(1 / 4, value_bits=2).describe() == "dct-topk density=1/4 chunk=64 value-bits=2"
    different = [DctTopK(d, c, v) for d in (1.0, 0.5, 1 / 4096) for c in (2, 64) for v in (1, 2)]
    assert len({compressor.parameters() for compressor in different}) == 12
    with pytest.raises(SettingsError, match="value_bits is 3"):
        DctTopK(value_bits=3)


def test_two_bits_lose_less_than_one(
    layout: Layout, delta: torch.Tensor, roundtrip: Callable[..., torch.Tensor]
) -> None:
    coefficients = DctTopK().analyse(delta, layout, KEY)
    one, two = (roundtrip(DctTopK(1 / 16, value_bits=bits), coefficients, layout) for bits in (1, 2))
    assert torch.equal(one.sign(), two.sign())
    sent = one != 0
    assert float((two - coefficients)[sent].norm()) < 0.7 * float((one - coefficients)[sent].norm())


def test_nan_is_not_sent(layout: Layout, delta: torch.Tensor) -> None:
    for at in (layout.offsets[1], layout.offsets[4]):  # a matrix, the pool
        bad = delta.clone()
        bad[at] = float("nan")
        with pytest.raises(TrainingError):
            DctTopK().encode(bad, layout, 0)
