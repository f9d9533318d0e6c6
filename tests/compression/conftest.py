from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from distro_fed.compression.base import Compressor
from distro_fed.layout import Layout, TensorSpec


@pytest.fixture
def layout() -> Layout:
    """Matrices that divide and do not divide by 64, a vector, a scalar, an empty tensor and four axes."""
    return Layout(
        [
            TensorSpec("embedding", (200, 64), kind="embedding"),
            TensorSpec("square", (128, 64), kind="matrix"),
            TensorSpec("prime", (127, 131), kind="matrix"),
            TensorSpec("thin", (8, 576), kind="matrix"),
            TensorSpec("vector", (576,), kind="vector"),
            TensorSpec("scalar", (), kind="vector"),
            TensorSpec("empty", (0, 3)),
            TensorSpec("kernel", (4, 5, 3, 3)),
        ]
    )


@pytest.fixture
def delta(layout: Layout) -> torch.Tensor:
    """Heavy-tailed pseudo-gradient for the layout."""
    return torch.randn(layout.numel, generator=torch.Generator().manual_seed(3)) ** 3 * 1e-4


@pytest.fixture
def roundtrip() -> Callable[..., torch.Tensor]:
    """Code coefficients into a body and add the decoded body to zeros."""

    def run(compressor: Compressor, coefficients: torch.Tensor, space: Layout, seed: int = 0) -> torch.Tensor:
        before = coefficients.clone()
        body = compressor.encode(coefficients, space, seed)
        assert torch.equal(coefficients, before), "encode changed its input"
        out = torch.zeros(space.numel)
        compressor.decode(memoryview(body), space).add_to(out)
        return out

    return run
