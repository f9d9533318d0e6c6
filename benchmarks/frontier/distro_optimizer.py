"""DisTrO-AdamW: peers exchange a few bits a chunk in every optimizer step, without local steps."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.frontier.baseline import Baseline
from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.tasks import Task
from distro_fed.model.loss import summed_loss
from distro_fed.optim import DistroAdamW, SimulatedPeers

#: settings of the grid that are options of the optimizer, not of the product, with their defaults
OPTIONS: dict[str, Any] = {
    "app.k": 1,
    "app.momentum": 0.999,
    "app.local-step": "gradient",
    "app.topology": "aggregator",
}


def run(task: Task, configuration: Configuration) -> Outcome:
    """All peers in one process, with frames as between processes."""
    baseline = Baseline.open(task, configuration)
    options = {name: configuration.settings.get(name, default) for name, default in OPTIONS.items()}
    training = baseline.training
    optimizer = DistroAdamW(
        baseline.parameters,
        lr=training.learning_rate,
        k=options["app.k"],
        momentum=options["app.momentum"],
        local_step=options["app.local-step"],
        betas=(training.adam_beta1, training.adam_beta2),
        weight_decay=training.weight_decay,
    )
    count = len(baseline.clients)
    peers = SimulatedPeers(optimizer, count, options["app.topology"])
    curve = []
    baseline.model.train()
    for step in range(baseline.steps):
        baseline.set_rate(optimizer, step)
        mean = 0.0
        for peer, batch_at in enumerate(baseline.clients):
            loss, tokens = summed_loss(baseline.model, batch_at(step))
            torch.autograd.backward(loss / tokens)
            baseline.clip()
            peers.collect(peer)
            optimizer.zero_grad(set_to_none=False)
            mean += float(loss.detach()) / (tokens * count)
        peers.step()
        curve.append(mean)
    sent, received = (sum(counted.values()) / count for counted in (peers.bytes_sent, peers.bytes_received))
    return baseline.outcome(curve, sent, received)
