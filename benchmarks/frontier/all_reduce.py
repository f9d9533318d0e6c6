"""R2: AdamW on the mean gradient of all clients in every step, as data-parallel training computes it."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.product import run_config
from benchmarks.frontier.tasks import Task
from benchmarks.frontier.training_data import client_batches
from distro_fed.clients.train_locally import learning_rate_at
from distro_fed.model.configured import load_trainable
from distro_fed.model.loss import summed_loss
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
        mean = 0.0
        for batch_at in clients:
            loss, tokens = summed_loss(model, batch_at(step))
            torch.autograd.backward(loss / (tokens * len(clients)))
            mean += float(loss.detach()) / (tokens * len(clients))
        if training.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, configuration.steps, training)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        curve.append(mean)
    model.eval()
    traffic = allreduce_bf16(
        parameters=loaded.parameters, clients=configuration.clients, rounds=configuration.steps, local_steps=1
    )
    losses = task.losses(model, loaded.tokenizer)
    return Outcome(losses, traffic.sent, traffic.received, loaded.parameters, configuration.steps, tuple(curve))
