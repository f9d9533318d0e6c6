"""The batches that the product's clients train on, for baselines that need the same data in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.tasks import Task
from distro_fed.clients.fine_tuning import client_seed
from distro_fed.data.batches import batch_at
from distro_fed.data.load import load_examples
from distro_fed.data.tokenize import tokenize_examples

Batches = Callable[[int], "dict[str, torch.Tensor]"]

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from distro_fed.settings import RunSettings


def client_batches(
    task: Task, configuration: Configuration, settings: RunSettings, tokenizer: PreTrainedTokenizerBase
) -> list[Batches]:
    """For every client a function from the number of a step to its batch."""
    return [_batches(str(path), path.parent.name, settings, tokenizer) for path in task.clients(configuration.clients)]


def _batches(source: str, name: str, settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> Batches:
    examples = load_examples(source, split="train", allow_download=False)
    tokenized = tokenize_examples(examples, tokenizer, max_length=settings.data.max_length, source=source).examples
    seed, size = client_seed(settings.seed, name), settings.training.per_device_train_batch_size
    pad = tokenizer.pad_token_id or 0
    return lambda step: batch_at(tokenized, seed, step, size, pad_id=pad)
