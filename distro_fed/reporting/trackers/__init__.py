"""Experiment trackers that a run reports to: each one in a file of its own, fed by the run's events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from distro_fed.errors import SettingsError
from distro_fed.reporting.trackers.base import Tracker
from distro_fed.reporting.trackers.feed import TrackerFeed
from distro_fed.reporting.trackers.mlflow import MlflowTracker
from distro_fed.reporting.trackers.tensorboard import TensorBoardTracker
from distro_fed.reporting.trackers.wandb import WandbTracker
from distro_fed.setting_groups import Value

__all__ = ["TRACKERS", "Tracker", "TrackerFeed", "open_tracker"]

#: by the names that ``report-to`` takes, which are those of transformers
TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Value]], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def open_tracker(name: str, folder: Path, run_name: str, settings: Mapping[str, Value]) -> Tracker:
    """Make a run in the tracker that ``report-to`` calls ``name``.

    Parameters
    ----------
    name : {"tensorboard", "wandb", "mlflow"}
    folder : Path
        Of the run, for what the tracker keeps on this machine.
    run_name : str
    settings : mapping
        All settings of the run, shown beside its curves.

    Raises
    ------
    SettingsError
        The tracker's package is not installed, or it does not start: no login, no connection.
    """
    try:
        return TRACKERS[name](folder, run_name, settings)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"report-to = {name!r} does not start ({type(error).__name__}: {error})") from error
