from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distro_fed.agreement import Agreement
from distro_fed.clients.residual_store import ResidualStore
from distro_fed.compression import make_compressor
from distro_fed.compression.round_code import integer_code
from distro_fed.layout import Layout, TensorSpec
from distro_fed.replica import Replica

LAYOUT = Layout([TensorSpec("a", (6,))])
AGREEMENT = Agreement(LAYOUT, make_compressor("dense"), make_compressor("dense"))
CODE = AGREEMENT.uplink
SENT = CODE.encode(torch.full((6,), 10.0), LAYOUT, 0)


def at(version: int) -> Replica:
    return Replica(AGREEMENT, torch.zeros(6), version, bytes(16))


def written(store: ResidualStore, *saves: tuple[int, int]) -> ResidualStore:
    """Residuals 100, 101, ... for (version, round) pairs."""
    for number, (version, round_) in enumerate(saves):
        store.save(torch.full((6,), 100.0 + number), version, round_, SENT)
    return store


def value(residual: torch.Tensor | None) -> float | None:
    return None if residual is None else float(residual.unique().item())


def test_round_trip(tmp_path: Path) -> None:
    store = ResidualStore(tmp_path / "deep" / "r")
    assert store.load(at(0), 1, CODE) is None
    store.save(torch.arange(6.0), 3, 4, SENT)
    loaded = store.load(at(4), 5, CODE)
    assert loaded is not None
    assert torch.equal(loaded, torch.arange(6.0))


def test_after_a_skipped_round_what_was_sent_is_back(tmp_path: Path) -> None:
    assert value(written(ResidualStore(tmp_path), (3, 4)).load(at(3), 5, CODE)) == 110


def test_what_was_sent_is_read_with_the_code_that_wrote_it(tmp_path: Path) -> None:
    """Under masks dense updates are sixteen bits."""
    store, code = ResidualStore(tmp_path), integer_code(AGREEMENT.uplink)
    store.save(torch.full((6,), 100.0), 3, 4, code.encode(torch.full((6,), 10.0), LAYOUT, 0))
    assert value(store.load(at(3), 5, code)) == pytest.approx(110.0, rel=1e-2)
    assert store.load(at(3), 5, CODE) is None


def test_a_round_that_is_done_again_starts_from_the_residual_before_it(tmp_path: Path) -> None:
    """A server that went down in round 5 asks for round 5 again, on top of the same version."""
    store = written(ResidualStore(tmp_path), (3, 4), (4, 5))
    assert value(store.load(at(4), 5, CODE)) == 100
    assert value(written(store, (4, 5)).load(at(5), 6, CODE)) == 100  # the first of the saves just made
    again = written(ResidualStore(tmp_path / "skipped"), (3, 4), (3, 5), (3, 6))
    assert value(again.load(at(3), 6, CODE)) == 111  # round 5 was skipped: what was sent in it is back


def test_without_the_residual_before_it_a_round_is_done_again_without(tmp_path: Path) -> None:
    store = written(ResidualStore(tmp_path), (0, 1), (1, 2), (2, 3))
    assert value(store.load(at(2), 3, CODE)) == 101
    assert value(store.load(at(0), 1, CODE)) is None
    assert value(store.load(at(0), 3, CODE)) is None  # the version that it belongs to is gone


def test_the_folder_holds_two_files(tmp_path: Path) -> None:
    store = written(ResidualStore(tmp_path), *((number, number + 1) for number in range(9)))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["00000008.safetensors", "00000009.safetensors"]
    written(store, (3, 4))  # the run has gone back: what is of later rounds is of no use
    assert [path.name for path in tmp_path.iterdir()] == ["00000004.safetensors"]


@pytest.mark.parametrize("bad", [torch.arange(7.0), torch.tensor([float("nan")] * 6)])
def test_a_residual_that_does_not_fit_is_done_without(tmp_path: Path, bad: torch.Tensor) -> None:
    ResidualStore(tmp_path).save(bad, 0, 1, SENT)
    assert ResidualStore(tmp_path).load(at(1), 2, CODE) is None


@pytest.mark.parametrize("content", [b"", b"\x80pickle", b"\x00" * 40])
def test_a_damaged_file_is_done_without(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "00000001.safetensors").write_bytes(content)
    assert ResidualStore(tmp_path).load(at(1), 2, CODE) is None


def test_what_went_into_no_sum_is_back_though_the_run_went_on(tmp_path: Path) -> None:
    """Whether it did is asked for the Flower run that it was sent in, which need not be that of now."""
    asked: list[tuple[int, int]] = []

    def was_summed(flower_run: int, round_: int) -> bool:
        asked.append((flower_run, round_))
        return round_ != 4

    store = written(ResidualStore(tmp_path, 2**64 - 1, was_summed), (3, 4))
    assert value(ResidualStore(tmp_path, 7, was_summed).load(at(4), 5, CODE)) == 110
    assert value(written(store, (4, 5)).load(at(5), 6, CODE)) == 100
    assert asked == [(2**64 - 1, 4), (2**64 - 1, 5)]
