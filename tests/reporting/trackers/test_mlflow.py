"""MLflow is stood in for: it is too big for the tests. The calls are those of MLflow 3.17."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from distro_fed.reporting.trackers import open_tracker


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


@dataclass
class Client:
    tracking_uri: str
    experiments: dict[str, Any] = field(default_factory=dict)
    runs: list[tuple[str, str]] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    status: str = ""

    def get_experiment_by_name(self, name: str) -> Any:
        return self.experiments.get(name)

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        self.experiments[name] = SimpleNamespace(experiment_id="7", artifact_location=artifact_location)
        return "7"

    def create_run(self, experiment_id: str, run_name: str | None = None) -> Any:
        self.runs.append((experiment_id, run_name or ""))
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert run_id == "r1"
        assert len(metrics) <= 1000 and len(params) <= 100
        self.metrics += metrics
        self.params += params

    def set_terminated(self, run_id: str, status: str | None = None) -> None:
        self.status = status or ""


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Every client that was made."""
    made: list[Client] = []

    def make(tracking_uri: str) -> Client:
        made.append(Client(tracking_uri))
        return made[-1]

    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    mlflow.MlflowClient = make  # type: ignore[attr-defined]
    entities.Metric, entities.Param = Metric, Param  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    return made


def test_everything_stays_in_the_folder_of_the_run(clients: list[Client], tmp_path: Path) -> None:
    tracker = open_tracker("mlflow", tmp_path / "run", "trial", {"bits": 1, "peft.target-modules": "x" * 9999})
    tracker.log({"train-loss": 2.0, "held-out-loss/clinic: süd": 1.0}, 3)
    tracker.finish(failed=False)
    (client,) = clients
    assert client.tracking_uri == f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}"
    assert client.experiments["distro-fed"].artifact_location == (tmp_path / "run" / "mlflow-artifacts").as_uri()
    assert client.runs == [("7", "trial")]
    assert client.params == [("bits", "1"), ("peft.target-modules", "x" * 500)]
    assert [(metric.key, metric.value, metric.step) for metric in client.metrics] == [
        ("train-loss", 2.0, 3),
        ("held-out-loss/clinic_ s_d", 1.0, 3),
    ]
    assert client.status == "FINISHED"


def test_the_server_is_the_users_choice(clients: list[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "hospitals")
    open_tracker("mlflow", tmp_path, "trial", {}).finish(failed=True)
    assert clients[0].tracking_uri == "http://tracking.example:5000"
    assert clients[0].experiments["hospitals"].artifact_location is None
    assert clients[0].status == "FAILED"


def test_many_values_are_sent_in_calls_that_are_not_too_big(clients: list[Client], tmp_path: Path) -> None:
    tracker = open_tracker("mlflow", tmp_path, "trial", {f"key-{number}": number for number in range(250)})
    tracker.log({f"bytes-up/{number}": float(number) for number in range(2500)}, 1)
    assert len(clients[0].params) == 250
    assert [metric.value for metric in clients[0].metrics] == list(range(2500))
