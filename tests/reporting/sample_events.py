"""Events of a small run for tests."""

from __future__ import annotations

from distro_fed.reporting.events import Event

START = 1_700_000_000.0
#: tries to colour the terminal and to be markup
EVIL = "[red]evil\x1b[2J"


def started(rounds: int = 3) -> Event:
    return {"event": "run_started", "name": "trial", "mode": "lora", "compressor": "quantized bits=1", "rounds": rounds,
            "local_steps": 8, "parameters": 1_000_000, "trainable": 10_000}  # fmt: skip


def round_started(round_: int, *clients: str) -> Event:
    return {"event": "round_started", "round": round_, "clients": list(clients)}


def reply(round_: int, client: str, loss: float = 2.5, held_out: float | None = 2.75, up: int = 1000) -> Event:
    return {"event": "reply", "round": round_, "client": client, "accepted": True, "reason": "", "loss": loss,
            "held_out_loss": held_out, "seconds": 3.0, "bytes_up": up, "bytes_down": 2 * up}  # fmt: skip


def refused(round_: int, client: str, reason: str) -> Event:
    return {"event": "reply", "round": round_, "client": client, "accepted": False, "reason": reason, "loss": None,
            "held_out_loss": None, "seconds": None, "bytes_up": 5, "bytes_down": 6}  # fmt: skip


def no_answer(round_: int, client: str, seconds: float = 30.0, reason: str = "no answer in time") -> Event:
    return {"event": "no_answer", "round": round_, "client": client, "seconds": seconds, "reason": reason}


def late_reply(round_: int, client: str, reason: str = "its round is closed") -> Event:
    return {"event": "late_reply", "round": round_, "client": client, "accepted": False, "reason": reason}


def drift(round_: int, client: str, version: int = 1) -> Event:
    return {"event": "drift", "round": round_, "client": client, "version": version}


def traffic(round_: int, **bytes_up: int) -> Event:
    """Twice as much down as up."""
    down = {name: 2 * size for name, size in bytes_up.items()}
    return {"event": "traffic", "round": round_, "bytes_up": dict(bytes_up), "bytes_down": down}


def finished(round_: int, *, skipped: bool = False, left: float | None = 100.0, loss: float | None = 2.5) -> Event:
    return {"event": "round_finished", "round": round_, "loss": loss, "held_out_loss": None, "seconds": 4.0,
            "bytes_up": 1005, "bytes_down": 2006, "skipped": skipped, "eta_seconds": left}  # fmt: skip


def evaluation(round_: int, client: str, loss: float | None = 2.25) -> Event:
    return {"event": "evaluation", "round": round_, "client": client, "held_out_loss": loss}


def timed(*events: Event) -> list[Event]:
    """The events, one a second."""
    return [{"time": START + number, **event} for number, event in enumerate(events)]


RUN_FINISHED: Event = {"event": "run_finished", "seconds": 61.0}
RUN_FAILED: Event = {"event": "run_failed", "error": "no \x07 nodes"}
SOMETHING_NEWER: Event = {"event": "something_newer"}


def resumed(round_: int, version: int, rounds: int = 3) -> Event:
    return {"event": "resumed", "round": round_, "version": version, "rounds": rounds}
