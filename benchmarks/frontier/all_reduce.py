"""R2: AdamW on the mean gradient of all clients in every step, as data-parallel training computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.product import run_config
from benchmarks.frontier.tasks import Task
from benchmarks.frontier.training_data import client_batches
from distro_fed.clients.train_locally import learning_rate_at
from distro_fed.model.configured import load_trainable
from distro_fed.reporting.references import allreduce_bf16
from distro_fed.settings import RunSettings


def run(task: Task, configuration: Configuration) -> Outcome:
    """One process computes the gradients of all clients in turn; bytes are those of a ring all-reduce in bfloat16."""
    settings = RunSettings.from_run_config(run_config(task, configuration))
    training = settings.training
    torch.set_num_threads(max(1, training.threads))
    loaded = load_trainable(settings)
    model: Any = loaded.trainable.model
    parameters = list(loaded.trainable.parameters.values())
    clients = client_batches(task, configuration, settings, loaded.tokenizer)
    optimizer = torch.optim.AdamW(
        parameters, lr=0.0, betas=(training.adam_beta1, training.adam_beta2), weight_decay=training.weight_decay,
        fused=True,
    )  # fmt: skip
    curve = []
    model.train()
    for step in range(configuration.steps):
        loss = mean_loss(model, [batch_at(step) for batch_at in clients])
        torch.autograd.backward(loss)
        if training.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, configuration.steps, training)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        curve.append(float(loss.detach()))
    model.eval()
    traffic = allreduce_bf16(
        parameters=loaded.parameters, clients=configuration.clients, rounds=configuration.steps, local_steps=1
    )
    losses = task.losses(model, loaded.tokenizer)
    return Outcome(losses, traffic.sent, traffic.received, loaded.parameters, configuration.steps, tuple(curve))


def mean_loss(model: Any, batches: Sequence[Mapping[str, torch.Tensor]]) -> torch.Tensor:
    """Mean over the clients of their mean loss a token, in one pass over all their batches together."""
    length = max(batch["input_ids"].shape[1] for batch in batches)

    def together(name: str, padding: int) -> torch.Tensor:
        return torch.cat([functional.pad(b[name], (0, length - b[name].shape[1]), value=padding) for b in batches])

    labels = together("labels", -100)[:, 1:]
    output = model(
        input_ids=together("input_ids", 0), attention_mask=together("attention_mask", 0), use_cache=False
    )  # fmt: skip
    losses = functional.cross_entropy(output.logits[:, :-1].transpose(1, 2).float(), labels, reduction="none")
    sums = [part.sum() for part in losses.split([len(batch["labels"]) for batch in batches])]
    tokens = [int((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
    return torch.stack([total / count for total, count in zip(sums, tokens, strict=True)]).mean()
