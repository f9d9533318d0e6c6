"""What several commands share: the console, common options, and folders for results."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console

from distro_fed.errors import SettingsError

console = Console()
error_console = Console(stderr=True)

#: what a run's folder holds
LOG_FILE = "flower.log"

_VERBOSE = "distro_fed.verbose"


def _note_verbose(context: typer.Context, value: bool) -> bool:
    if value:
        context.meta[_VERBOSE] = True
    return value


def is_verbose(context: click.Context) -> bool:
    """Whether ``--verbose`` was given to the command that ran in this context."""
    return bool(context.meta.get(_VERBOSE))


def _use_cache(folder: Path | None) -> Path | None:
    if folder is not None:
        os.environ["DISTRO_FED_CACHE"] = str(folder.expanduser().resolve())  # also for the processes of a run
    return folder


VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Show logs, and tracebacks of errors.", callback=_note_verbose)
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of wheels and models (default: DISTRO_FED_CACHE, or the user's cache).", callback=_use_cache
    ),
]
RunConfigOption = Annotated[
    list[str] | None, typer.Option("--run-config", "-c", help="Settings of the app: 'key=value key2=value2'.")
]
RunsDirOption = Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")]


def new_run_folder(runs_dir: Path, name: str | None, default: str) -> Path:
    """Make the empty folder of a new run and return its absolute path.

    Without a name it is called after ``default``, with the first free number behind it.

    Raises
    ------
    SettingsError
        If the name is not a plain folder name, or that run exists already.
    """
    if name is not None and not re.fullmatch(r"[\w][\w.+-]*", name):
        raise SettingsError(f"run name {name!r}: use letters, digits, '_', '-', '+' and '.', without a '/'")
    runs_dir = runs_dir.resolve()
    number = 1
    while True:
        folder = runs_dir / (name or (default if number == 1 else f"{default}-{number}"))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if name is not None:
                raise SettingsError(f"run {folder} exists already: choose another --name, or remove it") from None
            number += 1
        else:
            return folder
