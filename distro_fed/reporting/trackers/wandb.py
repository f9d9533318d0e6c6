"""Weights & Biases, as the user has set it up: its variables WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, ... count."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from distro_fed.reporting.optional_package import optional_package
from distro_fed.setting_groups import Value


class WandbTracker:
    """A :class:`~distro_fed.reporting.trackers.base.Tracker`.

    ``WANDB_MODE=offline`` keeps everything in the folder ``wandb`` of the run, for ``wandb sync``.

    Parameters
    ----------
    folder : Path
        Of the run.
    run_name : str
    settings : mapping
        The run's configuration there.

    Raises
    ------
    SettingsError
        wandb is not installed.
    """

    def __init__(self, folder: Path, run_name: str, settings: Mapping[str, Value]) -> None:
        wandb = optional_package("wandb", "report-to = 'wandb'")
        folder.mkdir(parents=True, exist_ok=True)
        project = os.environ.get("WANDB_PROJECT", "distro-fed")
        self._run = wandb.init(project=project, name=run_name, dir=str(folder), config=dict(settings))
        # its own steps must rise, while a round's held-out loss is known one round later: the round is the axis
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, values: Mapping[str, float], round_: int) -> None:
        """Log the values against ``round``."""
        self._run.log({**values, "round": round_})

    def finish(self, *, failed: bool) -> None:
        """End the run, as failed or not."""
        self._run.finish(exit_code=int(failed))
