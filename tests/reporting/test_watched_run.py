"""A real run of the server app, watched in every way at once."""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, MetricRecord

from distro_fed.clients import make_client_app
from distro_fed.errors import SettingsError
from distro_fed.reporting.events import read_events
from distro_fed.reporting.report_file import read_report
from distro_fed.reporting.run_folder import EVENTS_FILE, REPORT_FILE
from distro_fed.reporting.run_status import RunState
from distro_fed.reporting.status import status_of
from distro_fed.settings import RunSettings
from distro_fed.strategies.server import run_server
from distro_fed.transport.local_grid import LocalGrid
from tests.tiny import tiny_model_folder

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
pytest.importorskip("prometheus_client")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, bool | int | float | str]:
    tiny_model_folder(tmp_path / "tiny")
    for name in ("bank", "clinic"):
        folder = tmp_path / "organisations" / name
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            rows = [{"text": f"{name} {index % 3} says something"} for index in range(8)]
            (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return {
        "base-model": str(tmp_path / "tiny"), "data-folder": str(tmp_path / "organisations"),
        "run-dir": str(tmp_path / "run"), "num-server-rounds": 2, "local-steps": 1, "max-length": 32,
        "learning-rate": 1e-2, "report-to": "tensorboard", "metrics-port": port,
    }  # fmt: skip


def test_status_curves_and_metrics_say_what_the_report_says(
    config: dict[str, bool | int | float | str], tmp_path: Path
) -> None:
    scraped: list[str] = []

    def scrape(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{config['metrics-port']}/metrics", timeout=60) as answer:
            scraped.append(answer.read().decode())
        return None

    run_server(LocalGrid(make_client_app(), 2, run_config=config), RunSettings.from_run_config(config), scrape)
    report = read_report(tmp_path / "run" / REPORT_FILE)
    status = status_of(read_events(tmp_path / "run" / EVENTS_FILE)[0])

    assert (status.state, status.rounds_done, status.version) == (RunState.FINISHED, 2, 2)
    assert {name: member.bytes_up for name, member in status.members.items()} == report.bytes_up_per_client
    assert {name: member.bytes_down for name, member in status.members.items()} == report.bytes_down_per_client
    assert status.held_out_loss == report.loss_after.mean
    assert status.train_loss == report.history[-1].train_loss

    curves = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    curves.Reload()
    last = {tag: curves.Scalars(tag)[-1].value for tag in curves.Tags()["scalars"]}
    assert last["ratio/r1"] == pytest.approx(report.ratio_fedavg_full_bf16, rel=1e-6)
    assert last["bytes-down/bank"] == report.bytes_down_per_client["bank"]
    assert last["held-out-loss/clinic"] == pytest.approx(report.loss_after.per_client["clinic"], rel=1e-6)
    assert {point.step for point in curves.Scalars("held-out-loss")} == {0, 1, 2}

    assert "distro_fed_version 0.0" in scraped[0] and "distro_fed_version 2.0" in scraped[2]
    assert 'distro_fed_bytes_up_total{member="bank"}' in scraped[1]


def test_what_is_missing_is_told_before_anything_is_written(
    config: dict[str, bool | int | float | str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SettingsError, match="report-to = 'tensorboard'"):
        run_server(LocalGrid(make_client_app(), 2, run_config=config), RunSettings.from_run_config(config))
    assert not (tmp_path / "run").exists()
