from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distro_fed.agreement import Agreement
from distro_fed.clients.residual_store import ResidualStore
from distro_fed.compression import make_compressor
from distro_fed.layout import Layout, TensorSpec
from distro_fed.replica import Replica

LAYOUT = Layout([TensorSpec("a", (6,))])
AGREEMENT = Agreement(LAYOUT, make_compressor("dense"), make_compressor("dense"))
SENT = AGREEMENT.uplink.encode(torch.full((6,), 10.0), LAYOUT, 0)


def at(version: int) -> Replica:
    return Replica(AGREEMENT, torch.zeros(6), version, bytes(16))


def test_round_trip(tmp_path: Path) -> None:
    store = ResidualStore(tmp_path / "deep" / "r.safetensors")
    assert store.load(at(0)) is None
    store.save(torch.arange(6.0), 3, 4, SENT)
    loaded = store.load(at(4))
    assert loaded is not None
    assert torch.equal(loaded, torch.arange(6.0))


def test_after_a_skipped_round_what_was_sent_is_back(tmp_path: Path) -> None:
    store = ResidualStore(tmp_path / "r.safetensors")
    store.save(torch.arange(6.0), 3, 4, SENT)
    loaded = store.load(at(3))
    assert loaded is not None
    assert torch.equal(loaded, torch.arange(6.0) + 10)


@pytest.mark.parametrize("bad", [torch.arange(7.0), torch.tensor([float("nan")] * 6)])
def test_a_residual_that_does_not_fit_is_done_without(tmp_path: Path, bad: torch.Tensor) -> None:
    path = tmp_path / "r.safetensors"
    ResidualStore(path).save(bad, 0, 1, SENT)
    assert ResidualStore(path).load(at(1)) is None


@pytest.mark.parametrize("content", [b"", b"\x80pickle", b"\x00" * 40])
def test_a_damaged_file_is_done_without(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.safetensors"
    path.write_bytes(content)
    assert ResidualStore(path).load(at(1)) is None


def test_what_went_into_no_sum_is_back_though_the_run_went_on(tmp_path: Path) -> None:
    store = ResidualStore(tmp_path / "r.safetensors", was_summed=lambda round_: round_ != 4)
    store.save(torch.arange(6.0), 3, 4, SENT)
    loaded = store.load(at(4))
    assert loaded is not None
    assert torch.equal(loaded, torch.arange(6.0) + 10)
    store.save(torch.arange(6.0), 4, 5, SENT)
    loaded = store.load(at(5))
    assert loaded is not None
    assert torch.equal(loaded, torch.arange(6.0))
