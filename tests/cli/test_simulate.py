import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from distro_fed.cli.run_config import FlowerApp
from distro_fed.cli.simulate import check_before_start
from distro_fed.errors import DataNotFound, SettingsError
from distro_fed.reporting.events import read_events

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).parent / "toy_app"


def simulate(runs: Path, *arguments: str) -> subprocess.Popen[str]:
    # a suite that a shell runs in the background ignores SIGINT from birth, and so would the run
    code = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from distro_fed.cli.main import app; app()"
    command = [sys.executable, "-c", code, "simulate", str(TOY)]
    command += ["--nodes", "2", "--runs-dir", str(runs), "--name", "toy", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(runs)}
    return subprocess.Popen(
        command, cwd=runs, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def processes_of(runs: Path) -> list[psutil.Process]:
    """All processes whose environment shows that the run started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(runs) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.e2e
def test_an_app_runs_in_the_real_runtime(tmp_path: Path) -> None:
    process = simulate(tmp_path, "--run-config", "num-server-rounds=3")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    events, _ = read_events(tmp_path / "toy" / "events.jsonl")
    assert [event["clients"] for event in events[:-1]] == [["toy"], ["2", "2"], ["4", "4"], ["6", "6"]]
    assert "round 3: 2 clients" in output
    assert "run finished" in output
    assert (tmp_path / "toy" / "flower.log").stat().st_size > 0
    assert not (tmp_path / ".flwr").exists()
    assert processes_of(tmp_path) == []


@pytest.mark.e2e
def test_a_failure_is_told_with_its_reason(tmp_path: Path) -> None:
    process = simulate(tmp_path, "-c", "fail='no luck today'")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "RuntimeError: asked to fail: no luck today" in output
    assert processes_of(tmp_path) == []


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    process = simulate(tmp_path, "-c", "num-server-rounds=100000")
    deadline = time.monotonic() + 300
    while not read_events(tmp_path / "toy" / "events.jsonl")[0]:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    assert len(processes_of(tmp_path)) > 2
    process.send_signal(number)
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert processes_of(tmp_path) == []


def test_wrong_settings_and_missing_data_are_found_before_anything_starts(tmp_path: Path) -> None:
    app = FlowerApp.load(ROOT / "examples" / "simulation_quickstart")
    for name in ("bank", "clinic", ".git"):
        (tmp_path / name).mkdir()
    check_before_start(app, {"data-folder": str(tmp_path)}, 2)
    with pytest.raises(DataNotFound, match=r"has 2 organisations .* for 3 nodes"):
        check_before_start(app, {"data-folder": str(tmp_path)}, 3)
    with pytest.raises(DataNotFound, match="is not a folder"):
        check_before_start(app, {"data-folder": "/nowhere"}, 2)
    with pytest.raises(DataNotFound, match="data-folder is empty"):
        check_before_start(app, {}, 2)
    with pytest.raises(SettingsError, match="choose one of auto"):
        check_before_start(app, {"data-folder": str(tmp_path), "compressor": "top-k"}, 2)
    check_before_start(FlowerApp.load(TOY), {}, 2)  # an app with settings of its own
