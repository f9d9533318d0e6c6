from __future__ import annotations

import pytest
import torch

from distro_fed.data.batches import collate
from distro_fed.data.tokenize import Example
from distro_fed.model.adapters import build_adapter
from distro_fed.model.loss import summed_loss
from tests.tiny import tiny_llama

EXAMPLES = [
    Example([5, 6, 7, 8, 9], [-100, -100, -100, 8, 9]),
    Example([1, 2, 3], [-100, 2, 3]),
    Example([4, 4, 4, 4, 4, 4, 257], [-100] * 6 + [257]),
]


@pytest.mark.parametrize("options", (None, {}, {"type": "PROMPT_TUNING", "num_virtual_tokens": 3}))
def test_loss_and_gradient_are_those_of_transformers(options: dict[str, object] | None) -> None:
    model = tiny_llama()
    if options is not None:
        model = build_adapter(model, options, seed=0).model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = collate(EXAMPLES)
    loss, tokens = summed_loss(model, batch)
    assert tokens == 5
    (loss / tokens).backward()
    mine = [parameter.grad.clone() for parameter in trained]
    model.zero_grad()
    reference = model(**batch).loss
    reference.backward()
    torch.testing.assert_close(loss / tokens, reference)
    for gradient, parameter in zip(mine, trained, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-4)


def test_the_head_runs_only_where_a_token_is_trained() -> None:
    model = tiny_llama()
    shapes = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    summed_loss(model, collate(EXAMPLES[:1]))
    assert shapes == [(1, 2, 272)]


def test_a_bfloat16_model_has_a_float32_loss() -> None:
    loss, _ = summed_loss(tiny_llama(dtype="bfloat16"), collate(EXAMPLES))
    assert loss.dtype == torch.float32
