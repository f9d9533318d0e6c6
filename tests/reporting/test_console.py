import io
from dataclasses import replace

import pytest
from rich.console import Console

from distro_fed.reporting.console import ProgressView, print_report
from distro_fed.reporting.events import Event
from tests.reporting.sample_report import sample

EVENTS: list[Event] = [
    {"event": "run_started", "name": "trial", "mode": "lora", "compressor": "quantized bits=1", "rounds": 2,
     "local_steps": 8, "parameters": 1_000_000, "trainable": 10_000},
    {"event": "round_started", "round": 1, "clients": ["north", "[red]evil\x1b[2J"]},
    {"event": "reply", "round": 1, "client": "north", "accepted": True, "reason": "", "loss": 2.5,
     "held_out_loss": 2.75, "seconds": 3.0, "bytes_up": 1000, "bytes_down": 2000},
    {"event": "reply", "round": 1, "client": "[red]evil\x1b[2J", "accepted": False, "reason": "wrong [b]layout[/b]",
     "loss": None, "held_out_loss": None, "seconds": None, "bytes_up": 5, "bytes_down": 6},
    {"event": "round_finished", "round": 1, "loss": 2.5, "held_out_loss": None, "seconds": 4.0, "bytes_up": 1005,
     "bytes_down": 2006, "skipped": True, "eta_seconds": 100.0},
    {"event": "evaluation", "round": 1, "client": "north", "held_out_loss": 2.25},
    {"event": "something_newer"},
    {"event": "run_finished", "seconds": 61.0},
    {"event": "run_failed", "error": "no \x07 nodes"},
]  # fmt: skip


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


def test_the_live_view_counts_down_and_sums_bytes() -> None:
    now = 0.0
    _, console = output(terminal=True)
    view = ProgressView(console, clock=lambda: now)
    for event in EVENTS[:5] + EVENTS[2:3]:
        view.show(event)
    now = 30.0
    with console.capture() as capture:
        console.print(view._render())
    text = capture.get()
    assert "about 1 min 10 s left" in text
    assert "30 s so far" in text
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


def test_names_from_outside_cannot_change_the_table() -> None:
    report = sample(clients=["north", "south", "[bold]x[/bold]\x1b[2J"])
    stream, console = output(terminal=False)
    print_report(report, console)
    assert "[bold]x[/bold]�[2J" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
