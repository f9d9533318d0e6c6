"""wandb is stood in for: it is too big for the tests. The calls are those of wandb 0.31."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distro_fed.errors import SettingsError
from distro_fed.reporting.trackers import open_tracker


class Run:
    def __init__(self) -> None:
        self.axes: list[tuple[str, str | None]] = []
        self.rows: list[dict[str, Any]] = []
        self.exit_code: int | None = None

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, data: dict[str, Any]) -> None:
        self.rows.append(data)

    def finish(self, exit_code: int | None = None) -> None:
        self.exit_code = exit_code


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of ``wandb.init``, and the run that it returned."""
    made: dict[str, Any] = {"run": Run()}

    def init(*, project: str, name: str, dir: str, config: dict[str, Any]) -> Run:
        made.update(project=project, name=name, dir=dir, config=config)
        return made["run"]

    wandb = ModuleType("wandb")
    wandb.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


def test_a_round_is_the_axis_of_all_values(made: dict[str, Any], tmp_path: Path) -> None:
    tracker = open_tracker("wandb", tmp_path / "run", "trial", {"bits": 1})
    tracker.log({"train-loss": 2.0}, 2)
    tracker.log({"held-out-loss": 1.0}, 1)
    tracker.finish(failed=False)
    run = made["run"]
    assert run.axes == [("round", None), ("*", "round")]
    assert run.rows == [{"train-loss": 2.0, "round": 2}, {"held-out-loss": 1.0, "round": 1}]
    assert run.exit_code == 0
    assert (made["project"], made["name"], made["config"]) == ("distro-fed", "trial", {"bits": 1})
    assert made["dir"] == str(tmp_path / "run") and (tmp_path / "run").is_dir()


def test_the_project_is_the_users_choice(made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "hospitals")
    open_tracker("wandb", tmp_path, "trial", {}).finish(failed=True)
    assert made["project"] == "hospitals"
    assert made["run"].exit_code == 1


def test_what_keeps_it_from_starting_is_named(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**arguments: object) -> Run:
        raise RuntimeError("api_key not configured")

    monkeypatch.setattr("wandb.init", init)
    with pytest.raises(SettingsError, match=r"report-to = 'wandb' does not start \(RuntimeError: api_key not config"):
        open_tracker("wandb", tmp_path, "trial", {})
