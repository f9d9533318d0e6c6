"""Shows a run's events as they come: a live table in a terminal, one plain line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from distro_fed.reporting.events import Event
from distro_fed.reporting.units import UNKNOWN, format_bytes, format_loss, format_seconds, printable


@dataclass(slots=True)
class _Client:
    state: str = ""
    loss: float | None = None
    held_out_loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0


class ProgressView:
    """Context manager that shows events.

    Parameters
    ----------
    console : rich.console.Console
        Where to; whether it is a terminal decides how.
    clock : callable
        Seconds; for the time left between two events.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._spinner = Spinner("dots")
        self._clients: dict[str, _Client] = {}
        self._title = ""
        self._now = "starting Flower, its workers and the app"
        self._rounds = self._done = 0
        self._started = clock()
        self._ends: float | None = None
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, event: Event) -> None:
        """Take in one event. An event of an unknown kind, as a newer release may write, is passed over."""
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is None:
            return
        line = handler(event)
        if not self._console.is_terminal:
            self._console.print(Text(line), soft_wrap=True)

    def _on_run_started(self, event: Event) -> str:
        self._rounds = event["rounds"]
        self._title = (
            f"{printable(event['name'])}: {printable(event['mode'])}, {printable(event['compressor'])}, "
            f"{event['rounds']} rounds of {event['local_steps']} steps, "
            f"{event['trainable']:,} of {event['parameters']:,} parameters trained"
        )
        return self._title

    def _on_round_started(self, event: Event) -> str:
        for name in event["clients"]:
            self._client(name).state = "training"
        self._now = f"round {self._count(event['round'])}"
        return f"{self._now}: {len(event['clients'])} clients"

    def _on_reply(self, event: Event) -> str:
        client = self._client(event["client"])
        client.bytes_up += event["bytes_up"]
        client.bytes_down += event["bytes_down"]
        where = f"round {self._count(event['round'])}  {printable(event['client'])}"
        if not event["accepted"]:
            client.state = f"left out: {printable(event['reason'])}"
            return f"{where}: {client.state}"
        client.state = f"done in {format_seconds(event['seconds'])}"
        client.loss = event["loss"]
        client.held_out_loss = client.held_out_loss if event["held_out_loss"] is None else event["held_out_loss"]
        return f"{where}: {_losses(event)}, {_sizes(event)}, {format_seconds(event['seconds'])}"

    def _on_round_finished(self, event: Event) -> str:
        self._done = event["round"]
        self._ends = None if event["eta_seconds"] is None else self._clock() + event["eta_seconds"]
        skipped = ", skipped: too few replies" if event["skipped"] else ""
        return (
            f"round {self._count(event['round'])} done in {format_seconds(event['seconds'])}: {_losses(event)}, "
            f"{_sizes(event)}{skipped}; about {format_seconds(event['eta_seconds'])} left"
        )

    def _on_evaluation(self, event: Event) -> str:
        self._now = "evaluating on held-out data"
        self._client(event["client"]).held_out_loss = event["held_out_loss"]
        return (
            f"after round {self._count(event['round'])}  {printable(event['client'])}: "
            f"held-out loss {format_loss(event['held_out_loss'])}"
        )

    def _on_run_finished(self, event: Event) -> str:
        self._now = "finished"
        return f"run finished in {format_seconds(event['seconds'])}"

    def _on_run_failed(self, event: Event) -> str:
        self._now = f"failed: {printable(event['error'])}"
        return f"run {self._now}"

    def _client(self, name: str) -> _Client:
        return self._clients.setdefault(name, _Client())

    def _count(self, number: int) -> str:
        return f"{number}/{self._rounds}" if self._rounds else str(number)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self._title, style="bold")] if self._title else []
        if self._clients:
            parts.append(self._table())
        status = Table.grid(padding=(0, 2, 0, 0))
        self._spinner.update(text=Text(self._now))
        cells: list[RenderableType] = [self._spinner]
        if self._rounds:
            cells.append(ProgressBar(total=self._rounds, completed=self._done, width=30))
        cells.append(Text(f"{format_seconds(self._clock() - self._started)} so far", style="dim"))
        if self._ends is not None and self._done < self._rounds:
            left = max(0.0, self._ends - self._clock())
            cells.append(Text(f"about {format_seconds(left)} left", style="dim"))
        status.add_row(*cells)
        return Group(*parts, status)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("organisation", no_wrap=True)
        table.add_column("state", overflow="ellipsis", no_wrap=True, min_width=16)
        for title in ("loss", "held-out loss", "bytes up", "bytes down"):
            table.add_column(title, justify="right", no_wrap=True)
        for name, client in self._clients.items():
            bad = client.state.startswith("left out")
            table.add_row(
                Text(printable(name)),
                Text(client.state, style="yellow" if bad else "dim" if client.state == "training" else ""),
                format_loss(client.loss),
                format_loss(client.held_out_loss),
                format_bytes(client.bytes_up) if client.bytes_up else UNKNOWN,
                format_bytes(client.bytes_down) if client.bytes_down else UNKNOWN,
            )
        return table


def _losses(event: dict[str, Any]) -> str:
    return f"loss {format_loss(event['loss'])}, held-out {format_loss(event['held_out_loss'])}"


def _sizes(event: dict[str, Any]) -> str:
    return f"{format_bytes(event['bytes_up'])} up, {format_bytes(event['bytes_down'])} down"
