"""R2: AdamW on the mean gradient of all clients in every step, as data-parallel training computes it."""

from __future__ import annotations

import torch

from benchmarks.frontier.baseline import Baseline
from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.tasks import Task
from distro_fed.model.loss import summed_loss


def run(task: Task, configuration: Configuration) -> Outcome:
    """One process computes the gradients of all clients, one after the other, since together they would be padded."""
    baseline = Baseline.open(task, configuration)
    optimizer = baseline.adamw()
    curve = []
    baseline.model.train()
    for step in range(baseline.steps):
        mean = 0.0
        for batch_at in baseline.clients:
            loss, tokens = summed_loss(baseline.model, batch_at(step))
            loss = loss / (tokens * len(baseline.clients))
            torch.autograd.backward(loss)
            mean += float(loss.detach())
        baseline.clip()
        baseline.set_rate(optimizer, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        curve.append(mean)
    return baseline.outcome(curve)
