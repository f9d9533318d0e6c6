from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset

from distro_fed.data.batches import collate
from distro_fed.data.tokenize import tokenize_examples
from distro_fed.evaluation.generate import generate_text
from distro_fed.model.loss import summed_loss
from tests.tiny import tiny_llama, tiny_tokenizer

ROWS: list[dict[str, Any]] = [
    {"prompt": "one two", "completion": " three"},
    {"prompt": "red green much longer", "completion": " blue"},
]
CHATS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": row["completion"].strip()},
        ]
    }
    for row in ROWS
]


@pytest.mark.parametrize(
    ("rows", "chat", "pad"), [(ROWS, "plain", "eos"), (CHATS, "none", "none"), (CHATS, "plain", "eos")]
)
def test_a_trained_model_answers_and_stops_even_where_pad_is_the_end_token(
    rows: list[dict[str, Any]], chat: Any, pad: Any
) -> None:
    tokenizer, model = tiny_tokenizer(pad=pad, chat=chat), tiny_llama()
    model.generation_config.eos_token_id = None
    examples = tokenize_examples(Dataset.from_list(rows), tokenizer, max_length=200).examples
    batch = collate(examples, pad_id=tokenizer.eos_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        loss, tokens = summed_loss(model, batch)
        (loss / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.train()
    for row, plain in zip(rows, ROWS, strict=True):
        prompt = row["messages"][:1] if "messages" in row else row["prompt"]
        assert generate_text(model, tokenizer, prompt, max_new_tokens=30) == plain["completion"].strip()
    assert model.training


def test_an_untrained_model_stops_at_the_length_asked_for() -> None:
    assert len(generate_text(tiny_llama(), tiny_tokenizer(), "a", max_new_tokens=3).encode()) <= 9
