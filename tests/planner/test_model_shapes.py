from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import ModelNotFound, SettingsError
from distro_fed.layout import Layout
from distro_fed.model.adapters import build_adapter
from distro_fed.model.trainable import trainable_full
from distro_fed.planner.codec import Codec
from distro_fed.planner.model_shapes import (
    SMOLLM2_CONFIG,
    decoder_layout,
    lora_layout,
    model_shape,
    trained_layout,
    typical_layout,
)
from distro_fed.planner.update_sizes import body_bytes
from tests.tiny import tiny_llama

SMALL = {
    "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip


def by_transformers(config: Mapping[str, Any]) -> Layout:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    build: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        return trainable_full(build(AutoConfig.for_model(**config), dtype=torch.float32)).layout


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "llama"},
        {"model_type": "llama", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"model_type": "mistral", "head_dim": 12},
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"model_type": "qwen3", "head_dim": 16},
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_the_shapes_are_those_of_transformers(change: dict[str, Any]) -> None:
    config = {**SMALL, **change}
    assert decoder_layout(config).explain_difference(by_transformers(config)) == ""


def test_the_packaged_model_needs_no_files() -> None:
    shape = model_shape("packaged:smollm2-135m")
    assert shape.exact and shape.parameters == 134_515_008 and len(shape.layout) == 272
    assert shape.layout == decoder_layout(SMOLLM2_CONFIG)


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama"}))
    shape = model_shape(str(tmp_path))
    assert shape.exact and shape.layout == decoder_layout(SMALL)


def test_a_folder_of_another_architecture(tmp_path: Path) -> None:
    config = {"model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_shape(str(tmp_path)).layout == by_transformers(config)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [("1.2e9", 1_200_000_000), ("135M", 135_000_000), ("1.2B", 1_200_000_000), ("7b", 7 * 10**9), ("250k", 250_000),
     ("1_204_813_824", 1_204_813_824), ("134,515,008", 134_515_008)],
)  # fmt: skip
def test_a_number(text: str, parameters: int) -> None:
    shape = model_shape(text)
    assert shape.parameters == parameters and not shape.exact


@given(st.integers(10**5, 10**12))
@settings(deadline=None, max_examples=50)
def test_a_typical_decoder_has_exactly_so_many_parameters(parameters: int) -> None:
    layout = typical_layout(parameters)
    assert layout.numel == parameters
    assert max(len(spec.shape) for spec in layout) == 2
    widest = max(layout, key=lambda spec: spec.numel)
    assert widest.name == "model.embed_tokens.weight" or widest.numel < parameters / 4


@pytest.mark.parametrize("name", ["subspace", "lowrank", "tracking", "tracking-topk"])
def test_a_typical_decoder_is_near_a_real_one(name: str) -> None:
    exact, codec = model_shape("packaged:smollm2-135m").layout, Codec(name, rank=4)
    assert body_bytes(codec, typical_layout(exact.numel)) == pytest.approx(body_bytes(codec, exact), rel=1 / 3)


@pytest.mark.parametrize(
    ("modules", "options"),
    [("all-linear", {"r": 4}), ("q_proj,down_proj", {"r": 4, "target_modules": "q_proj,down_proj"})],
)
def test_the_adapter_is_that_of_peft(modules: str, options: dict[str, object]) -> None:
    model = tiny_llama(tied=False)
    base = trainable_full(model).layout
    planned, real = lora_layout(base, 4, modules), build_adapter(model, options, seed=0).layout
    assert planned.explain_difference(real) == ""


@pytest.mark.parametrize("modules", ["", "up_proj, down_proj", "lm_head,norm"])
def test_what_full_fine_tuning_trains_is_that_of_the_model(modules: str) -> None:
    model = tiny_llama(tied=False)
    base = trainable_full(model).layout
    assert trained_layout(base, modules).explain_difference(trainable_full(model, modules).layout) == ""


def test_a_module_that_the_model_does_not_have_is_named() -> None:
    with pytest.raises(SettingsError, match=r"no module 'gate' has weights of its own; there are: down_proj, embed"):
        trained_layout(trainable_full(tiny_llama()).layout, "up_proj,gate")
    with pytest.raises(SettingsError, match="no module '' has weights"):
        trained_layout(trainable_full(tiny_llama()).layout, ",")


@pytest.mark.parametrize("text", ["10", "1e14", "0M", "1e999"])
def test_a_number_out_of_range(text: str) -> None:
    with pytest.raises(SettingsError, match="a plan needs 100,000 to"):
        model_shape(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds a list"),
        (json.dumps({"model_type": "llama", "hidden_size": 8}), "intermediate_size = None"),
        (json.dumps({**SMALL, "model_type": "llama", "vocab_size": "many"}), "vocab_size = 'many'"),
        (json.dumps({**SMALL, "model_type": "llama", "num_hidden_layers": 0}), "num_hidden_layers = 0"),
        (json.dumps({**SMALL, "model_type": "llama", "num_hidden_layers": 10**9}), "from 1 to 10000"),
        (json.dumps({"model_type": "no-such-architecture"}), "give the number of parameters instead"),
    ],
)
def test_a_config_that_cannot_be_used(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SettingsError, match=message):
        model_shape(str(tmp_path))


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="not in the hub cache"):
        model_shape("nobody/no-model")
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        model_shape(str(tmp_path))


def test_an_adapter_that_cannot_be() -> None:
    base = decoder_layout(SMALL)
    with pytest.raises(
        SettingsError, match="'q_prj' is no linear layer of this model; there are: down_proj, gate_proj"
    ):
        lora_layout(base, 4, "q_prj")
    with pytest.raises(SettingsError, match="LoRA rank is 0"):
        lora_layout(base, 0)
