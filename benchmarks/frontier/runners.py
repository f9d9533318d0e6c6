"""Who drives a run, by the name that a grid gives."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.tasks import Task

RUNNERS = {
    "product": "product",
    "base-model": "base_model",
    "all-reduce": "all_reduce",
    "torch-distributed": "torch_distributed",
    "flower-fedavg": "flower_fedavg",
    "distro-optimizer": "distro_optimizer",
    "local-only": "local_only",
}


def runner(name: str) -> Callable[[Task, Configuration], Outcome]:
    """The function that drives a run.

    Raises
    ------
    ValueError
        The name is unknown.
    """
    if name not in RUNNERS:
        raise ValueError(f"unknown runner {name!r}; known: {', '.join(RUNNERS)}")
    run: Callable[[Task, Configuration], Outcome] = importlib.import_module(f"benchmarks.frontier.{RUNNERS[name]}").run
    return run
