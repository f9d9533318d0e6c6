"""The local training loop: H optimizer steps from the replica.

Learning rate and data order are functions of the global step, so a client that keeps no state between
rounds goes on exactly where the run is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distro_fed.errors import TrainingError
from distro_fed.learning_rate import learning_rate_at
from distro_fed.model.loss import summed_loss
from distro_fed.settings import TrainingSettings

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distro_fed.clients.local_workers import LocalGroup
    from distro_fed.clients.optimizer_store import OptimizerStore

    Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """Result of :func:`train_locally`.

    Attributes
    ----------
    loss : float
        Mean over all trained tokens, nats.
    tokens : int
        Trained tokens.
    """

    loss: float
    tokens: int


def train_locally(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    batch_at: Callable[[int], Batch],
    *,
    first_step: int,
    total_steps: int,
    settings: TrainingSettings,
    group: LocalGroup | None = None,
    store: OptimizerStore | None = None,
) -> LocalTraining:
    """Train ``parameters`` in place with the optimizer that the settings name.

    Parameters
    ----------
    model : torch.nn.Module
        A causal language model that takes a batch as keyword arguments and returns an output with
        ``logits``.
    parameters : mapping of str to torch.nn.Parameter
        What is trained, by name; everything else should be frozen.
    batch_at : callable
        Micro-batch by number; ``gradient_accumulation_steps`` of them make an optimizer step.
    first_step : int
        Global number of the first optimizer step.
    total_steps : int
        Optimizer steps of the whole run.
    settings : TrainingSettings
    group : LocalGroup, optional
        Other processes that do the same, each with its share of the micro-batches; all end with the same parameters.

    store : OptimizerStore, optional
        Where the optimizer's state is taken from and left; by default every round starts with a fresh one.

    Raises
    ------
    TrainingError
        A loss is not finite.
    """
    import torch

    from distro_fed.clients.optimizers import make_optimizers

    trained = list(parameters.values())
    optimizers = make_optimizers(model, trained, settings)
    if store is not None:
        store.load(optimizers, parameters)
    device = trained[0].device
    accumulation = settings.gradient_accumulation_steps
    loss_sum, tokens = 0.0, 0
    model.train()
    try:
        for step in range(first_step, first_step + settings.local_steps):
            micro_batches = [batch_at(step * accumulation + i) for i in range(accumulation)]
            # every token of the step weighs the same, however micro-batches cut it
            step_tokens = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in micro_batches)
            for batch in group.share(micro_batches) if group else micro_batches:
                with _autocast(settings, device):
                    loss, _ = summed_loss(model, {key: value.to(device) for key, value in batch.items()})
                value = float(loss.detach())
                if not math.isfinite(value):
                    raise TrainingError(
                        f"training loss is {value} in step {step}: lower learning-rate ({settings.learning_rate:g}) or "
                        "use dtype = 'float32'"
                    )
                torch.autograd.backward(loss / max(1, step_tokens))
                loss_sum += value
            tokens += step_tokens
            if group:
                group.add_gradients(trained)
            if settings.max_grad_norm > 0:
                torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm)
            rate = learning_rate_at(step, total_steps, settings)
            for optimizer in optimizers:
                for parameter_group in optimizer.param_groups:
                    parameter_group["lr"] = rate
                optimizer.step()
                # gradients are zeroed, not freed: mapping the memory anew in every step costs more
                optimizer.zero_grad(set_to_none=False)
    finally:
        for parameter in trained:
            parameter.grad = None
        model.eval()
    if store is not None and (group is None or group.rank == 0):
        store.save(optimizers, parameters)
    if group:
        loss_sum = group.add(loss_sum, trained[0])
    return LocalTraining(loss=loss_sum / max(1, tokens), tokens=tokens)


def _autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[object]:
    import torch

    return torch.autocast(device.type, torch.bfloat16) if settings.bf16 else nullcontext()
