from __future__ import annotations

from collections.abc import Mapping

import pytest

from distro_fed.reporting.events import Event
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.reporting.report import Losses, RoundRecord, build_report
from distro_fed.reporting.trackers import TrackerFeed
from tests.reporting.sample_events import (
    EVIL,
    RUN_FAILED,
    RUN_FINISHED,
    evaluation,
    finished,
    no_answer,
    refused,
    reply,
    resumed,
    round_started,
    started,
    timed,
    traffic,
)


class Notebook:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: dict[int, dict[str, float]] = {}
        self.failed: bool | None = None

    def log(self, values: Mapping[str, float], round_: int) -> None:
        assert values
        self.rounds.setdefault(round_, {}).update(values)

    def finish(self, *, failed: bool) -> None:
        self.failed = failed


def told(*events: Event, past: int = 0) -> Notebook:
    """What a tracker is told of events, the first of which have been before it was opened."""
    notebook, everything = Notebook(), timed(*events)
    feed = TrackerFeed(notebook, everything[:past])
    for event in everything[past:]:
        feed(event)
    feed.close()
    return notebook


def test_losses_stand_at_the_round_after_which_they_hold() -> None:
    rounds = told(
        started(2), round_started(1, "a", "b"), reply(1, "a", 3.0, 2.0), reply(1, "b", 3.0, 4.0), finished(1, loss=3.0),
        round_started(2, "a", "b"), reply(2, "a", 2.0, None), reply(2, "b", 2.0, 3.0), finished(2, loss=2.0),
        evaluation(2, "a", 1.0), evaluation(2, "b", 1.5), RUN_FINISHED,
    ).rounds  # fmt: skip
    held_out = {
        round_: {name: value for name, value in values.items() if name.startswith("held-out")}
        for round_, values in rounds.items()
    }
    assert held_out == {
        0: {"held-out-loss": 3.0, "held-out-loss/a": 2.0, "held-out-loss/b": 4.0},
        1: {"held-out-loss": 3.0, "held-out-loss/b": 3.0},
        2: {"held-out-loss": 1.25, "held-out-loss/a": 1.0, "held-out-loss/b": 1.5},
    }
    assert [rounds[round_].get("train-loss") for round_ in (0, 1, 2)] == [None, 3.0, 2.0]


def test_what_does_not_go_well_is_counted() -> None:
    rounds = told(
        started(), round_started(1, "a", "b", EVIL), reply(1, "a"), no_answer(1, "b"), refused(1, EVIL, "x"),
        finished(1), round_started(2, "a"), finished(2, skipped=True, loss=None),
    ).rounds  # fmt: skip
    assert (rounds[1]["left-out"], rounds[1]["skipped"], rounds[1]["seconds"]) == (2, 0, 4.0)
    assert rounds[2]["skipped"] == 1
    assert "train-loss" not in rounds[2]
    assert rounds[2]["bytes-up/[red]evil\N{REPLACEMENT CHARACTER}[2J"] == 5


def test_a_loss_that_is_unknown_is_not_logged() -> None:
    rounds = told(started(1), round_started(1, "a"), reply(1, "a"), finished(1), evaluation(1, "a", None), RUN_FINISHED)
    assert not any(name.startswith("held-out") for name in rounds.rounds[1])


def test_bytes_and_ratios_are_those_of_the_report() -> None:
    """Three rounds, one of them skipped and one with a part of the members."""
    ledger = TrafficLedger()
    for client, size in (("a", 5000), ("b", 3000)):
        ledger.record(round=1, client=client, direction="up", kind="update", size=size)
        ledger.record(round=1, client=client, direction="down", kind="update", size=2 * size)
    nothing = Losses.of({})
    history = [RoundRecord(1, None, nothing, asked=2), RoundRecord(2, None, nothing, skipped=True, asked=2),
               RoundRecord(3, None, nothing, asked=1)]  # fmt: skip
    report = build_report(
        name="trial", mode="lora", compressor="x", local_steps=8, clients=["a", "b"], ledger=ledger, history=history,
        loss_before={}, loss_after={}, parameters=1_000_000, trainable_parameters=10_000, learning_rate=1.0, seed=0,
        seconds=1.0,
    )  # fmt: skip
    end = told(
        started(3), round_started(1, "a", "b"), reply(1, "a"), reply(1, "b"), finished(1), round_started(2, "a", "b"),
        finished(2, skipped=True), round_started(3, "a"), finished(3), traffic(3, a=5000, b=3000), RUN_FINISHED,
    ).rounds[3]  # fmt: skip
    assert (end["bytes-up"], end["bytes-up/a"], end["bytes-down/b"]) == (4000, 5000, 6000)
    assert end["ratio/r1"] == pytest.approx(report.ratio_fedavg_full_bf16)
    assert end["ratio/r2"] == pytest.approx(report.ratio_allreduce_bf16)
    assert end["ratio/r3"] == pytest.approx(report.ratio_distro_report)


def test_a_resumed_run_tells_only_what_is_new_and_counts_everything() -> None:
    first = [started(3), round_started(1, "a"), reply(1, "a"), traffic(1, a=1000), finished(1), round_started(2, "a"),
             reply(2, "a"), finished(2), round_started(3, "a")]  # fmt: skip
    again = [
        resumed(2, version=1),
        round_started(2, "a"),
        reply(2, "a"),
        traffic(2, a=3500),
        finished(2),
        RUN_FINISHED,
    ]
    notebook = told(*first, *again, past=len(first))
    assert sorted(notebook.rounds) == [1, 2]
    assert set(notebook.rounds[1]) == {"held-out-loss", "held-out-loss/a"}
    two_rounds_of_r1 = 2 * 2 * 2 * 1_000_000
    assert notebook.rounds[2]["ratio/r1"] == pytest.approx(two_rounds_of_r1 / (3 * 3500))


@pytest.mark.parametrize(("end", "failed"), [([RUN_FINISHED], False), ([RUN_FAILED], True), ([], True)])
def test_the_tracker_is_told_how_the_run_ended(end: list[Event], failed: bool) -> None:
    assert told(started(), *end).failed is failed
