import io
from dataclasses import replace

import pytest
from rich.console import Console

from distro_fed.reporting.console import ProgressView, print_report
from tests.reporting.sample_events import (
    EVIL,
    RUN_FAILED,
    RUN_FINISHED,
    SOMETHING_NEWER,
    START,
    drift,
    evaluation,
    finished,
    late_reply,
    no_answer,
    refused,
    reply,
    resumed,
    round_started,
    started,
    timed,
)
from tests.reporting.sample_report import sample

EVENTS = timed(
    started(2), round_started(1, "north", EVIL), reply(1, "north"), refused(1, EVIL, "wrong [b]layout[/b]"),
    finished(1, skipped=True), evaluation(1, "north"), SOMETHING_NEWER, RUN_FINISHED, RUN_FAILED,
)  # fmt: skip


def output(terminal: bool, width: int = 120) -> tuple[io.StringIO, Console]:
    stream = io.StringIO()
    return stream, Console(file=stream, force_terminal=terminal, width=width, color_system=None)


def test_plain_lines_when_nobody_watches() -> None:
    stream, console = output(terminal=False)
    with ProgressView(console) as view:
        for event in EVENTS:
            view.show(event)
    assert stream.getvalue().splitlines() == [
        "trial: lora, quantized bits=1, 2 rounds of 8 steps, 10,000 of 1,000,000 parameters trained",
        "round 1/2: 2 clients",
        "round 1/2  north: loss 2.5000, held-out 2.7500, 1.00 kB up, 2.00 kB down, 3.0 s",
        "round 1/2  [red]evil�[2J: left out: wrong [b]layout[/b]",
        "round 1/2 done in 4.0 s: loss 2.5000, held-out -, 1.00 kB up, 2.01 kB down, skipped: too few replies; "
        "about 1 min 40 s left",
        "after round 1/2  north: held-out loss 2.2500",
        "run finished in 1 min 01 s",
        "run failed: no � nodes",
    ]


def test_lines_of_what_goes_wrong() -> None:
    stream, console = output(terminal=False)
    with ProgressView(console) as view:
        for event in timed(
            started(9), resumed(4, version=3, rounds=9), no_answer(4, "north", 90.0, "busy\x1b"),
            late_reply(3, "north"), late_reply(3, "west") | {"accepted": True}, drift(4, EVIL, version=3),
        ):  # fmt: skip
            view.show(event)
    assert stream.getvalue().splitlines()[1:] == [
        "resumed at round 4/9, version 3",
        "round 4/9  north: busy� (1 min 30 s)",
        "round 3/9  north: its reply came late and is refused: its round is closed",
        "round 3/9  west: its reply came late and is taken",
        "round 4/9  [red]evil�[2J: its replica of version 3 differs and is replaced",
    ]


def test_the_live_view_counts_down_and_sums_bytes() -> None:
    now = START + 4
    _, console = output(terminal=True)
    view = ProgressView(console, clock=lambda: now)
    for event in EVENTS[:5] + EVENTS[2:3]:
        view.show(event)
    now = START + 34
    with console.capture() as capture:
        console.print(view._render())
    text = capture.get()
    assert "about 1 min 10 s left" in text
    assert "34 s so far" in text
    assert "2.00 kB" in text and "4.00 kB" in text
    assert "left out: wrong [b]layout[/b]" in text
    assert "[red]evil�[2J" in text


def test_the_live_view_starts_and_stops_in_a_terminal() -> None:
    stream, console = output(terminal=True)
    with ProgressView(console) as view:
        view.show(EVENTS[0])
    assert "starting Flower" in stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_final_table(width: int) -> None:
    stream, console = output(terminal=False, width=width)
    print_report(replace(sample(), model_path="runs/trial/model"), console)
    text = stream.getvalue()
    for expected in (
        "north", "2.5000", "1.5000", "-1.0000", "3.00 kB", "1.60 kB", "4.60 kB", "R1", "1,760x", "R2", "14,100x",
        "R3", "7,030x", "1,330x", "2,580x", "rounds 2", "Model: runs/trial/model",
        "Round 2 without south: loss is not finite",
    ):  # fmt: skip
        assert expected in text, expected


def test_the_final_table_says_what_happened_besides() -> None:
    stream, console = output(terminal=False)
    print_report(sample(drifts={EVIL: 2}, resumed=1), console)
    assert "replica differed and was replaced 2 times: [red]evil�[2J" in stream.getvalue()
    assert "run was resumed from a checkpoint 1 times\n" in stream.getvalue()


def test_names_from_outside_cannot_change_the_table() -> None:
    report = sample(clients=["north", "south", "[bold]x[/bold]\x1b[2J"])
    stream, console = output(terminal=False)
    print_report(report, console)
    assert "[bold]x[/bold]�[2J" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
