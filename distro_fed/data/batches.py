"""Batches that depend on seed and step alone, so that a client without memory goes on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from distro_fed.data.tokenize import IGNORE, Example

if TYPE_CHECKING:
    import torch


def batch_at(
    examples: Sequence[Example], seed: int, step: int, batch_size: int, *, pad_id: int = 0
) -> dict[str, torch.Tensor]:
    """The batch of one step of an endless walk over the examples.

    Every epoch visits each example once, in an order drawn from (seed, epoch). Batches are always full: one
    may hold the end of an epoch and the start of the next.

    Parameters
    ----------
    examples : sequence of Example
        The client's training data, always in the same order.
    seed : int
        Seed of this client, not negative.
    step : int
        0 for the first batch of the run, counted over all rounds.
    batch_size : int
        Number of examples.
    pad_id : int
        See :func:`collate`.

    Returns
    -------
    dict of str to torch.Tensor
        See :func:`collate`.
    """
    return collate([examples[i] for i in indices_at(len(examples), seed, step, batch_size)], pad_id=pad_id)


def indices_at(count: int, seed: int, step: int, batch_size: int) -> list[int]:
    """Which of ``count`` examples :func:`batch_at` takes."""
    places = range(step * batch_size, (step + 1) * batch_size)
    return [int(_order(count, seed, place // count)[place % count]) for place in places]


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def collate(examples: Sequence[Example], *, pad_id: int = 0) -> dict[str, torch.Tensor]:
    """Pad examples on the right to the longest of them.

    Parameters
    ----------
    examples : sequence of Example
        At least one.
    pad_id : int
        Any id of the vocabulary: padding is told by the attention mask, and its labels are -100.

    Returns
    -------
    dict of str to torch.Tensor
        ``input_ids``, ``attention_mask`` and ``labels``, int64, batch x length.
    """
    import torch

    shape = (len(examples), max(len(example.input_ids) for example in examples))
    input_ids = torch.full(shape, pad_id, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.int64)
    labels = torch.full(shape, IGNORE, dtype=torch.int64)
    for row, example in enumerate(examples):
        length = len(example.input_ids)
        input_ids[row, :length] = torch.tensor(example.input_ids)
        attention_mask[row, :length] = 1
        labels[row, :length] = torch.tensor(example.labels)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
