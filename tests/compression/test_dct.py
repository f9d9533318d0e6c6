from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import torch

from distro_fed.compression import dct
from distro_fed.compression.dct import add_inverse_dct_, chunk_grids, dct_, grid_shapes
from distro_fed.layout import Layout, TensorSpec

SHAPES = [
    (),
    (0, 3),
    (1,),
    (1, 1),
    (65,),
    (1000,),
    (1, 200),
    (200, 1),
    (64, 64),
    (127, 131),
    (6401, 3),
    (3, 70, 9),
    (2, 3, 5, 7),
]


def around(shape: tuple[int, ...]) -> Layout:
    """The tensor between two others, so that a step over its edge is seen."""
    return Layout([TensorSpec("before", (5,)), TensorSpec("it", shape), TensorSpec("after", (3, 3))])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inverse_and_norm(shape: tuple[int, ...]) -> None:
    layout = around(shape)
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(1))
    y = x.clone()
    assert dct_(y, layout) is y
    assert y.norm().item() == pytest.approx(x.norm().item(), rel=1e-5)
    back = torch.ones(layout.numel)
    add_inverse_dct_(y, back, layout)
    torch.testing.assert_close(back, x + 1, atol=4e-6, rtol=1e-5)


@pytest.mark.parametrize("density", [0.0, 1 / 2000, 1 / 200, 1 / 100])
def test_the_sparse_inverse_is_the_inverse(density: float, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout([TensorSpec("a", (320, 192)), TensorSpec("b", (127, 131)), TensorSpec("c", (500,))])
    coefficients = torch.randn(layout.numel) * (torch.rand(layout.numel) < density)
    sparse, dense = torch.zeros(layout.numel), torch.zeros(layout.numel)
    monkeypatch.setattr(dct, "_BATCH", 2 * 64 * 192)
    add_inverse_dct_(coefficients.clone(), sparse, layout)
    monkeypatch.setattr(dct, "_FEW", -1)
    add_inverse_dct_(coefficients.clone(), dense, layout)
    torch.testing.assert_close(sparse, dense, atol=2e-6, rtol=1e-5)
    assert bool(sparse.any()) == (density > 0)


def test_chunks_are_those_of_scipy() -> None:
    x = torch.randn(2, 128, 192, dtype=torch.float32)
    layout = Layout([TensorSpec("a", (2, 128, 192))])
    y = dct_(x.flatten().clone(), layout).view(2, 128, 192).numpy()
    for m in range(2):
        for i in range(0, 128, 64):
            for j in range(0, 192, 64):
                expected = scipy.fft.dctn(x[m, i : i + 64, j : j + 64].numpy(), norm="ortho")
                np.testing.assert_allclose(y[m, i : i + 64, j : j + 64], expected, atol=2e-5)


def test_prime_sides_are_cut_into_near_equal_pieces() -> None:
    x = torch.randn(127, 131)
    layout = Layout([TensorSpec("a", (127, 131))])
    y = dct_(x.flatten().clone(), layout).view(127, 131).numpy()
    # 127 = 64 + 63; 131 = 44 + 44 + 43
    for rows in (slice(0, 64), slice(64, 127)):
        for columns in (slice(0, 44), slice(44, 88), slice(88, 131)):
            np.testing.assert_allclose(
                y[rows, columns], scipy.fft.dctn(x[rows, columns].numpy(), norm="ortho"), atol=2e-5
            )


def test_vectors_are_cut_into_pieces() -> None:
    x = torch.randn(100)
    y = dct_(x.clone(), Layout([TensorSpec("a", (100,))])).numpy()
    np.testing.assert_allclose(y[:50], scipy.fft.dct(x[:50].numpy(), norm="ortho"), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grids_cover_every_value_once(shape: tuple[int, ...]) -> None:
    numel = int(np.prod(shape))
    values = torch.zeros(numel)
    sizes: dict[int, int] = {}
    for grid in chunk_grids(values, shape, 64):
        grid += 1
        rows, h, across, w = grid.shape
        assert max(h, w) <= 64
        sizes[h * w] = sizes.get(h * w, 0) + rows * across
    assert bool((values == 1).all())
    listed: dict[int, int] = {}
    for chunks, size in grid_shapes(shape, 64):
        listed[size] = listed.get(size, 0) + chunks
    assert listed == sizes


def test_smaller_chunks() -> None:
    layout = Layout([TensorSpec("a", (16, 16))])
    x = torch.randn(256)
    y = dct_(x.clone(), layout, chunk=8).view(16, 16).numpy()
    np.testing.assert_allclose(y[8:, :8], scipy.fft.dctn(x.view(16, 16)[8:, :8].numpy(), norm="ortho"), atol=1e-5)
