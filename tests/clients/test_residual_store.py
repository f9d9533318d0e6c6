from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distro_fed.clients.residual_store import ResidualStore
from distro_fed.layout import Layout, TensorSpec

SPACE = Layout([TensorSpec("a", (6,))])


def test_round_trip(tmp_path: Path) -> None:
    store = ResidualStore(tmp_path / "deep" / "r.safetensors", SPACE)
    assert store.load() is None
    store.save(torch.arange(6.0))
    loaded = store.load()
    assert loaded is not None
    assert torch.equal(loaded, torch.arange(6.0))


@pytest.mark.parametrize("bad", [torch.arange(7.0), torch.tensor([float("nan")] * 6)])
def test_a_residual_that_does_not_fit_is_done_without(tmp_path: Path, bad: torch.Tensor) -> None:
    path = tmp_path / "r.safetensors"
    ResidualStore(path, SPACE).save(bad)
    assert ResidualStore(path, SPACE).load() is None


def test_a_damaged_file_is_done_without(tmp_path: Path) -> None:
    path = tmp_path / "r.safetensors"
    path.write_bytes(b"\x80pickle")
    assert ResidualStore(path, SPACE).load() is None
