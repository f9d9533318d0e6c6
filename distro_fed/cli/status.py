"""``distro-fed status``: where a run stands, from its events alone."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from distro_fed.cli.common import VerboseOption, console
from distro_fed.errors import DistroFedError
from distro_fed.reporting.events import read_events
from distro_fed.reporting.progress_view import ProgressView
from distro_fed.reporting.run_folder import EVENTS_FILE
from distro_fed.reporting.status import StatusBuilder, status_of
from distro_fed.reporting.status_table import render_status

POLL_SECONDS = 0.5


def status(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/demo-lora.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table; with --watch one line whenever it changes.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on until the run is over; Ctrl-C ends it earlier.")
    ] = False,
    verbose: VerboseOption = False,
) -> None:
    """Print round, members, losses, bytes and the time left of a run that goes on, has ended or has failed."""
    events_file = run_dir / EVENTS_FILE
    if not events_file.exists() and not (watch and run_dir.is_dir()):
        raise DistroFedError(f"{events_file} does not exist: name the folder of a run that has been started")
    if not watch:
        run, now = status_of(read_events(events_file)[0]), time.time()
        if as_json:
            typer.echo(json.dumps(run.to_dict(now), indent=2, ensure_ascii=False))
        else:
            console.print(render_status(run, now))
    elif as_json:
        _watch_as_json(events_file)
    else:
        _watch(events_file)


def _watch(events_file: Path) -> None:
    offset = 0
    with ProgressView(console) as view:
        while not view.status.is_over:
            events, offset = read_events(events_file, offset)
            for event in events:
                view.show(event)
            time.sleep(POLL_SECONDS)
    if console.is_terminal:  # the live table is gone with its view
        console.print(render_status(view.status, time.time()))


def _watch_as_json(events_file: Path) -> None:
    offset, builder = 0, StatusBuilder()
    while not builder.status().is_over:
        events, offset = read_events(events_file, offset)
        for event in events:
            builder.add(event)
        if events:
            typer.echo(json.dumps(builder.status().to_dict(time.time()), ensure_ascii=False))
        time.sleep(POLL_SECONDS)
