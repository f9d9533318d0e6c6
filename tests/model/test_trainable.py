from __future__ import annotations

import pytest
import torch
from torch import nn

from distro_fed.errors import LayoutMismatch, SettingsError
from distro_fed.model.trainable import Trainable, trainable_full
from tests.tiny import tiny_llama

DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_read_can_be_written_back_bit_by_bit(dtype: str) -> None:
    source, target = trainable_full(tiny_llama(dtype=dtype)), trainable_full(tiny_llama(dtype=dtype, seed=1))
    assert source.layout == target.layout
    assert source.digest() != target.digest()
    flat = source.read()
    assert flat.dtype == torch.float32
    target.write(flat)
    assert source.digest() == target.digest()
    for mine, theirs in zip(source.parameters.values(), target.parameters.values(), strict=True):
        assert torch.equal(mine, theirs)


def test_tied_weights_are_there_once_and_untied_ones_twice() -> None:
    tied, untied = trainable_full(tiny_llama(tied=True)), trainable_full(tiny_llama(tied=False))
    assert "lm_head.weight" not in tied.parameters
    assert "lm_head.weight" in untied.parameters
    assert untied.layout.numel - tied.layout.numel == 272 * 32
    assert tied.layout.numel == sum(parameter.numel() for parameter in tiny_llama().parameters())


def test_writing_reaches_a_tied_head() -> None:
    model = tiny_llama(tied=True)
    trainable = trainable_full(model)
    trainable.write(torch.ones(trainable.layout.numel))
    assert torch.equal(model.get_output_embeddings().weight, torch.ones(272, 32))


def test_kinds_follow_the_modules() -> None:
    kinds = {spec.name: spec.kind for spec in trainable_full(tiny_llama(tied=True)).layout}
    assert kinds["model.embed_tokens.weight"] == "embedding"
    assert kinds["model.layers.0.self_attn.q_proj.weight"] == "matrix"
    assert kinds["model.norm.weight"] == "vector"

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))
            self.filter = nn.Conv2d(2, 2, 3, bias=False)
            self.empty = nn.Parameter(torch.empty(0, 4))
            self.register_buffer("counter", torch.zeros(3))

    trainable = trainable_full(Odd())
    assert {spec.name: (spec.kind, spec.shape) for spec in trainable.layout} == {
        "empty": ("other", (0, 4)),
        "filter.weight": ("other", (2, 2, 3, 3)),
        "scale": ("vector", ()),
    }
    flat = trainable.read()
    trainable.write(flat + 1)
    torch.testing.assert_close(trainable.delta(flat), torch.ones(37))


def test_full_training_unfreezes_every_parameter() -> None:
    model = tiny_llama()
    model.requires_grad_(False)
    trainable_full(model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_delta_is_the_change_of_the_parameters() -> None:
    trainable = trainable_full(tiny_llama())
    start = trainable.read()
    changed = start + torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    trainable.write(changed)
    torch.testing.assert_close(trainable.delta(start), changed - start, rtol=0, atol=0)
    out = torch.empty_like(start)
    assert trainable.delta(start, out) is out
    kept = start.clone()
    trainable.delta(start, out=start)
    assert torch.equal(start, changed - kept)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_delta_of_an_untrained_model_is_zero_although_the_start_was_rounded(dtype: str) -> None:
    trainable = trainable_full(tiny_llama(dtype=dtype))
    start = torch.randn(trainable.layout.numel, generator=torch.Generator().manual_seed(0))
    trainable.write(start)
    assert not torch.equal(trainable.read(), start)
    assert not trainable.delta(start).any()


def test_a_vector_of_another_run_is_refused() -> None:
    trainable = trainable_full(tiny_llama())
    size = trainable.layout.numel
    with pytest.raises(LayoutMismatch, match=rf"{size} float32 values .* shape \({size - 1},\)"):
        trainable.write(torch.zeros(size - 1))
    with pytest.raises(LayoutMismatch, match="float16"):
        trainable.read(torch.zeros(size, dtype=torch.float16))
    with pytest.raises(LayoutMismatch):
        trainable.delta(torch.zeros(1, size))


def test_nothing_to_train_and_integer_weights_are_refused() -> None:
    with pytest.raises(LayoutMismatch, match="no trainable tensor"):
        Trainable(nn.Identity(), {})
    with pytest.raises(LayoutMismatch, match="int8"):
        Trainable(nn.Identity(), {"w": nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)})


def test_order_does_not_depend_on_the_order_of_the_module() -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(3))
    first, second = Trainable(nn.Identity(), {"a": a, "b": b}), Trainable(nn.Identity(), {"b": b, "a": a})
    assert first.layout == second.layout
    assert first.digest() == second.digest()
    assert first.read().tolist() == [0, 0, 1, 1, 1]


def test_full_fine_tuning_of_some_modules_trains_and_lists_those_alone() -> None:
    model = tiny_llama()
    trainable = trainable_full(model, "up_proj, down_proj")
    assert {name.split(".")[-2] for name in trainable.parameters} == {"up_proj", "down_proj"}
    assert {name for name, one in model.named_parameters() if one.requires_grad} == set(trainable.parameters)


def test_a_tied_weight_belongs_to_the_embedding() -> None:
    assert list(trainable_full(tiny_llama(tied=True), "embed_tokens").parameters) == ["model.embed_tokens.weight"]
    with pytest.raises(SettingsError, match="no module 'lm_head' has weights"):
        trainable_full(tiny_llama(tied=True), "lm_head")


@pytest.mark.parametrize("modules", ["up_proj,gate", "layers", "self_attn"])
def test_modules_without_weights_of_their_own_are_named(modules: str) -> None:
    with pytest.raises(SettingsError, match=r"no module '(gate|layers|self_attn)' has weights .* down_proj, embed_"):
        trainable_full(tiny_llama(), modules)
