"""R2 in earnest: as many processes as clients, joined by ``torch.distributed``, each with its own text."""

from __future__ import annotations

import socket
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

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
    """Gradients are averaged by an all-reduce (gloo) in every step; bytes are those of a ring in bfloat16."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = RunSettings.from_run_config(run_config(task, configuration))
    loaded = load_trainable(settings)
    with tempfile.TemporaryDirectory() as folder:
        trained = Path(folder) / "trained.pt"
        mp.spawn(_member, (task, configuration, port, trained), configuration.clients)
        values, curve = torch.load(trained, weights_only=True)
    loaded.trainable.write(values)
    traffic = allreduce_bf16(
        parameters=loaded.parameters, clients=configuration.clients, rounds=configuration.steps, local_steps=1
    )
    return Outcome(
        task.losses(loaded.trainable.model, loaded.tokenizer), traffic.sent, traffic.received, loaded.parameters,
        configuration.steps, tuple(curve),
    )  # fmt: skip


def _member(rank: int, task: Task, configuration: Configuration, port: int, trained: Path) -> None:
    settings = RunSettings.from_run_config(run_config(task, configuration))
    training = settings.training
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=configuration.clients,
        timeout=timedelta(minutes=10),
    )  # fmt: skip
    loaded = load_trainable(settings)
    model: Any = loaded.trainable.model
    parameters = list(loaded.trainable.parameters.values())
    batch_at = client_batches(task, configuration, settings, loaded.tokenizer)[rank]
    optimizer = torch.optim.AdamW(
        parameters, lr=0.0, betas=(training.adam_beta1, training.adam_beta2), weight_decay=training.weight_decay,
        fused=True,
    )  # fmt: skip
    curve = []
    model.train()
    for step in range(configuration.steps):
        loss, tokens = summed_loss(model, batch_at(step))
        torch.autograd.backward(loss / (tokens * configuration.clients))
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        if training.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, configuration.steps, training)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        mean = loss.detach() / (tokens * configuration.clients)
        dist.all_reduce(mean)
        curve.append(float(mean))
    if rank == 0:
        torch.save((loaded.trainable.read(), curve), trained)
    dist.destroy_process_group()
