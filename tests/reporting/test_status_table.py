from __future__ import annotations

import io

import pytest
from rich.console import Console

from distro_fed.reporting.events import Event
from distro_fed.reporting.status import status_of
from distro_fed.reporting.status_table import render_status
from tests.reporting.sample_events import (
    EVIL,
    RUN_FAILED,
    RUN_FINISHED,
    START,
    drift,
    finished,
    late_reply,
    no_answer,
    refused,
    reply,
    resumed,
    round_started,
    started,
    timed,
    traffic,
)

ROUND_ONE: list[Event] = [started(), round_started(1, "north", "south"), reply(1, "north"), reply(1, "south")]


def shown(*events: Event, seconds: float = 0.0, width: int = 120) -> str:
    """What is printed some seconds after the last event."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=False, width=width, color_system=None)
    console.print(render_status(status_of(timed(*events)), START + len(events) - 1 + seconds))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "starting: no event yet"),
        ([started()], "waiting for members, 10 s so far, last sign of life 10 s ago"),
        ([started(), round_started(1, "a", "b"), reply(1, "a")], "round 1/3, 1 of 2 are in after 11 s, 12 s so far"),
        ([*ROUND_ONE, finished(1)], "between rounds 1 and 2, 14 s so far, about 1 min 30 s left"),
        ([started(1), *ROUND_ONE[1:], finished(1, left=0.0)], "evaluating on held-out data"),
        ([started(1), *ROUND_ONE[1:], finished(1), RUN_FINISHED], "finished 1/1 rounds, 5.0 s in all\n"),
        ([*ROUND_ONE, RUN_FAILED], "failed in round 1/3: no � nodes, 4.0 s in all\n"),
    ],
)
def test_what_a_run_does(events: list[Event], words: str) -> None:
    assert words in shown(*events, seconds=10)


def test_who_is_late_and_why() -> None:
    text = shown(
        started(), round_started(1, "a", "b", "c", EVIL), reply(1, "a"), no_answer(1, "b"), no_answer(1, "c"),
        refused(1, EVIL, "wrong [b]layout[/b]"), finished(1), late_reply(1, "c"), round_started(2, "a", "b", EVIL),
        no_answer(2, "b"),
    )  # fmt: skip
    for line in ("training", "no answer in time (30 s)", "late in round 1: its round is closed", "2 late"):
        assert line in text
    assert "[red]evil�[2J" in text and "\x1b" not in text
    assert "no answer in time in round 1 (30 s)" in shown(
        started(), round_started(1, "a", "b"), reply(1, "a"), no_answer(1, "b"), finished(1), round_started(2, "a")
    )


def test_incidents_are_summed_up() -> None:
    text = shown(
        *ROUND_ONE, finished(1, skipped=True), resumed(2, version=0), round_started(2, "north", "south"),
        drift(2, "south"), refused(2, "south", "x"), refused(2, "north", "x"), finished(2, skipped=True),
    )  # fmt: skip
    assert "rounds skipped with too few replies: 1, 2" in text
    assert "replies left out: 2 (north, south)" in text
    assert "replicas that differed and were replaced: 1 (south)" in text
    assert "resumed from a checkpoint: 1" in text
    assert "skipped" not in shown(*ROUND_ONE, finished(1))


@pytest.mark.parametrize("width", [80, 120])
def test_losses_and_bytes(width: int) -> None:
    text = shown(*ROUND_ONE, traffic(1, north=3000, south=500), finished(1), width=width)
    row = next(line for line in text.splitlines() if "north" in line)
    assert row.split()[-6:] == ["2.5000", "2.7500", "3.00", "kB", "6.00", "kB"]
    total = next(line for line in text.splitlines() if line.split()[:1] == ["all"])
    assert total.split()[1:] == ["2.5000", "-", "3.50", "kB", "7.00", "kB"]
