"""Loss on held-out examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distro_fed.data.batches import collate
from distro_fed.errors import TrainingError, UnusableData
from distro_fed.model.loss import summed_loss

if TYPE_CHECKING:
    from torch import nn

    from distro_fed.data.tokenize import Example


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Result of an evaluation.

    Attributes
    ----------
    loss_sum : float
        Summed cross-entropy in nats.
    tokens : int
        Trained tokens, over which it is summed.
    examples : int
        Examples evaluated.
    """

    loss_sum: float
    tokens: int
    examples: int

    @property
    def loss(self) -> float:
        """Mean loss of a token, in nats."""
        return self.loss_sum / self.tokens


def held_out_loss(model: nn.Module, examples: Sequence[Example], batch_size: int = 8, pad_id: int = 0) -> HeldOut:
    """Token-weighted loss of a model on examples, without gradients.

    Examples of like length share a batch, so that little padding is computed. The model is in eval mode meanwhile
    and goes back to the mode it was in.

    Raises
    ------
    UnusableData
        If there are no examples.
    TrainingError
        If the loss is NaN or infinite.
    """
    import torch

    if not examples:
        raise UnusableData("there are no held-out examples to evaluate on")
    ordered = sorted(examples, key=lambda example: len(example.input_ids))
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss_sum, tokens = 0.0, 0
    try:
        with torch.no_grad():
            for start in range(0, len(ordered), batch_size):
                batch = collate(ordered[start : start + batch_size], pad_id=pad_id)
                loss, count = summed_loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
                loss_sum += float(loss)
                tokens += count
    finally:
        model.train(was_training)
    if not math.isfinite(loss_sum):
        raise TrainingError(
            f"the held-out loss is {loss_sum}: the model's weights are broken or the dtype overflows; lower the "
            "learning rate or use bfloat16 or float32"
        )
    return HeldOut(loss_sum=loss_sum, tokens=tokens, examples=len(ordered))
