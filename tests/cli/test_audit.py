from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distro_fed.cli.main import app
from distro_fed.clients.egress_log import EgressLog

runner = CliRunner()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    for number in range(3):
        with EgressLog(tmp_path / "egress.jsonl").locked() as log:
            log.append(
                run="7", round=1 + number // 2, kind="update", bytes=1000, sha256="", metrics={"train-loss": 1.0}
            )
    with EgressLog(tmp_path / "egress.jsonl").locked() as log:
        refused = {"kind": "unknown", "bytes": 10**6, "why": "because"}
        log.append(run="7", round=2, kind="refusal", bytes=300, sha256="", refused=refused, metrics={"\x1b[2J": 1.0})
    return tmp_path


def test_sums_and_verdict(state_dir: Path) -> None:
    result = runner.invoke(app, ["audit", str(state_dir)])
    assert result.exit_code == 0
    assert "3,300" in result.output and "2,000" in result.output and "unknown" in result.output
    assert "Whole: 4 lines" in result.output and "train-loss" in result.output
    assert "\x1b[2J" not in result.output


def test_json_of_one_file(state_dir: Path) -> None:
    result = runner.invoke(app, ["audit", str(state_dir / "egress.jsonl"), "--json"])
    (log,) = json.loads(result.output)
    assert (log["whole"], log["bytes"], len(log["entries"])) == (True, 3300, 4)
    assert [(line["round"], line["messages"], line["bytes"]) for line in log["sums"]] == [
        ("1", 2, 2000), ("2", 1, 1000), ("2", 1, 300),
    ]  # fmt: skip


def test_a_broken_chain_is_told_and_is_exit_code_1(state_dir: Path) -> None:
    path = state_dir / "egress.jsonl"
    path.write_text(path.read_text().replace('"bytes":1000', '"bytes":1', 1))
    result = runner.invoke(app, ["audit", str(state_dir)])
    assert result.exit_code == 1 and "NOT WHOLE, line 1" in result.output
    assert json.loads(runner.invoke(app, ["audit", str(state_dir), "--json"]).output)[0]["whole"] is False


def test_a_line_that_broke_off_is_told(state_dir: Path) -> None:
    path = state_dir / "egress.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    result = runner.invoke(app, ["audit", str(state_dir)])
    assert result.exit_code == 0 and "broke off" in result.output


def test_logs_of_all_members_of_a_simulation(state_dir: Path) -> None:
    (state_dir / "egress").mkdir()
    for name in ("0", "1"):
        (state_dir / "egress.jsonl").rename(state_dir / "egress" / f"{name}.jsonl")
        (state_dir / "egress.jsonl").write_text("")
    (state_dir / "egress.jsonl").unlink()
    logs = json.loads(runner.invoke(app, ["audit", str(state_dir), "--json"]).output)
    assert [Path(log["log"]).name for log in logs] == ["0.jsonl", "1.jsonl"]


def test_no_log_is_an_error(tmp_path: Path) -> None:
    result = runner.invoke(app, ["audit", str(tmp_path)])
    assert result.exit_code == 2 and "has no log of what left" in result.output
