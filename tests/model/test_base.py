from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from distro_fed.errors import ModelNotFound, SettingsError
from distro_fed.model import base
from distro_fed.model.base import base_digest, load_base_model
from tests.tiny import tiny_llama, tiny_model_folder


def test_a_folder_is_loaded_in_the_dtype_asked_for(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    full, half = load_base_model(str(folder)), load_base_model(str(folder), dtype="bfloat16")
    assert full.model.dtype == torch.float32
    assert half.model.dtype == torch.bfloat16
    assert full.digest != half.digest
    assert full.digest == base_digest(tiny_llama())
    assert full.tokenizer("ab").input_ids == [64, 65]
    assert not full.model.training


def test_digest_sees_every_bit_and_tied_weights_once() -> None:
    model = tiny_llama()
    before = base_digest(model)
    assert before == base_digest(tiny_llama())
    assert len(bytes.fromhex(before)) == 16
    assert base_digest(tiny_llama(tied=False)) != before
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3].add_(1e-6)
    assert base_digest(model) != before
    untied = tiny_llama(tied=False)
    with torch.no_grad():
        untied.lm_head.weight.copy_(untied.model.embed_tokens.weight)
    assert base_digest(untied) != before


def test_digest_of_a_folder_is_kept_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    folder = tiny_model_folder(tmp_path / "model")
    digest = load_base_model(str(folder)).digest
    hashed = []

    def counted(model: torch.nn.Module) -> str:
        hashed.append(model)
        return base_digest(model)

    monkeypatch.setattr(base, "base_digest", counted)
    assert load_base_model(str(folder)).digest == digest
    assert not hashed
    weights = folder / "model.safetensors"
    tiny_llama(seed=1).save_pretrained(folder)
    os.utime(weights, ns=(1, 1))
    assert load_base_model(str(folder)).digest != digest
    assert hashed
    for file in (own_cache / "digests").iterdir():
        file.write_text("damaged")
    assert load_base_model(str(folder)).digest == base_digest(tiny_llama(seed=1))


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
    assert load_base_model("nobody/tiny").digest == base_digest(tiny_llama())


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
