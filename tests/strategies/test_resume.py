"""A server that is stopped at any point, and another one that goes on: the end is that of a run without a stop."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import MetricRecord

from distro_fed.errors import CheckpointError
from distro_fed.model.trainable import Trainable
from distro_fed.reporting.events import read_events
from distro_fed.settings import RunSettings
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.checkpoint import Checkpoint, read_checkpoint
from distro_fed.strategies.members import Members
from distro_fed.strategies.resume import Saver, check_settings
from tests.federation import make_model
from tests.strategies.interrupted import Federation, Killed, Points

FEEDBACK = {"error-feedback": True, "error-feedback-decay": 0.9}


def in_turns() -> Trainable:
    made = make_model()
    return Trainable(made.model, made.parameters, turns=[["0.weight", "1.bias"], ["1.weight", "0.bias"]])


def stopped(federation: Federation, points: Points, **options: Any) -> None:
    with pytest.raises(Killed):
        federation.serve(points, **options)


def same(one: DistroStrategy, other: DistroStrategy) -> bool:
    mine, theirs = one.replica, other.replica
    return torch.equal(mine.values, theirs.values) and mine.version == theirs.version


# --- where it stops -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Federation]:
    def build() -> Federation:
        """Residuals at both ends and momentum: everything that is kept from one round to the next."""
        options = {"server_residual": True, "outer_momentum": 0.9}
        folder = tmp_path_factory.mktemp("small")
        return Federation(folder, rounds=2, nodes=2, run_config=FEEDBACK, strategy=options)

    return build


def test_it_may_stop_at_every_single_point(small: Callable[[], Federation]) -> None:
    """Around every push, reply, step, write, rename and removal, and between rounds."""
    points = Points()
    whole = small().serve(points)
    before_the_first = 0
    for place in range(len(points.passed)):
        federation = small()
        stopped(federation, Points(place))
        if not (federation.run / "checkpoint" / "checkpoint.json").exists():
            before_the_first += 1
            with pytest.raises(CheckpointError, match="start a new run"):
                federation.serve(resume=True)
            continue
        server = federation.serve(resume=True)
        assert same(server, whole), points.passed[place]
        assert server.progress.history() == [*whole.progress.history()], points.passed[place]
        unseen = 1500 if points.passed[place] == "after a reply" else 0  # it had been sent, and not been looked at
        assert server.ledger.total() >= federation.bytes_on_the_wire - unseen, points.passed[place]
        assert len(list((federation.run / "checkpoint").iterdir())) == 3
    assert 0 < before_the_first < 10
    assert {"before the step", "after the switch", "before the old files go", "after a push"} <= set(points.passed)


def test_it_may_stop_again_and_again(small: Callable[[], Federation]) -> None:
    federation, whole = small(), small().serve()
    stopped(federation, Points(20))
    for place in (3, 9, 9, 14):
        stopped(federation, Points(place), resume=True)
    server = federation.serve(resume=True)
    assert same(server, whole)
    assert [event["event"] for event in read_events(federation.run / "events.jsonl")[0]].count("resumed") == 5


def test_a_process_that_is_really_killed(small: Callable[[], Federation], tmp_path: Path) -> None:
    """SIGKILL while a member trains in round 2: no handler, no exit, no flush."""
    script = f"""
import os, signal
from pathlib import Path
from tests import federation
from tests.strategies import interrupted

def train(model, info):
    if info.round == 2 and federation.partition(info) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return federation.shift_train(model, info)

interrupted.shift_train = train
options = dict(server_residual=True, outer_momentum=0.9)
interrupted.Federation(Path({str(tmp_path)!r}), rounds=2, nodes=2, run_config={FEEDBACK!r}, strategy=options).serve()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    options = {"server_residual": True, "outer_momentum": 0.9}
    federation = Federation(tmp_path, rounds=2, nodes=2, run_config=FEEDBACK, strategy=options)
    server = federation.serve(resume=True)
    assert same(server, small().serve())
    events = [event["event"] for event in read_events(tmp_path / "run" / "events.jsonl")[0]]
    assert events.count("resumed") == 1
    # the killed process had sent two requests of round 2 and one reply had come
    assert server.ledger.total(round=2, direction="down", kind="update") > 0
    assert server.ledger.total(round=2) > server.ledger.total(round=1)


# --- what is kept from one round to the next -----------------------------------------------------------


@pytest.mark.parametrize(
    ("compressor", "options"),
    [
        ("dense", {"strategy": {"outer_momentum": 0.9, "outer_learning_rate": 0.7}}),
        ("topk", {"run_config": FEEDBACK, "strategy": {"server_residual": True, "aggregation": "contributors"}}),
        ("dct-topk", {"run_config": FEEDBACK}),
        ("subspace", {}),
        ("lowrank", {"run_config": FEEDBACK}),
        ("tracking", {"run_config": FEEDBACK, "strategy": {"server_residual": True}}),
        ("tracking-topk", {"run_config": FEEDBACK, "strategy": {"server_residual": True}}),
        ("quantized", {"run_config": FEEDBACK, "model": in_turns, "strategy": {"server_residual": True}}),
        ("quantized", {"nodes": 4, "strategy": {"fraction_train": 0.5}, "run_config": FEEDBACK}),
        ("quantized", {"stateless": True}),
    ],
    ids=[
        "momentum",
        "topk",
        "dct-topk",
        "subspace",
        "lowrank memory",
        "tracking",
        "tracking-topk",
        "turns",
        "half of the nodes",
        "stateless",
    ],
)
def test_whatever_a_run_keeps(compressor: str, options: dict[str, Any], tmp_path: Path) -> None:
    points = Points()
    whole = Federation(tmp_path / "whole", compressor, **options).serve(points)
    steps = [place for place, name in enumerate(points.passed) if name == "before the step"]
    pushes = [place for place, name in enumerate(points.passed) if name == "after a push"]
    closing = {"round 1 is closing": steps[0], "round 3 is closing": steps[2]}
    for name, place in {**closing, "round 2": steps[1] - 3, "end": pushes[-1]}.items():
        federation = Federation(tmp_path / name, compressor, **options)
        stopped(federation, Points(place))
        server = federation.serve(resume=True)
        assert same(server, whole), name
        assert not any(record.left_out for record in server.progress.history())
        if name in closing:  # every message that was counted had been sent, and every reply had come
            assert server.ledger.total() == federation.bytes_on_the_wire


def test_with_secure_aggregation(tmp_path: Path) -> None:
    """Masks and the members' ledgers go by Flower's id of the run, models and files by the first one."""
    from distro_fed.compression import make_compressor
    from distro_fed.strategies.secure_distro import SecureDistroStrategy
    from tests.strategies.secure_members import Members as SecureMembers

    def federation(name: str) -> Federation:
        members = SecureMembers(tmp_path / name / "keys")
        made = Federation(
            tmp_path / name, make_compressor("lowrank", rank=1, bits=8), nodes=4, kind=SecureDistroStrategy, rounds=2,
            run_config={"bits": 8, **FEEDBACK}, strategy={"roster": members.roster, "policy": members.policy},
        )  # fmt: skip
        made.node_configs = [{"secure-folder": str(own)} for own in members.folders]
        made.options["settings"] = RunSettings.from_run_config(made.config)
        return made

    points = Points()
    federation("whole").serve(points)
    broken = federation("broken")
    stopped(broken, Points(points.passed.index("before the step", points.passed.index("before the step") + 1)))
    server = broken.serve(resume=True)
    assert server.replica.version == 2
    assert not any(record.skipped for record in server.progress.history())


def test_rounds_that_were_not_saved_are_done_again(tmp_path: Path) -> None:
    """Members are ahead of the checkpoint then, and go back with the server."""
    points = Points()
    whole = Federation(tmp_path / "whole", rounds=5).serve(points)
    federation = Federation(tmp_path / "broken", rounds=5)
    steps = [place for place, name in enumerate(points.passed) if name == "before the step"]
    stopped(federation, Points(steps[2]), every=2)
    stopped(federation, Points(25), resume=True, every=2)
    server = federation.serve(resume=True, every=2)
    assert same(server, whole)
    assert server.ledger.total(kind="keyframe") > 0
    assert not any(record.left_out for record in server.progress.history())
    assert not server.progress.drifts


# --- what is refused, and what is told -----------------------------------------------------------------


def test_another_run_cannot_go_on(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "topk", rounds=1)
    federation.serve()
    with pytest.raises(CheckpointError, match=r"other settings: outer-momentum: 0.0 then, 0.9 now"):
        federation.serve(resume=True, outer_momentum=0.9)
    with pytest.raises(CheckpointError, match=r"another run: seed: 0 then, 5 now"):
        federation.serve(resume=True, seed=5)
    federation.rounds = 2
    assert federation.serve(resume=True, quorum=0.9).replica.version == 2  # these two may differ


def test_a_setting_that_a_later_release_has_added_stands_at_its_default(tmp_path: Path) -> None:
    before = RunSettings.from_run_config({"mode": "lora", "learning-rate": 0.1}).flat()
    del before["optimizer-state"]
    saved = Checkpoint({"settings": before}, {}, tmp_path)
    for state, words in (("fresh", ""), ("kept", "optimizer-state: 'fresh' then, 'kept' now")):
        now = RunSettings.from_run_config({"mode": "lora", "learning-rate": 0.1, "optimizer-state": state}).flat()
        with pytest.raises(CheckpointError, match=words) if words else nullcontext():
            check_settings(saved, now)
    with pytest.raises(CheckpointError, match=r"no-more: 1 then, '\(none\)' now"):
        check_settings(Checkpoint({"settings": {**before, "no-more": 1}}, {}, tmp_path), before)


def test_a_resumed_run_may_end_without_saving_but_not_before_what_is_done(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rounds=2)
    federation.serve()
    saved = read_checkpoint(tmp_path / "run" / "checkpoint")
    saved.facts["settings"] |= {"learning-rate": 0.1}  # as a server app with settings saves it
    server = DistroStrategy(compressor=federation.compressor, resume_from=saved, **federation.options)
    server.start(federation.grid(Points()), make_model(), 3)
    assert server.replica.version == 3
    federation.rounds = 1
    with pytest.raises(CheckpointError, match="has done 2 rounds, and num-server-rounds = 1 ends before"):
        federation.serve(resume=True)


def test_a_checkpoint_that_remembers_too_little_is_refused(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "tracking", rounds=1)
    federation.serve()
    saved = read_checkpoint(tmp_path / "run" / "checkpoint")
    known = len(saved.tensors["memory"])
    saved.tensors["memory"] = saved.tensors["memory"][1:].clone()
    server = DistroStrategy(compressor=federation.compressor, resume_from=saved, **federation.options)
    with pytest.raises(CheckpointError, match=f"remembers {known - 1} values of its updates, and tracking .* {known}:"):
        server.start(federation.grid(Points()), make_model(), 2)


def test_metrics_that_are_not_finite_do_not_stop_a_resume(tmp_path: Path) -> None:
    def run(saved: Checkpoint | None, rounds: int) -> DistroStrategy:
        server = DistroStrategy(
            compressor=federation.compressor, saver=Saver(folder), resume_from=saved, **federation.options
        )
        server.start(federation.grid(Points()), make_model(), rounds, evaluate_fn=lambda *_: MetricRecord(diverged))
        return server

    federation, folder = Federation(tmp_path), tmp_path / "run" / "checkpoint"
    diverged: dict[str, Any] = {"loss": math.nan, "losses": [1.0, math.inf]}
    run(None, 1)
    again = run(read_checkpoint(folder), 2).run_state.result.evaluate_metrics_serverapp
    assert set(again) == {0, 1, 2}
    assert math.isnan(again[0]["loss"])  # type: ignore[arg-type]


def test_bytes_of_a_run_that_has_only_to_be_evaluated_are_of_its_last_round(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rounds=1)
    federation.serve()
    assert federation.serve(resume=True).progress.current_round == 1


def test_the_report_s_figures_and_events_go_on(tmp_path: Path) -> None:
    federation, points = Federation(tmp_path, rounds=3), Points()
    Federation(tmp_path / "whole", rounds=3).serve(points)
    steps = [place for place, name in enumerate(points.passed) if name == "before the step"]
    stopped(federation, Points(steps[1]))
    server = federation.serve(resume=True)
    assert [record.round for record in server.progress.history()] == [1, 2, 3]
    assert server.progress.resumes == 1
    assert set(server.progress.held_out) == {0, 1, 2, 3}
    assert set(server.run_state.result.train_metrics_clientapp) == {1, 2, 3}
    events = read_events(tmp_path / "run" / "events.jsonl")[0]
    (resumed,) = [event for event in events if event["event"] == "resumed"]
    assert (resumed["round"], resumed["version"]) == (2, 1)
    rounds = [event["round"] for event in events if event["event"] == "round_finished"]
    assert rounds == [1, 2, 3]


def test_members_keep_their_names_when_flower_gives_them_new_ids() -> None:
    before = Members()
    for node_id, name in ((1, "bank"), (2, "clinic"), (3, "bank")):
        before.learn_name(node_id, name)
    after = Members()
    after.restore({**before.to_json(), "versions": [[1, 4], [2, 4], [3, 4]]})
    assert after.learn_name(2, "clinic") == "clinic"
    assert after.version(2) == 4
    assert [after.learn_name(node_id, "bank") for node_id in (7, 8, 9)] == ["bank", "bank (2)", "bank (3)"]
    assert set(after.names) == {2, 7, 8, 9}
    assert after.version(7) == 0
