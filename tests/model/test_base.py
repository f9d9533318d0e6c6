from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distro_fed.errors import ModelNotFound, SettingsError
from distro_fed.model.base import load_base_model
from distro_fed.model.published_weights import published_digest
from tests.tiny import tiny_llama, tiny_model_folder


def test_a_folder_is_loaded_in_the_dtype_asked_for(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    full, half = load_base_model(str(folder)), load_base_model(str(folder), dtype="bfloat16")
    assert full.model.dtype == torch.float32
    assert half.model.dtype == torch.bfloat16
    assert full.digest == half.digest == published_digest(folder)  # what is published, however it is held
    assert full.tokenizer("ab").input_ids == [64, 65]
    assert not full.model.training


def test_an_unknown_model_says_what_to_run_and_asks_nobody(connections: list[object]) -> None:
    with pytest.raises(ModelNotFound, match=r"'nobody/nothing' .* `hf download nobody/nothing`, set allow-download"):
        load_base_model("nobody/nothing")
    with pytest.raises(ModelNotFound, match="not a folder"):
        load_base_model("/no/such/folder")
    with pytest.raises(ModelNotFound, match="packaged:smollm2-135m"):
        load_base_model("packaged:gpt-5")
    assert not connections


def test_a_download_that_is_allowed_and_fails_says_why(connections: list[object]) -> None:
    with pytest.raises(ModelNotFound, match="the hub did not give it"):
        load_base_model("nobody/nothing", allow_download=True)
    assert connections


def test_a_model_in_the_hub_cache_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "hub" / "models--nobody--tiny"
    tiny_model_folder(repo / "snapshots" / "c0ffee")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_base_model("nobody/tiny").digest == published_digest(tiny_model_folder(tmp_path / "copy"))


def test_incomplete_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        load_base_model(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="is an adapter"):
        load_base_model(str(tmp_path))
    folder = tiny_model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="safetensors weights"):
        load_base_model(str(folder))


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save(tiny_llama().state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match="safetensors"):
        load_base_model(str(folder))


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'int8'.*float32, bfloat16, float16"):
        load_base_model(str(tmp_path), dtype="int8")
