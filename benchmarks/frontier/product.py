"""Runs the product: its client app, compressors and strategy, over the in-process Grid."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.tasks import Task
from distro_fed.clients import make_client_app
from distro_fed.model.configured import LoadedTrainable, load_trainable
from distro_fed.reporting.report import RoundRecord
from distro_fed.settings import RunSettings
from distro_fed.strategies.distro import DistroStrategy
from distro_fed.strategies.server import strategy_from_settings
from distro_fed.transport.local_grid import LocalGrid


def run_config(task: Task, configuration: Configuration) -> dict[str, Any]:
    """Flower's run config of a configuration."""
    config = {**task.settings, "seed": configuration.seed, "min-train-nodes": 1, **configuration.settings}
    local_steps = int(config.setdefault("local-steps", 10))
    if configuration.steps % local_steps:
        raise ValueError(f"{configuration.steps} steps are not a whole number of rounds of {local_steps} steps")
    return config | {"num-server-rounds": max(1, configuration.steps // local_steps)}


def run(task: Task, configuration: Configuration) -> Outcome:
    """One federation from start to end; the final model is measured where it lies, at the server."""
    config = run_config(task, configuration)
    nodes = [{"train-data": str(path), "name": path.parent.name} for path in task.clients(configuration.clients)]
    loaded, strategy, history = federate(config, nodes)
    loaded.trainable.write(strategy.replica.values)
    up, down = bytes_of_a_client(strategy, len(nodes))
    curve = [record.train_loss for record in history if record.train_loss is not None]
    return Outcome(
        task.losses(loaded.trainable.model, loaded.tokenizer), up, down, loaded.parameters, len(history), tuple(curve)
    )


def federate(
    config: dict[str, Any], nodes: list[dict[str, Any]]
) -> tuple[LoadedTrainable, DistroStrategy, list[RoundRecord]]:
    """Run the product's strategy and clients to the end, with the node config of every client.

    Raises
    ------
    RuntimeError
        If the reply of a client was not taken in some round: the model is then not what the settings make of the data.
    """
    settings = RunSettings.from_run_config(config)
    loaded = load_trainable(settings)
    strategy = strategy_from_settings(settings, loaded.base_digest)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as state:
        # clients keep the replica, or they would be sent every update again; a residual is kept only if it is asked for
        grid = LocalGrid(make_client_app(), len(nodes), run_config={**config, "state-dir": state}, node_configs=nodes)
        strategy.start(grid, loaded.trainable, settings.federation.num_server_rounds)
    history = strategy.progress.history()
    for record in history:
        for left_out in record.left_out:
            raise RuntimeError(f"round {record.round}: the reply of {left_out.client} was left out: {left_out.reason}")
    return loaded, strategy, history


def bytes_of_a_client(strategy: DistroStrategy, clients: int) -> tuple[float, float]:
    """Sent and received in the whole run, as a mean over the clients."""
    up, down = (sum(strategy.ledger.per_client(direction).values()) / clients for direction in ("up", "down"))
    return up, down
