from __future__ import annotations

import pytest
import torch

from distro_fed.data.tokenize import Example
from distro_fed.errors import TrainingError, UnusableData
from distro_fed.evaluation.held_out import held_out_loss
from tests.tiny import tiny_llama

EXAMPLES = [
    Example([5, 6, 7, 8, 9, 1, 2], [-100, -100, -100, 8, 9, 1, 2]),
    Example([1, 2], [-100, 2]),
    Example([4, 4, 4, 4], [-100, -100, 4, 4]),
]


def test_loss_is_weighted_by_tokens_not_by_examples_or_batches() -> None:
    model = tiny_llama()
    by_hand = 0.0
    for example in EXAMPLES:
        ids = torch.tensor([example.input_ids])
        with torch.no_grad():
            logs = model(ids).logits.log_softmax(-1)[0]
        by_hand -= sum(float(logs[place - 1, label]) for place, label in enumerate(example.labels) if label != -100)
    for batch_size in (1, 2, 8):
        result = held_out_loss(model, EXAMPLES, batch_size=batch_size)
        assert (result.tokens, result.examples) == (7, 3)
        assert result.loss_sum == pytest.approx(by_hand, rel=1e-5)
        assert result.loss == pytest.approx(by_hand / 7, rel=1e-5)


@pytest.mark.parametrize("training", (True, False))
def test_the_model_goes_back_to_the_mode_it_was_in(training: bool) -> None:
    model = tiny_llama()
    model.train(training)
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(module.training))
    held_out_loss(model, EXAMPLES)
    assert seen == [False]
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_examples_of_like_length_share_a_batch() -> None:
    model = tiny_llama()
    shapes = []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(inputs[0].shape)))
    held_out_loss(model, EXAMPLES, batch_size=2)
    assert shapes == [(2, 4), (1, 7)]


def test_a_broken_model_and_no_examples_are_errors() -> None:
    model = tiny_llama()
    with pytest.raises(UnusableData, match="no held-out examples"):
        held_out_loss(model, [])
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    model.train()
    with pytest.raises(TrainingError, match="loss is nan"):
        held_out_loss(model, EXAMPLES)
    assert model.training
