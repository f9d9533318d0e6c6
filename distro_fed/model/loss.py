"""The training loss, computed only where a label is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


def summed_loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Cross-entropy of the next token, summed over all trained tokens of a batch.

    The output head is run only at positions whose next token is trained by at least one row of the batch. With
    completion-only labels that saves most of the head's work and memory.

    Parameters
    ----------
    model : torch.nn.Module
        A causal language model of transformers, or a ``PeftModel`` over one.
    batch : mapping
        ``input_ids``, ``attention_mask`` and ``labels`` (not shifted, -100 where not trained), int64, batch x
        length, on the model's device, with at least one trained token.

    Returns
    -------
    loss : torch.Tensor
        Scalar float32 sum; divide by ``tokens`` for the mean.
    tokens : int
        Number of trained tokens.
    """
    from torch.nn import functional

    targets = batch["labels"][:, 1:]
    places = (targets != -100).any(dim=0).nonzero().squeeze(1)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if _keeps_logits(model):
        logits = model(**inputs, logits_to_keep=places, use_cache=False).logits
    else:
        logits = model(**inputs, use_cache=False).logits[:, -batch["input_ids"].shape[1] :][:, places]
    targets = targets[:, places]
    loss: torch.Tensor = functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return loss, int((targets != -100).sum())


def _keeps_logits(model: nn.Module) -> bool:
    """Whether the model takes ``logits_to_keep`` as positions of the text itself."""
    peft_config = getattr(model, "active_peft_config", None)
    if getattr(peft_config, "is_prompt_learning", False):
        return False  # virtual tokens stand before the text and shift all positions
    unwrap: Callable[[], nn.Module] | None = getattr(model, "get_base_model", None)
    return "logits_to_keep" in inspect.signature((unwrap() if unwrap else model).forward).parameters
