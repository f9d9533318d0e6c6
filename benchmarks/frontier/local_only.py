"""No federation: every client fine-tunes its own copy, and each is measured on the text of all organisations."""

from __future__ import annotations

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.product import run_config
from benchmarks.frontier.tasks import Task
from benchmarks.frontier.training_data import client_batches
from distro_fed.clients.train_locally import train_locally
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings


def run(task: Task, configuration: Configuration) -> Outcome:
    """Mean over the clients' models."""
    import torch

    config = run_config(task, configuration) | {"local-steps": configuration.steps, "num-server-rounds": 1}
    settings = RunSettings.from_run_config(config)
    torch.set_num_threads(max(1, settings.training.threads))
    loaded = load_trainable(settings)
    trainable = loaded.trainable
    start = trainable.read()
    measured: list[dict[str, float]] = []
    curve = []
    for batch_at in client_batches(task, configuration, settings, loaded.tokenizer):
        trainable.write(start)
        outcome = train_locally(
            trainable.model, trainable.parameters, batch_at, first_step=0, total_steps=configuration.steps,
            settings=settings.training,
        )  # fmt: skip
        curve.append(outcome.loss)
        measured.append(task.losses(trainable.model, loaded.tokenizer))
    losses = {name: sum(one[name] for one in measured) / len(measured) for name in measured[0]}
    return Outcome(losses, 0.0, 0.0, loaded.parameters, 0, tuple(curve))
