from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel

from distro_fed.errors import SettingsError
from distro_fed.model.adapters import build_adapter
from distro_fed.model.base import load_base_model
from distro_fed.model.export import merge_adapter, save_adapter
from distro_fed.model.lora_factors import leading_vectors
from distro_fed.model.trainable import Trainable
from tests.tiny import tiny_llama, tiny_model_folder

IDS = torch.tensor([[5, 6, 7, 8]])


def build(factors: str, seed: int = 3, **options: object) -> Trainable:
    return build_adapter(tiny_llama(tied=False), {"r": 2, **options}, seed, factors)


def moved(trainable: Trainable) -> Trainable:
    generator = torch.Generator().manual_seed(0)
    trainable.write(trainable.read() + 0.3 * torch.randn(trainable.layout.numel, generator=generator))
    return trainable


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model.eval()(IDS).logits


@pytest.mark.parametrize(("factors", "values"), [("b", (32 + 16 + 16 + 32 + 64 + 64 + 32) * 2), ("core", 7 * 4)])
def test_less_is_trained_and_the_rest_is_the_same_at_all_members(factors: str, values: int) -> None:
    trainable = build(factors)
    torch.manual_seed(99)
    again = build(factors)
    assert trainable.layout.numel == 2 * values
    assert trainable.layout == again.layout
    assert trainable.frozen_digest == again.frozen_digest != ""
    assert trainable.frozen_digest != build(factors, seed=4).frozen_digest
    assert build("both").frozen_digest == ""
    assert torch.equal(logits(trainable.model), logits(tiny_llama(tied=False)))
    changed = moved(trainable)
    assert not torch.allclose(logits(changed.model), logits(again.model), atol=1e-3)
    again.write(changed.read())
    assert torch.equal(logits(changed.model), logits(again.model))
    loss = trainable.model(IDS, labels=IDS).loss
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trainable.parameters.values())
    trained = {id(parameter) for parameter in trainable.parameters.values()}
    assert all(parameter.requires_grad == (id(parameter) in trained) for parameter in trainable.model.parameters())


@pytest.mark.parametrize("factors", ["b", "core"])
def test_the_mean_of_what_members_send_is_the_mean_of_their_products(factors: str) -> None:
    """Which it is not for A and B: the product of two means is not the mean of two products."""

    def products(kind: str) -> list[torch.Tensor]:
        trainable = build(kind)
        generator = torch.Generator().manual_seed(0)
        sent = [torch.randn(trainable.layout.numel, generator=generator) for _ in range(3)]
        members = []
        for values in sent:
            trainable.write(values)
            members.append(product(trainable))
        trainable.write(torch.stack(sent).mean(0))
        return [torch.stack(members).mean(0), product(trainable)]

    def product(trainable: Trainable) -> torch.Tensor:
        layer = trainable.model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        return layer.get_delta_weight("default").detach()

    torch.testing.assert_close(*products(factors), atol=1e-5, rtol=1e-5)
    inexact = products("both")
    assert not torch.allclose(*inexact, atol=1e-2)


def test_rows_of_a_are_orthogonal_and_as_long_as_those_of_peft() -> None:
    rows = build("b").model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default").weight
    torch.testing.assert_close(rows @ rows.T, torch.eye(2) / 3, atol=2e-4, rtol=0)
    usual = build("both", r=32).model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default")
    assert float(usual.weight.detach().square().sum(1).mean()) == pytest.approx(1 / 3, rel=0.1)


def test_sides_alternate_and_b_comes_first() -> None:
    trainable = build("alternating")
    assert trainable.frozen_digest == ""
    assert len(trainable.turns) == 2
    assert all(name.endswith("lora_B.weight") for name in trainable.turns[0])
    assert all(name.endswith("lora_A.weight") for name in trainable.turns[1])
    assert sorted([*trainable.turns[0], *trainable.turns[1]]) == list(trainable.parameters)


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (5, 5)])
def test_leading_vectors_hold_nearly_what_a_singular_value_decomposition_holds(size: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    weight = generator.standard_normal(size) * 0.8 ** np.arange(size[1])
    left, right = leading_vectors(weight, 4, "seed")
    for rows in (left, right):
        np.testing.assert_allclose(rows @ rows.T, np.eye(4), atol=5e-4)
    held = np.square(left @ weight @ right.T).sum()
    best = np.square(np.linalg.svd(weight, compute_uv=False)[:4]).sum()
    assert 0.9 * best < held <= best * 1.001


def test_leading_vectors_do_not_depend_on_the_last_bits_of_a_product() -> None:
    """Libraries of linear algebra differ there by machine."""
    weight = np.random.default_rng(0).standard_normal((96, 64))
    noise = 1 + 2.0**-52 * np.random.default_rng(1).integers(-4, 5, weight.shape)
    for given, other in zip(leading_vectors(weight, 8, ""), leading_vectors(weight * noise, 8, ""), strict=True):
        assert np.array_equal(given, other)


@pytest.mark.parametrize("factors", ["b", "alternating", "core"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_peft_loads_what_is_saved(factors: str, dtype: str, tmp_path: Path) -> None:
    base = tiny_model_folder(tmp_path / "base")
    trainable = moved(build_adapter(load_base_model(str(base), dtype=dtype).model, {"r": 2}, 3, factors))
    expected, before = logits(trainable.model), trainable.read()
    save_adapter(tmp_path / "adapter", trainable.model, base_name=str(base))
    assert torch.equal(trainable.read(), before), "saving leaves the adapter as it was"
    torch.testing.assert_close(logits(trainable.model), expected)
    loaded = PeftModel.from_pretrained(load_base_model(str(base), dtype=dtype).model, str(tmp_path / "adapter"))
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == "float32" else {"atol": 3e-2, "rtol": 3e-2}
    torch.testing.assert_close(logits(loaded), expected, **close)
    assert not torch.allclose(logits(load_base_model(str(base), dtype=dtype).model), expected, atol=0.1)
    if dtype == "float32":
        merge_adapter(tmp_path / "adapter", tmp_path / "merged", dtype=dtype)
        merged = load_base_model(str(tmp_path / "merged"), dtype=dtype)
        torch.testing.assert_close(logits(merged.model), expected, **close)


@pytest.mark.parametrize(
    ("factors", "options", "message"),
    [
        ("b", {"use_dora": True}, "lora_magnitude_vector.* would be too"),
        ("core", {"modules_to_save": "lm_head"}, "modules_to_save.* would be too"),
        ("core", {"target_modules": "q_proj,embed_tokens"}, "lora_embedding_A.* would be too"),
        ("alternating", {"init_lora_weights": "gaussian"}, "leave out peft.init-lora-weights"),
        ("b", {"r": 17}, r"peft.r = 17 is more than the smaller side of .*k_proj' \(16\)"),
        ("b", {"type": "VERA", "r": 4}, "lora-factors = 'b' with peft.type = 'VERA': take LORA"),
    ],
)
def test_what_has_no_pairs_is_refused(factors: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build(factors, **options)
