"""The rig that compares pipelines: what is run, what is kept, what is compared with what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.frontier import result_lines, schedule
from benchmarks.frontier.grid import Configuration, read_grid
from benchmarks.frontier.page import write_all
from benchmarks.frontier.table import rows, sweep

ROOT = Path(__file__).parents[2]
GRID = """
[[run]]
task = "small"
pipeline = "top-k: 1/64"
steps = 20
seeds = [0, 1]
settings = { mode = "full", compressor = "topk", learning-rate = [1e-3, 2e-3] }
"""


MARKED = "words\n<!-- results of small -->\nold\n<!-- end of results of small -->\nmore\n"


def finished(pipeline: str, loss: float, seed: int = 0, rate: float = 1e-3, **more: Any) -> dict[str, Any]:
    settings = {"mode": "full", "learning-rate": rate} | more.pop("settings", {})
    return {
        "id": f"{pipeline}{seed}{rate}", "task": "small", "pipeline": pipeline, "runner": "product", "steps": 20,
        "clients": 4, "seconds": 1, "seed": seed, "settings": settings, "loss": loss,
        "bytes_up": 1000.0, "bytes_down": 1000.0,
        "rounds": 2, "parameters": 10**6, "grid": "x",
    } | more  # fmt: skip


def test_lists_and_seeds_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    found = read_grid(path)
    assert [(one.settings["learning-rate"], one.seed) for one in found] == [(1e-3, 0), (1e-3, 1), (2e-3, 0), (2e-3, 1)]
    assert len({one.id for one in found}) == 4
    assert Configuration.from_json(found[0].to_json()) == found[0]


def test_a_new_name_is_not_a_new_run(tmp_path: Path) -> None:
    before, after = tmp_path / "before.toml", tmp_path / "after.toml"
    before.write_text(GRID)
    after.write_text(GRID.replace("top-k: 1/64", "another name"))
    assert [one.id for one in read_grid(before)] == [one.id for one in read_grid(after)]


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.replace("seeds", "seed"))
    with pytest.raises(ValueError, match="seed"):
        read_grid(path)


def test_the_grids_of_the_repository_can_be_read() -> None:
    from distro_fed.settings import RunSettings

    grids = sorted((ROOT / "benchmarks" / "frontier" / "grids").glob("*.toml"))
    assert grids
    for path in grids:
        for one in read_grid(path):
            RunSettings.from_run_config(dict(one.settings))


def test_a_line_that_a_kill_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    result_lines.append(path, finished("a", 1.0))
    with path.open("a") as file:
        file.write('{"id": "b", "los')
    assert [run["pipeline"] for run in result_lines.read([path])] == ["a"]


def test_a_run_after_a_cut_off_line_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"id": "b", "los')
    result_lines.append(path, finished("a", 1.0))
    assert [run["pipeline"] for run in result_lines.read([path])] == ["a"]


def test_what_has_a_result_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    configurations = read_grid(path)
    started: list[str] = []

    def run_one(one: Configuration) -> dict[str, Any]:
        started.append(one.id)
        if one.seed == 1 and len(started) == 2:
            raise RuntimeError("broken")
        return finished(one.pipeline, 1.0, one.seed) | {"id": one.id}

    monkeypatch.setattr(schedule, "_run_one", run_one)
    into = tmp_path / "results.jsonl"
    assert schedule.run_all(configurations, into, 1) == 1
    assert schedule.run_all(configurations, into, 1) == 0
    assert len(started) == 5 and len(result_lines.read([into])) == 4


def test_a_killed_scheduler_leaves_whole_lines(tmp_path: Path) -> None:
    path, into = tmp_path / "grid.toml", tmp_path / "results.jsonl"
    path.write_text(GRID)
    code = (
        "import sys, time; from pathlib import Path; from benchmarks.frontier import schedule; "
        "from benchmarks.frontier.grid import read_grid\n"
        "def run_one(one):\n    time.sleep(0.2)\n    return {'id': one.id, 'loss': 1.0, 'bytes_up': 0, 'bytes_down': "
        "0, 'seconds': 0}\n"
        "schedule._run_one = run_one\n"
        f"schedule.run_all(read_grid(Path({str(path)!r})), Path({str(into)!r}), 1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (into.is_file() and into.read_text().count("\n") >= 1) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = into.read_text().splitlines()
    assert kept and all(json.loads(line) for line in kept)


def test_the_best_rate_of_each_pipeline_is_compared() -> None:
    table = rows(
        [
            finished("R1 FedAvg", 3.0), finished("R1 FedAvg", 2.5, rate=2e-3), finished("R2 all-reduce", 2.6),
            finished("topk: 1/64", 2.7), finished("topk: 1/64", 2.55, rate=2e-3),
        ]
    )  # fmt: skip
    row = next(row for row in table if row.pipeline == "topk: 1/64")
    assert (row.loss, row.learning_rate, row.loss_best_baseline) == (2.55, 2e-3, 2.5)
    assert row.gap_nats == pytest.approx(0.05)
    # 2 rounds of 10 steps: two bytes a value, down and up; a ring sends 2 (N - 1) / N gradients a step
    assert row.ratio_r1 == pytest.approx(2 * 2 * 2e6 / 2000)
    assert row.ratio_r2 == pytest.approx(20 * 2 * 2 * 3 / 4 * 2e6 / 2000)


def test_rates_are_compared_on_the_seeds_that_they_share() -> None:
    """A rate that was tried with one seed is not passed over because another has more."""
    table = rows([finished("a", 2.0, 0), finished("a", 1.0, 1), finished("a", 1.9, 0, rate=2e-3)])
    assert (table[0].loss, table[0].learning_rate, table[0].seeds) == (1.9, 2e-3, [0])


def test_rates_without_a_seed_in_common_are_compared_by_how_many_they_have() -> None:
    table = rows([finished("a", 2.0, 0), finished("a", 2.2, 1), finished("a", 1.9, 2, rate=2e-3)])
    assert table[0].loss == pytest.approx(2.1) and table[0].seeds == [0, 1]


def test_only_seeds_that_both_sides_have_are_compared() -> None:
    table = rows([finished("R1", 2.0, 0), finished("R1", 4.0, 1), finished("a", 2.1, 0)])
    row = next(row for row in table if row.pipeline == "a")
    assert row.loss_best_baseline == 2.0 and row.gap_nats == pytest.approx(0.1)


def test_of_two_baselines_the_better_on_their_common_seeds_is_compared() -> None:
    table = rows([finished("R1", 1.0, 0), finished("R2", 2.0, 0), finished("R2", 0.4, 1), finished("a", 2.1, 0),
                  finished("a", 2.7, 1)])  # fmt: skip
    row = next(row for row in table if row.pipeline == "a")
    assert row.loss_best_baseline == 1.0 and row.gap_nats == pytest.approx(1.1)
    assert row.gap_seeds == [0] and row.seeds == [0, 1]


def test_a_gap_over_fewer_seeds_than_the_loss_says_so(tmp_path: Path) -> None:
    (tmp_path / "frontier.md").write_text(MARKED)
    write_all([finished("R1", 1.0, 0), finished("a", 2.0, 0), finished("a", 4.0, 1)], tmp_path)
    assert "| +1.0000 (seed 0) |" in (tmp_path / "frontier.md").read_text()


def test_every_rate_tried_is_listed() -> None:
    found = sweep([finished("a", 2.0), finished("a", 3.0, rate=2e-3)])
    assert [(one.learning_rate, one.loss, one.seeds) for one in found] == [(1e-3, 2.0, 1), (2e-3, 3.0, 1)]


def test_runs_with_other_clients_are_no_seeds_of_one_another() -> None:
    few = finished("a", 3.0)
    few = {**few, "settings": {**few["settings"], "fraction-train": 0.1}}
    many = {**finished("a", 4.0), "clients": 20}
    found = sweep([finished("a", 2.0), few, many])
    assert [(one.clients, one.participation, one.loss, one.seeds) for one in found] == [
        (4, 0.1, 3.0, 1), (4, 1.0, 2.0, 1), (20, 1.0, 4.0, 1)
    ]  # fmt: skip


def test_tables_and_pictures_are_written_between_their_marks(tmp_path: Path) -> None:
    (tmp_path / "frontier.md").write_text(MARKED)
    written = write_all([finished("R1", 2.0), finished("topk: <b>", 2.1)], tmp_path)
    text = (tmp_path / "frontier.md").read_text()
    assert "old" not in text and "| topk: <b> |" in text and text.startswith("words") and text.endswith("more\n")
    page = (tmp_path / "frontier.html").read_text()
    assert "&lt;b&gt;" in page and "<b>" not in page
    table = json.loads((tmp_path / "frontier.json").read_text())
    assert {"task", "pipeline", "mode", "stateless", "local_steps", "clients", "seeds", "loss", "loss_best_baseline",
            "gap_nats", "ratio_r1", "ratio_r2", "command"} <= table[0].keys()  # fmt: skip
    assert any(path.suffix == ".svg" for path in written)
