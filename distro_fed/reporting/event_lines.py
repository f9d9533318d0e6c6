"""One plain line of text for each event, for logs and terminals that cannot redraw."""

from __future__ import annotations

from collections.abc import Callable

from distro_fed.reporting.events import Event
from distro_fed.reporting.run_status import RunStatus
from distro_fed.reporting.units import format_bytes, format_loss, format_seconds, printable


def event_line(event: Event, rounds: int) -> str | None:
    """What an event says; None for one that has no line.

    Parameters
    ----------
    event : dict
        As :func:`~distro_fed.reporting.events.read_events` returns it.
    rounds : int
        Rounds of the run; 0 if that is not known yet.
    """
    words = _LINES.get(event["event"])
    return None if words is None else words(event, f"/{rounds}" if rounds else "")


def run_line(run: RunStatus) -> str:
    """What is trained, and how."""
    return (
        f"{printable(run.name)}: {printable(run.mode)}, {printable(run.compressor)}, {run.rounds} rounds of "
        f"{run.local_steps} steps, {run.trainable:,} of {run.parameters:,} parameters trained"
    )


def _run_started(event: Event, of: str) -> str:
    names = ("name", "mode", "compressor", "rounds", "local_steps", "parameters", "trainable")
    return run_line(RunStatus(**{name: event[name] for name in names}))


def _resumed(event: Event, of: str) -> str:
    return f"resumed at round {event['round']}{of}, version {event['version']}"


def _round_started(event: Event, of: str) -> str:
    return f"round {event['round']}{of}: {len(event['clients'])} clients"


def _reply(event: Event, of: str) -> str:
    if not event["accepted"]:
        return f"{_who(event, of)}: left out: {printable(event['reason'])}"
    return f"{_who(event, of)}: {_losses(event)}, {_sizes(event)}, {format_seconds(event['seconds'])}"


def _no_answer(event: Event, of: str) -> str:
    waited = f" ({format_seconds(event['seconds'])})" if event["seconds"] else ""
    return f"{_who(event, of)}: {printable(event['reason'])}{waited}"


def _late_reply(event: Event, of: str) -> str:
    outcome = "taken" if event["accepted"] else f"refused: {printable(event['reason'])}"
    return f"{_who(event, of)}: its reply came late and is {outcome}"


def _drift(event: Event, of: str) -> str:
    return f"{_who(event, of)}: its replica of version {event['version']} differs and is replaced"


def _round_finished(event: Event, of: str) -> str:
    skipped = ", skipped: too few replies" if event["skipped"] else ""
    return (
        f"round {event['round']}{of} done in {format_seconds(event['seconds'])}: {_losses(event)}, "
        f"{_sizes(event)}{skipped}; about {format_seconds(event['eta_seconds'])} left"
    )


def _evaluation(event: Event, of: str) -> str:
    return f"after {_who(event, of)}: held-out loss {format_loss(event['held_out_loss'])}"


def _run_finished(event: Event, of: str) -> str:
    return f"run finished in {format_seconds(event['seconds'])}"


def _run_failed(event: Event, of: str) -> str:
    return f"run failed: {printable(event['error'])}"


_LINES: dict[str, Callable[[Event, str], str]] = {
    "run_started": _run_started,
    "resumed": _resumed,
    "round_started": _round_started,
    "reply": _reply,
    "no_answer": _no_answer,
    "late_reply": _late_reply,
    "drift": _drift,
    "round_finished": _round_finished,
    "evaluation": _evaluation,
    "run_finished": _run_finished,
    "run_failed": _run_failed,
}


def _who(event: Event, of: str) -> str:
    return f"round {event['round']}{of}  {printable(event['client'])}"


def _losses(event: Event) -> str:
    return f"loss {format_loss(event['loss'])}, held-out {format_loss(event['held_out_loss'])}"


def _sizes(event: Event) -> str:
    return f"{format_bytes(event['bytes_up'])} up, {format_bytes(event['bytes_down'])} down"
