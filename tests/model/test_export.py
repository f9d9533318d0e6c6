from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from distro_fed.errors import ModelError, ModelNotFound
from distro_fed.model.adapters import build_adapter
from distro_fed.model.base import load_base_model
from distro_fed.model.export import adapter_base_name, merge_adapter, save_adapter, save_full_model
from distro_fed.model.trainable import Trainable, trainable_full
from tests.tiny import tiny_llama, tiny_model_folder

IDS = torch.tensor([[72, 101, 108, 108, 111]])

# What a stranger does who has never heard of this package.
PLAIN_LIBRARY = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
ids = torch.tensor([[72, 101, 108, 108, 111]])
out = {}
for name, folder, adapter, dtype in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    AutoTokenizer.from_pretrained(folder)
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        out[name] = model.eval()(ids).logits.float().tolist()
    assert not [module for module in sys.modules if module.startswith("distro_fed")]
print(json.dumps(out))
"""


def _trained(folder: Path, dtype: str = "float32", **options: object) -> Trainable:
    """An adapter with values as after training, on the model of a folder."""
    trainable = build_adapter(load_base_model(str(folder), dtype=dtype).model, options, seed=0)
    generator = torch.Generator().manual_seed(0)
    trainable.write(trainable.read() + 0.2 * torch.randn(trainable.layout.numel, generator=generator))
    return trainable


@torch.no_grad()
def _logits(model: torch.nn.Module) -> torch.Tensor:
    return model.eval()(IDS).logits.float()


def test_a_new_process_with_the_plain_libraries_gets_the_same_logits(tmp_path: Path) -> None:
    base = tiny_model_folder(tmp_path / "base")
    expected, jobs = {}, []

    for name, options in {
        "lora": {},
        "vera": {"type": "VERA", "r": 4},
        "head": {"modules_to_save": "lm_head", "target_modules": "q_proj"},
    }.items():
        trainable = _trained(base, **options)
        save_adapter(tmp_path / name, trainable.model, base_name=str(base))
        expected[name] = _logits(trainable.model)
        jobs.append((name, str(base), str(tmp_path / name), "float32"))

    for dtype in ("float32", "bfloat16"):
        loaded = load_base_model(str(base), dtype=dtype)
        full = trainable_full(loaded.model)
        full.write(full.read() * 1.1)
        save_full_model(tmp_path / dtype, loaded.model, loaded.tokenizer)
        expected[dtype] = _logits(loaded.model)
        jobs.append((dtype, str(tmp_path / dtype), "", dtype))

    merge_adapter(tmp_path / "lora", tmp_path / "merged")
    expected["merged"] = expected["lora"]
    jobs.append(("merged", str(tmp_path / "merged"), "", "bfloat16"))

    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLAIN_LIBRARY, json.dumps(jobs)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    logits = json.loads(answer.stdout.splitlines()[-1])
    assert set(logits) == set(expected)
    for name in expected:
        loose = 0.1 if name == "merged" else 1e-5
        torch.testing.assert_close(torch.tensor(logits[name]), expected[name], atol=loose, rtol=loose, msg=name)
    assert not torch.allclose(expected["lora"], _logits(tiny_llama()), atol=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"type": "FOURIERFT", "n_frequency": 50},
        {"type": "RANDLORA", "r": 4},
        {"type": "VBLORA", "r": 2, "num_vectors": 8, "vector_length": 16},
        {"type": "TINYLORA"},
        {"type": "UNILORA"},
    ],
    ids=lambda options: options["type"],
)
def test_small_adapters_load_as_they_were(options: dict[str, object], tmp_path: Path) -> None:
    """They are saved without what is random in them, or with it; either way peft makes the same of it."""
    base = tiny_model_folder(tmp_path / "base")
    trainable = _trained(base, **options)
    save_adapter(tmp_path / "adapter", trainable.model, base_name=str(base))
    loaded = PeftModel.from_pretrained(load_base_model(str(base)).model, str(tmp_path / "adapter"))
    torch.testing.assert_close(_logits(loaded), _logits(trainable.model), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(_logits(loaded), _logits(load_base_model(str(base)).model), atol=1e-2)


def test_a_tied_full_model_is_saved_with_its_weight_once(tmp_path: Path) -> None:
    base = load_base_model(str(tiny_model_folder(tmp_path / "base")), dtype="bfloat16")
    save_full_model(tmp_path / "full", base.model, base.tokenizer)
    tensors = load_file(tmp_path / "full" / "model.safetensors")
    assert "lm_head.weight" not in tensors
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float32"))
def test_merging_gives_an_ordinary_model_in_the_dtype_asked_for(tmp_path: Path, dtype: str) -> None:
    base = tiny_model_folder(tmp_path / "base")
    trainable = _trained(base)
    save_adapter(tmp_path / "adapter", trainable.model, base_name="some/name")
    merge_adapter(tmp_path / "adapter", tmp_path / "merged", dtype=dtype, base=str(base))
    merged = load_base_model(str(tmp_path / "merged"), dtype=dtype)
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {f"torch.{dtype}"}
    loose = 1e-5 if dtype == "float32" else 0.1
    torch.testing.assert_close(_logits(merged.model), _logits(trainable.model), atol=loose, rtol=loose)


def test_nothing_is_merged_into_a_quantised_base(tmp_path: Path) -> None:
    base = tiny_model_folder(tmp_path / "base")
    save_adapter(tmp_path / "adapter", _trained(base).model, base_name=str(base))
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"quantised \(bitsandbytes\).*16-bit original"):
        merge_adapter(tmp_path / "adapter", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_what_cannot_be_merged_is_named(tmp_path: Path) -> None:
    base = tiny_model_folder(tmp_path / "base")
    with pytest.raises(ModelNotFound, match=r"no adapter_config\.json"):
        merge_adapter(base, tmp_path / "merged")
    prompts = _trained(base, type="PROMPT_TUNING", num_virtual_tokens=2)
    save_adapter(tmp_path / "prompts", prompts.model, base_name=str(base))
    with pytest.raises(ModelError, match="cannot be merged"):
        merge_adapter(tmp_path / "prompts", tmp_path / "merged")
    save_adapter(tmp_path / "adapter", _trained(base).model, base_name="nobody/nothing")
    with pytest.raises(ModelNotFound, match="nobody/nothing"):
        merge_adapter(tmp_path / "adapter", tmp_path / "merged")
    tiny_llama(hidden=64).save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError, match="cannot be merged"):
        merge_adapter(tmp_path / "adapter", tmp_path / "merged", base=str(base))
    assert not (tmp_path / "merged").exists()


def test_saving_asks_no_hub_and_names_the_base(tmp_path: Path, connections: list[object]) -> None:
    trainable = _trained(tiny_model_folder(tmp_path / "base"))
    save_adapter(tmp_path / "adapter", trainable.model, base_name="org/model")
    assert adapter_base_name(tmp_path / "adapter") == "org/model"
    assert not connections


def test_an_old_result_is_replaced_only_if_asked(tmp_path: Path) -> None:
    trainable = _trained(tiny_model_folder(tmp_path / "base"))
    save_adapter(tmp_path / "adapter", trainable.model, base_name="org/model")
    with pytest.raises(FileExistsError):
        save_adapter(tmp_path / "adapter", trainable.model, base_name="org/other")
    save_adapter(tmp_path / "adapter", trainable.model, base_name="org/other", replace=True)
    assert adapter_base_name(tmp_path / "adapter") == "org/other"
