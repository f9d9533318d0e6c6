"""Every runner of the frontier on a tiny model: all train, measure, count; R2 is the same in one process or many."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.runners import RUNNERS, runner
from benchmarks.frontier.tasks import ORGANISATIONS, Task
from tests.tiny import tiny_model_folder


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("task")
    tiny_model_folder(folder / "model")
    for split in ("train", "test"):
        (folder / split).mkdir()
        for name in ORGANISATIONS:
            lines = [json.dumps({"text": f"{name} {index % 3} is {index % 3}"}) for index in range(8)]
            (folder / split / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"base-model": str(folder / "model"), "max-length": 32, "per-device-train-batch-size": 2, "threads": 1,
                "device": "cpu", "evaluate-every": 0}  # fmt: skip
    return Task("tiny", folder, settings)


def run(task: Task, name: str, **settings: object) -> Outcome:
    given = {"mode": "full", "compressor": "dense", "learning-rate": 0.01, "local-steps": 2, **settings}
    return runner(name)(task, Configuration("tiny", name, name, 4, 2, 0, given))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in RUNNERS if name != "torch-distributed"])
def test_a_runner_trains_and_counts(task: Task, name: str) -> None:
    outcome = run(task, name)
    assert outcome.losses.keys() == set(ORGANISATIONS)
    assert math.isfinite(outcome.loss)
    sends = name not in ("base-model", "local-only")
    assert (outcome.bytes_up > 0 and outcome.bytes_down > 0) == sends
    if name != "base-model":
        assert outcome.loss < run(task, "base-model").loss


def test_many_processes_compute_what_one_does(task: Task) -> None:
    one, many = run(task, "all-reduce"), run(task, "torch-distributed")
    assert many.loss == pytest.approx(one.loss, abs=1e-4)
    assert (many.bytes_up, many.rounds) == (one.bytes_up, one.rounds)


def test_an_all_reduce_sends_what_is_trained_and_no_more(task: Task) -> None:
    everything, some = run(task, "all-reduce"), run(task, "all-reduce", **{"trained-modules": "down_proj"})
    assert 0 < some.bytes_up < everything.bytes_up / 4
    assert some.parameters == everything.parameters


def test_a_run_in_which_a_client_fails_is_no_result(task: Task) -> None:
    with pytest.raises(RuntimeError, match=r"the reply of \w+ was left out: the node reports training"):
        run(task, "product", **{"learning-rate": 1e38, "optim": "sgd"})


def test_an_unknown_runner_is_named() -> None:
    with pytest.raises(ValueError, match="all-reduce"):
        runner("fast")
