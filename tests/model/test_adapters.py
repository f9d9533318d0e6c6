from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import get_peft_model_state_dict

from distro_fed.errors import SettingsError
from distro_fed.model.adapters import adapter_config, build_adapter
from tests.tiny import tiny_llama

METHODS: list[dict[str, object]] = [
    {},
    {"use_dora": True, "r": 2},
    {"type": "VERA", "r": 4},
    {"type": "IA3"},
    {"type": "LOHA", "r": 2},
    {"type": "PREFIX_TUNING", "num_virtual_tokens": 2},
    {"type": "LN_TUNING"},
    {"type": "FOURIERFT", "n_frequency": 50},
    {"type": "RANDLORA", "r": 4},
    {"type": "VBLORA", "r": 2, "num_vectors": 8, "vector_length": 16},
    {"type": "TINYLORA"},
    {"modules_to_save": "lm_head", "target_modules": "q_proj,v_proj"},
]


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_any_method_of_peft_starts_the_same_everywhere_and_is_all_that_trains(options: dict[str, object]) -> None:
    trainable = build_adapter(tiny_llama(tied=False), options, seed=3)
    torch.manual_seed(99)
    again = build_adapter(tiny_llama(tied=False), options, seed=3)
    assert trainable.layout == again.layout
    assert trainable.digest() == again.digest()
    frozen = {id(parameter) for parameter in trainable.parameters.values()}
    assert all(parameter.requires_grad == (id(parameter) in frozen) for parameter in trainable.model.parameters())
    assert len(frozen) == len(trainable.layout)
    assert not any("default" in spec.name for spec in trainable.layout)

    changed = torch.randn(trainable.layout.numel, generator=torch.Generator().manual_seed(0))
    trainable.write(changed)
    ids = torch.tensor([[5, 6, 7]])
    before = again.model(input_ids=ids, use_cache=False).logits
    again.write(trainable.read())
    after = again.model(input_ids=ids, use_cache=False).logits
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, trainable.model(input_ids=ids, use_cache=False).logits)


def test_lora_by_default_is_rank_8_on_all_linear_layers_and_changes_nothing_at_first() -> None:
    plain = tiny_llama()
    trainable = build_adapter(tiny_llama(), {}, seed=0)
    config = trainable.model.active_peft_config
    assert (config.r, config.lora_alpha, config.lora_dropout) == (8, 16, 0.0)
    assert len(trainable.layout) == 2 * 7 * 2
    assert {spec.kind for spec in trainable.layout} == {"matrix"}
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(plain(ids).logits, trainable.model(ids).logits)


def test_tensors_are_those_of_the_saved_adapter() -> None:
    trainable = build_adapter(
        tiny_llama(tied=False), {"modules_to_save": "lm_head", "target_modules": "q_proj"}, seed=0
    )
    saved = get_peft_model_state_dict(trainable.model, save_embedding_layers=False)
    assert [spec.name for spec in trainable.layout] == sorted(saved)
    assert "base_model.model.lm_head.weight" in saved


def test_another_seed_gives_another_start_and_no_generator_is_touched() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first, second = build_adapter(tiny_llama(), {}, seed=0), build_adapter(tiny_llama(), {}, seed=1)
    assert first.digest() != second.digest()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_an_adapter_on_a_16_bit_base_is_float32(dtype: str) -> None:
    trainable = build_adapter(tiny_llama(dtype=dtype), {"r": 2}, seed=0)
    assert {spec.dtype for spec in trainable.layout} == {"float32"}
    assert trainable.layout == build_adapter(tiny_llama(), {"r": 2}, seed=0).layout


def test_building_asks_no_hub(connections: list[object]) -> None:
    model = tiny_llama()
    model.config._name_or_path = model.name_or_path = "org/model"
    build_adapter(model, {}, seed=0)
    assert not connections


def test_flat_settings_become_lists_and_dicts() -> None:
    assert adapter_config({"target_modules": "q_proj, v_proj"}).target_modules == {"q_proj", "v_proj"}
    assert adapter_config({"target_modules": "q_proj"}).target_modules == {"q_proj"}
    assert adapter_config({"target_modules": r".*\.[qv]_proj"}).target_modules == r".*\.[qv]_proj"
    assert adapter_config({"target_modules": "all-linear"}).target_modules == "all-linear"
    layers = adapter_config({"target_modules": "q_proj", "layers_to_transform": "0,1"})
    assert layers.layers_to_transform == [0, 1]
    assert adapter_config({"rank_pattern": '{"q_proj": 2}'}).rank_pattern == {"q_proj": 2}
    assert adapter_config({"modules_to_save": ["lm_head"]}).modules_to_save == ["lm_head"]
    assert adapter_config({"lora_dropout": 0}).lora_dropout == 0
    assert adapter_config({"init_lora_weights": "gaussian"}).init_lora_weights == "gaussian"
    assert adapter_config({"type": "lora", "init_lora_weights": True}).init_lora_weights is True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "LORAA"}, "unknown adapter type 'LORAA'; did you mean 'LORA'"),
        ({"lora_alfa": 16}, "LoraConfig has no field 'lora_alfa'; did you mean 'lora_alpha'"),
        ({"type": "VERA", "lora_alpha": 16}, "VeraConfig has no field 'lora_alpha'; known: .*d_initial"),
        ({"task_type": "SEQ_CLS"}, "peft.task_type is set by the run"),
        ({"r": "eight"}, r"peft.r is 'eight' \(str\), expected int"),
        ({"use_dora": 1}, r"peft.use_dora is 1 \(int\), expected bool"),
        ({"lora_dropout": True}, r"lora_dropout is True \(bool\), expected float"),
        ({"rank_pattern": "{q_proj: 2}"}, "peft.rank_pattern looks like JSON but is not"),
        ({"r": 0}, "peft cannot put LORA on LlamaForCausalLM .*'r': 0"),
        ({"target_modules": "nowhere"}, "nowhere.* not found .*peft.target-modules"),
        ({"type": "ADALORA"}, "peft refuses ADALORA .*total_step"),
        ({"type": "poly"}, "peft.type = 'POLY' .*task of every example"),
        ({"type": "MULTITASK_PROMPT_TUNING"}, "task of every example"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build_adapter(tiny_llama(), options, seed=0)
