"""The model as it is before any training."""

from __future__ import annotations

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.product import run_config
from benchmarks.frontier.tasks import Task
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings


def run(task: Task, configuration: Configuration) -> Outcome:
    """Measure it once; later runs read the result."""
    loaded = load_trainable(RunSettings.from_run_config(run_config(task, configuration)))
    return Outcome(task.losses(loaded.trainable.model, loaded.tokenizer), 0.0, 0.0, loaded.parameters, 0)
