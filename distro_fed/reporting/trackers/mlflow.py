"""MLflow: a server that MLFLOW_TRACKING_URI names, or else a database in the run's own folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from distro_fed.reporting.optional_package import optional_package
from distro_fed.setting_groups import Value

#: most metrics, and most parameters, that the server takes in one call
METRICS_A_CALL, PARAMS_A_CALL = 1000, 100
LONGEST_VALUE = 500


class MlflowTracker:
    """A :class:`~distro_fed.reporting.trackers.base.Tracker`.

    Without ``MLFLOW_TRACKING_URI`` everything is in ``mlflow.db`` in the folder of the run, for ``mlflow ui
    --backend-store-uri sqlite:///...``. ``MLFLOW_EXPERIMENT_NAME`` names the experiment.

    Parameters
    ----------
    folder : Path
        Of the run.
    run_name : str
    settings : mapping
        The run's parameters there.

    Raises
    ------
    SettingsError
        MLflow is not installed.
    """

    def __init__(self, folder: Path, run_name: str, settings: Mapping[str, Value]) -> None:
        mlflow = optional_package("mlflow", "report-to = 'mlflow'")
        entities = optional_package("mlflow.entities", "report-to = 'mlflow'")
        self._metric = entities.Metric
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = mlflow.MlflowClient(tracking_uri=uri or f"sqlite:///{folder / 'mlflow.db'}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "distro-fed")
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            artifacts = None if uri else (folder / "mlflow-artifacts").as_uri()
            experiment_id = self._client.create_experiment(name, artifact_location=artifacts)
        else:
            experiment_id = experiment.experiment_id
        self._run_id = self._client.create_run(experiment_id, run_name=run_name).info.run_id
        params = [entities.Param(_allowed(key), str(value)[:LONGEST_VALUE]) for key, value in settings.items()]
        for start in range(0, len(params), PARAMS_A_CALL):
            self._client.log_batch(self._run_id, params=params[start : start + PARAMS_A_CALL])

    def log(self, values: Mapping[str, float], round_: int) -> None:
        """Log the values at step ``round_``."""
        now = int(1000 * time.time())
        metrics = [self._metric(_allowed(name), value, now, round_) for name, value in values.items()]
        for start in range(0, len(metrics), METRICS_A_CALL):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + METRICS_A_CALL])

    def finish(self, *, failed: bool) -> None:
        """End the run, as failed or not."""
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """Replace what MLflow does not take in a name: members call themselves as they like."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)[:250]
