"""DisTrO-AdamW: peers exchange a few bits a chunk in every optimizer step, without local steps."""

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
from distro_fed.optim import DistroAdamW, SimulatedPeers
from distro_fed.settings import RunSettings

#: settings of the grid that are options of the optimizer, not of the product
OPTIONS = ("app.k", "app.momentum", "app.local-step", "app.topology")


def run(task: Task, configuration: Configuration) -> Outcome:
    """All peers in one process, with frames as between processes."""
    settings = RunSettings.from_run_config(run_config(task, configuration))
    options: dict[str, Any] = {name: configuration.settings.get(name) for name in OPTIONS}
    training = settings.training
    torch.set_num_threads(max(1, training.threads))
    loaded = load_trainable(settings)
    model: Any = loaded.trainable.model
    parameters = list(loaded.trainable.parameters.values())
    clients = client_batches(task, configuration, settings, loaded.tokenizer)
    optimizer = DistroAdamW(
        parameters,
        lr=training.learning_rate,
        k=options["app.k"] or 1,
        momentum=options["app.momentum"] or 0.999,
        local_step=options["app.local-step"] or "gradient",
        betas=(training.adam_beta1, training.adam_beta2),
        weight_decay=training.weight_decay,
    )
    peers = SimulatedPeers(optimizer, len(clients), options["app.topology"] or "aggregator")
    curve = []
    model.train()
    for step in range(configuration.steps):
        for group in optimizer.param_groups:
            group["lr"] = max(learning_rate_at(step, configuration.steps, training), 1e-12)
        mean = 0.0
        for peer, batch_at in enumerate(clients):
            loss, tokens = summed_loss(model, batch_at(step))
            torch.autograd.backward(loss / tokens)
            if training.max_grad_norm > 0:
                torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
            peers.collect(peer)
            optimizer.zero_grad(set_to_none=False)
            mean += float(loss.detach()) / (tokens * len(clients))
        peers.step()
        curve.append(mean)
    model.eval()
    sent, received = (sum(counted.values()) / len(clients) for counted in (peers.bytes_sent, peers.bytes_received))
    losses = task.losses(model, loaded.tokenizer)
    return Outcome(losses, sent, received, loaded.parameters, configuration.steps, tuple(curve))
