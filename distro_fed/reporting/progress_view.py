"""Shows a run's events as they come: a live table in a terminal, one plain line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from distro_fed.reporting.event_lines import event_line
from distro_fed.reporting.events import Event
from distro_fed.reporting.run_status import RunStatus
from distro_fed.reporting.status import StatusBuilder
from distro_fed.reporting.status_table import render_status


class ProgressView:
    """Context manager that shows events.

    Parameters
    ----------
    console : rich.console.Console
        Where to; whether it is a terminal decides how.
    clock : callable
        Unix seconds, for what changes between two events.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        self._console, self._clock = console, clock
        self._builder = StatusBuilder()
        self._spinner = Spinner("dots")
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

    @property
    def status(self) -> RunStatus:
        """Where the run stands after the events so far."""
        return self._builder.status()

    def show(self, event: Event) -> None:
        """Take in one event."""
        self._builder.add(event)
        if not self._console.is_terminal:
            line = event_line(event, self.status.rounds)
            if line is not None:
                self._console.print(Text(line), soft_wrap=True)

    def _render(self) -> RenderableType:
        run = self.status
        if not run.started:
            self._spinner.update(text=Text("starting Flower, its workers and the app"))
            return self._spinner
        bar = Table.grid(padding=(0, 1, 0, 0))
        bar.add_row(self._spinner, ProgressBar(total=run.rounds, completed=run.rounds_done, width=40))
        return Group(render_status(run, self._clock()), bar)
