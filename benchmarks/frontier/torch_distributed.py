"""R2 in earnest: as many processes as clients, joined by ``torch.distributed``, each with its own text."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.frontier.baseline import Baseline
from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.tasks import Task
from distro_fed.model.loss import summed_loss


def run(task: Task, configuration: Configuration) -> Outcome:
    """Gradients are averaged by an all-reduce (gloo) in every step."""
    with tempfile.TemporaryDirectory() as folder:
        trained = Path(folder) / "trained.pt"
        mp.spawn(_member, (task, configuration, trained), configuration.clients)
        values, curve = torch.load(trained, weights_only=True)
    baseline = Baseline.open(task, configuration)
    baseline.loaded.trainable.write(values)
    return baseline.outcome(curve)


def _member(rank: int, task: Task, configuration: Configuration, trained: Path) -> None:
    dist.init_process_group(
        "gloo",
        # a port that was free a moment ago may be taken by now; a file in a new folder is nobody else's
        init_method=trained.with_name("rendezvous").as_uri(),
        rank=rank,
        world_size=configuration.clients,
        timeout=timedelta(minutes=10),
    )
    baseline = Baseline.open(task, configuration)
    optimizer, parameters, batch_at = baseline.adamw(), baseline.parameters, baseline.clients[rank]
    curve = []
    baseline.model.train()
    for step in range(baseline.steps):
        loss, tokens = summed_loss(baseline.model, batch_at(step))
        torch.autograd.backward(loss / (tokens * configuration.clients))
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        baseline.clip()
        baseline.set_rate(optimizer, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        mean = loss.detach() / (tokens * configuration.clients)
        dist.all_reduce(mean)
        curve.append(float(mean))
    if rank == 0:
        torch.save((baseline.loaded.trainable.read(), curve), trained)
    dist.destroy_process_group()
