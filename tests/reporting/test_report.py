import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from distro_fed.errors import DistroFedError, SettingsError
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.reporting.report import Losses, incidents
from distro_fed.reporting.report_file import read_report
from tests.reporting.sample_report import sample


def test_bytes_and_ratios() -> None:
    report = sample()
    assert report.bytes_up_per_client == {"north": 3000, "south": 3000}
    assert report.bytes_down_per_client == {"north": 1600, "south": 1500}
    assert report.bytes_total_per_client == {"north": 4600, "south": 4500}
    assert report.mean_bytes() == (3000, 1550)
    # two rounds changed the model; P = 1e6
    assert report.ratio_fedavg_full_bf16 == 2 * 4e6 / 4550
    assert report.ratio_fedavg_full_bf16_up == 2 * 2e6 / 3000
    assert report.ratio_fedavg_full_bf16_down == 2 * 2e6 / 1550
    assert report.ratio_allreduce_bf16 == 2 * 8 * 4e6 / 4550
    assert report.ratio_distro_report == 2 * 8 * 2e6 / 4550


def test_history_has_cumulative_bytes_of_the_mean_client() -> None:
    assert [record.bytes_up for record in sample().history] == [1000, 2000, 3000]
    assert [record.bytes_down for record in sample().history] == [550, 1050, 1550]


def test_losses() -> None:
    assert sample().loss_before.mean == 3.0
    assert Losses.of({"a": 1.0, "b": None}) == Losses(1.0, {"a": 1.0, "b": None})
    assert Losses.of({"a": 1.0, "b": math.inf}) == Losses(None, {"a": 1.0, "b": None})
    assert Losses.of({}) == Losses(None, {})


def test_a_client_that_never_answered_is_in_the_report() -> None:
    report = sample(clients=["north", "south", "west"])
    assert report.bytes_total_per_client["west"] == 0
    assert report.clients == ["north", "south", "west"]


def test_nothing_sent_is_no_ratio() -> None:
    assert sample(ledger=TrafficLedger()).ratio_fedavg_full_bf16 is None


def test_no_client_is_an_error() -> None:
    with pytest.raises(SettingsError, match="clients is 0"):
        sample(clients=[], ledger=TrafficLedger())


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "trial" / "report.json"
    report = sample(seconds=math.inf)
    report.write_json(path)
    data = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert data["seconds"] is None
    assert data["history"][1]["train_loss"] is None
    assert data["history"][1]["left_out"] == [{"client": "south", "reason": "loss is not finite"}]
    assert data["loss_before"] == {"mean": 3.0, "per_client": {"north": 2.5, "south": 3.5}}
    assert read_report(path).to_dict() == report.to_dict()


def test_a_report_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    data = sample(drifts={"north": 2}, resumed=1).to_dict()
    for key in ("exchanges_per_round", "drifts_per_client", "late_replies_per_client", "resumed"):
        del data[key]
    path.write_text(json.dumps(data))
    assert read_report(path).to_dict() == sample().to_dict()


def test_what_happened_besides_is_counted_and_told() -> None:
    report = sample(drifts={"south": 2}, late_replies={"south": 0, "north": 1}, resumed=3)
    assert report.to_dict()["drifts_per_client"] == {"south": 2}
    assert incidents(report) == [
        ("replica differed and was replaced 2 times", "south"),
        ("reply came after its round 1 times", "north"),
        ("run was resumed from a checkpoint 3 times", ""),
    ]
    assert incidents(sample()) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"name": "x"}'])
def test_a_file_that_is_no_report_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(DistroFedError, match=r"report\.json"):
        read_report(path)
    with pytest.raises(DistroFedError, match="does not exist"):
        read_report(tmp_path / "none.json")


def test_the_machine_is_described_without_names() -> None:
    report = sample()
    assert set(report.machine) == {"system", "processor", "cpus", "python"}
    assert "flwr" in report.versions


def test_reporting_needs_no_torch() -> None:
    code = (
        "import sys, distro_fed.reporting, distro_fed.reporting.html, distro_fed.reporting.console;"
        "heavy = {'torch', 'transformers', 'flwr', 'ray'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
