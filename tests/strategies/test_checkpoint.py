from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from distro_fed.errors import CheckpointError
from distro_fed.strategies.checkpoint import read_checkpoint, write_checkpoint

TENSORS = {"values": torch.arange(7.0), "log": torch.tensor([1, 2, 255], dtype=torch.uint8)}


def written(folder: Path, round_: int = 3, facts: dict[str, Any] | None = None) -> Path:
    return write_checkpoint(folder, round_, facts or {"näme": [1, None, 2**64 - 1, 0.1]}, TENSORS)


def test_round_trip(tmp_path: Path) -> None:
    traffic = written(tmp_path)
    saved = read_checkpoint(tmp_path)
    assert saved.facts == {"näme": [1, None, 2**64 - 1, 0.1]}
    assert saved.traffic == traffic
    assert all(torch.equal(saved.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_tensors_are_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    written(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    assert torch.equal(load_file(path)["values"], TENSORS["values"])


def test_the_folder_holds_one_checkpoint(tmp_path: Path) -> None:
    for round_ in range(5):
        written(tmp_path, round_).write_text("")
        (tmp_path / ".checkpoint.json.x.part").write_text("of a process that was killed")
    (tmp_path / "notes of the operator").mkdir()
    traffic = written(tmp_path, 5)
    assert len(list(tmp_path.iterdir())) == 3
    assert traffic.name.startswith("traffic-00000005-")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    written(tmp_path, 1, {"round": 1})

    def fails(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="no space left"):
        written(tmp_path, 2, {"round": 2})
    assert read_checkpoint(tmp_path).facts == {"round": 1}
    if call == "fsync":  # a part of a model must not take the room that the next attempt needs
        assert len(list(tmp_path.glob("*.safetensors"))) == 1


@pytest.mark.parametrize("damage", ["flip", "flip last", "cut", "gone", "empty"])
@pytest.mark.parametrize("pattern", ["checkpoint.json", "*.safetensors"])
def test_damage_is_named(tmp_path: Path, damage: str, pattern: str) -> None:
    written(tmp_path)
    (path,) = tmp_path.glob(pattern)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        # the last byte of the tensors is one of a value, which safetensors itself does not check
        last = data[:-1] + bytes([data[-1] ^ 1])
        path.write_bytes({"flip": flipped, "flip last": last, "cut": data[:-2], "empty": b""}[damage])
    with pytest.raises(CheckpointError, match=path.name.split("-")[0]):
        read_checkpoint(tmp_path)


def test_a_checkpoint_of_another_format_is_named(tmp_path: Path) -> None:
    from distro_fed.strategies.checkpoint import _digest

    written(tmp_path)
    content = json.loads((tmp_path / "checkpoint.json").read_text().splitlines()[1]) | {"format": 2}
    text = json.dumps(content)
    (tmp_path / "checkpoint.json").write_text(f"{_digest(text)}\n{text}\n")
    with pytest.raises(CheckpointError, match="has format 2, this release reads 1"):
        read_checkpoint(tmp_path)
