from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from distro_fed.errors import ModelNotFound
from distro_fed.model import published_weights
from distro_fed.model.published_weights import published_digest, weight_files
from tests.tiny import tiny_llama, tiny_model_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path / "model")


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return published_digest(folder)


def test_it_sees_every_bit_name_shape_and_dtype(folder: Path, tmp_path: Path) -> None:
    digest, tensors = published_digest(folder), load_file(folder / "model.safetensors")
    assert len(bytes.fromhex(digest)) == 16
    assert save(tmp_path / "same", tensors) == digest
    name = "model.layers.1.mlp.up_proj.weight"
    changed = tensors[name].clone()
    changed[3, 3] += 1e-6
    others = [
        {**tensors, name: changed},
        {**tensors, name: tensors[name].T.contiguous()},
        {**tensors, name: tensors[name].to(torch.bfloat16)},
        {key: value for key, value in tensors.items() if key != name},
        {key.replace(name, "other"): value for key, value in tensors.items()},
    ]
    digests = {save(tmp_path / str(number), other) for number, other in enumerate(others)}
    assert len(digests | {digest}) == 6


def test_it_does_not_depend_on_how_tensors_are_cut_into_files(folder: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    tiny_llama().save_pretrained(sharded, max_shard_size="50KB")
    assert len(weight_files(sharded)) > 1
    assert published_digest(sharded) == published_digest(folder)


def test_other_files_do_not_matter(folder: Path) -> None:
    digest = published_digest(folder)
    save_file({"x": torch.zeros(3)}, folder / "adapter_model.safetensors")
    (folder / "tokenizer_config.json").write_text("{}")
    assert published_digest(folder) == digest


def test_it_is_kept_until_a_file_changes(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, hashed, original = published_digest(folder), list[int](), published_weights._digest
    monkeypatch.setattr(published_weights, "_digest", lambda files: (hashed.append(1), original(files))[1])
    assert published_digest(folder) == digest
    assert not hashed
    tiny_llama(seed=1).save_pretrained(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    other = published_digest(folder)
    assert hashed and other != digest
    for file in (own_cache / "digests").iterdir():
        file.write_text("damaged")
    assert published_digest(folder) == other


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:4],
        lambda data: data[:200],
        lambda data: data[:-1],
        lambda data: (2**40).to_bytes(8, "little") + data[8:],
        lambda data: data[:8] + b"[" + data[9:],
        lambda data: data.replace(b'"data_offsets":[0,', b'"data_offsets":[-9,'),
    ],
)
def test_damaged_weights_are_named(damage: object, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ModelNotFound, match="damaged"):
        published_digest(folder)


def test_missing_weights_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="no safetensors weights"):
        published_digest(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text("[]")
    with pytest.raises(ModelNotFound, match="is damaged"):
        published_digest(folder)
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(ModelNotFound, match=r"model-1\.safetensors is missing"):
        published_digest(folder)
    shutil.rmtree(folder)
