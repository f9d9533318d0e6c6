from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from distro_fed.errors import SettingsError
from distro_fed.reporting import trackers
from distro_fed.reporting.events import EventWriter, read_events
from distro_fed.reporting.observers import observers
from distro_fed.reporting.run_folder import EVENTS_FILE
from distro_fed.settings import RunSettings
from tests.reporting.sample_events import RUN_FINISHED, finished, reply, round_started, started


class Notebook:
    """Stands in for a tracker; breaks at a round of its choice."""

    made: list[Notebook] = []  # noqa: RUF012

    def __init__(self, folder: Path, run_name: str, settings: dict[str, Any]) -> None:
        self.facts = (folder, run_name, settings["report-to"])
        self.rounds: list[int] = []
        self.failed: bool | None = None
        Notebook.made.append(self)

    def log(self, values: dict[str, float], round_: int) -> None:
        self.rounds.append(round_)

    def finish(self, *, failed: bool) -> None:
        self.failed = failed


class Broken(Notebook):
    def log(self, values: dict[str, float], round_: int) -> None:
        super().log(values, round_)
        raise ConnectionError("the service is away")


@pytest.fixture(autouse=True)
def notebooks(monkeypatch: pytest.MonkeyPatch) -> list[Notebook]:
    monkeypatch.setattr(Notebook, "made", [])
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Notebook)
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Broken)
    return Notebook.made


def settings(**changes: object) -> RunSettings:
    return RunSettings.from_run_config({key.replace("_", "-"): value for key, value in changes.items()})


def write_all(folder: Path, chosen: RunSettings) -> None:
    events = [started(2), round_started(1, "a"), reply(1, "a"), finished(1), round_started(2, "a"), reply(2, "a"),
              finished(2), RUN_FINISHED]  # fmt: skip
    with observers(chosen, folder) as listeners, EventWriter(folder / EVENTS_FILE, listeners) as writer:
        for event in events:
            writer.write(**event)


def test_a_tracker_that_fails_is_dropped_and_the_others_go_on(
    tmp_path: Path, notebooks: list[Notebook], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", logger="flwr")
    write_all(tmp_path, settings(report_to="mlflow,wandb", run_name="trial"))
    broken, good = notebooks
    assert len(broken.rounds) == 1
    assert (good.rounds[-1], good.failed) == (2, False)
    assert good.facts == (tmp_path, "trial", "mlflow,wandb")
    assert [event["event"] for event in read_events(tmp_path / EVENTS_FILE)[0]][-1] == "run_finished"


def test_nobody_is_told_by_default(tmp_path: Path, notebooks: list[Notebook]) -> None:
    with observers(settings(), tmp_path) as listeners:
        assert listeners == []
    assert notebooks == []


def test_a_package_that_is_missing_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]  # import raises ImportError
    with (
        pytest.raises(SettingsError, match=r"report-to = 'wandb' needs .*pip install 'distro-fed\[trackers\]'"),
        observers(settings(report_to="wandb"), tmp_path),
    ):
        pass
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="metrics-port needs"), observers(settings(metrics_port=1), tmp_path):
        pass


def test_a_port_that_is_taken_ends_it_before_a_tracker_is_opened(tmp_path: Path, notebooks: list[Notebook]) -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(SettingsError, match=f"metrics-port = {port}"),
            observers(settings(metrics_port=port, report_to="wandb"), tmp_path),
        ):
            pass
    assert notebooks == []


def test_a_run_that_breaks_off_ends_its_trackers_as_failed(tmp_path: Path, notebooks: list[Notebook]) -> None:
    with pytest.raises(KeyboardInterrupt), observers(settings(report_to="wandb"), tmp_path):
        raise KeyboardInterrupt
    assert notebooks[0].failed is True


def test_what_was_before_a_resumed_run_is_known_to_them(tmp_path: Path, notebooks: list[Notebook]) -> None:
    with EventWriter(tmp_path / EVENTS_FILE) as writer:
        for event in (started(2), round_started(1, "a"), reply(1, "a"), finished(1)):
            writer.write(**event)
    with (
        observers(settings(report_to="wandb"), tmp_path) as listeners,
        EventWriter(tmp_path / EVENTS_FILE, listeners) as writer,
    ):
        for event in (round_started(2, "a"), reply(2, "a", held_out=None), finished(2)):
            writer.write(**event)
    assert notebooks[0].rounds == [2, 2]
