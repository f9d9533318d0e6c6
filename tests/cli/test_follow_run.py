import os
import signal
from pathlib import Path

import pytest

from distro_fed.cli.follow_run import ending_signals_unwind, hub_environment, last_traceback, settings_of_run
from distro_fed.cli.run_config import FlowerApp

LOG = """INFO: start
Traceback (most recent call last):
  first
ValueError: first
INFO: on
Traceback (most recent call last):
  second
ValueError: second
"""


def test_thelast_traceback_of_a_log_is_shown() -> None:
    assert last_traceback(LOG).splitlines()[-1] == "ValueError: second"
    assert "first" not in last_traceback(LOG)
    assert last_traceback(f"{LOG}\x1b[91mERROR \x1b[0m:  Exit Code: 700\nmore").endswith("ValueError: second")
    assert last_traceback("a\nb") == "a\nb"


def test_an_app_is_told_its_folder_if_it_asks_for_one(tmp_path: Path) -> None:
    app = FlowerApp(tmp_path, "app", {"run-dir": "", "run-name": "", "x": 1})
    settings = settings_of_run(app, tmp_path / "runs" / "first", {"x": 2})
    assert settings == {"run-dir": str(tmp_path / "runs" / "first"), "run-name": "first", "x": 2}
    assert settings_of_run(FlowerApp(tmp_path, "app", {"x": 1}), tmp_path, {}) == {}


def test_only_a_run_that_may_download_asks_the_hub(tmp_path: Path) -> None:
    app = FlowerApp(tmp_path, "app", {"allow-download": False})
    assert hub_environment(app, {}) == {}
    assert hub_environment(app, {"allow-download": True}) == {"HF_HUB_OFFLINE": "0"}


def test_ending_signals_unwind_and_ignored_ones_stay_ignored() -> None:
    """A run under nohup goes on after the terminal is gone."""
    old, terminated = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with ending_signals_unwind():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(SystemExit) as ended:
                os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.code == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == terminated
    finally:
        signal.signal(signal.SIGHUP, old)
