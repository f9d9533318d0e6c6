"""Flower's own ``FedAvg`` with the adapter's tensors as they are, as its template for language models has it."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.product import run_config
from benchmarks.frontier.tasks import Task
from benchmarks.frontier.training_data import client_batches
from distro_fed.clients.train_locally import train_locally
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings
from distro_fed.transport.local_grid import LocalGrid


def run(task: Task, configuration: Configuration) -> Outcome:
    """Nothing of the product but the training loop and the batches, so that both train alike."""
    import torch

    settings = RunSettings.from_run_config(run_config(task, configuration))
    torch.set_num_threads(max(1, settings.training.threads))
    loaded = load_trainable(settings)
    trainable = loaded.trainable
    clients = client_batches(task, configuration, settings, loaded.tokenizer)
    local_steps, rounds = settings.training.local_steps, settings.federation.num_server_rounds
    losses: list[float] = []
    app = ClientApp()

    def load(record: ArrayRecord) -> None:
        with torch.no_grad():
            for name, value in record.to_torch_state_dict().items():
                trainable.parameters[name].copy_(value)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        load(message.content.array_records["arrays"])
        round_ = int(str(message.content.config_records["config"]["server-round"]))
        outcome = train_locally(
            trainable.model, trainable.parameters, clients[int(str(context.node_config["partition-id"]))],
            first_step=(round_ - 1) * local_steps, total_steps=configuration.steps, settings=settings.training,
        )  # fmt: skip
        losses.append(outcome.loss)
        metrics = MetricRecord({"num-examples": 1, "train-loss": outcome.loss})
        content = RecordDict({"arrays": ArrayRecord(state(trainable.parameters)), "metrics": metrics})
        return Message(content, reply_to=message)

    logging.getLogger("flwr").setLevel(logging.WARNING)
    grid = LocalGrid(app, configuration.clients)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=configuration.clients)
    result = strategy.start(
        grid, ArrayRecord(state(trainable.parameters)), num_rounds=rounds, train_config=ConfigRecord()
    )
    load(result.arrays)
    mean = {
        direction: sum(counted.values()) / configuration.clients
        for direction, counted in (("up", grid.bytes_up), ("down", grid.bytes_down))
    }
    curve = [sum(losses[i : i + len(clients)]) / len(clients) for i in range(0, len(losses), len(clients))]
    return Outcome(
        task.losses(trainable.model, loaded.tokenizer), mean["up"], mean["down"], loaded.parameters, rounds,
        tuple(curve),
    )  # fmt: skip


def state(parameters: Any) -> Any:
    """State dict of the trained tensors."""
    from collections import OrderedDict

    return OrderedDict((name, parameter.detach().clone()) for name, parameter in parameters.items())
