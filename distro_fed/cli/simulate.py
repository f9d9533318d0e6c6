"""``distro-fed simulate``: run a Flower app folder in Flower's simulation runtime and show how it goes."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from distro_fed.cli.common import (
    LOG_FILE,
    RunConfigOption,
    RunsDirOption,
    VerboseOption,
    console,
    new_run_folder,
)
from distro_fed.cli.flower_runtime import CONNECTION, LocalSuperLink
from distro_fed.cli.run_config import FlowerApp, Value, parse_run_config, to_toml
from distro_fed.errors import DataNotFound, FederationError
from distro_fed.reporting.console import ProgressView, print_report
from distro_fed.reporting.events import read_events
from distro_fed.reporting.report_file import read_report
from distro_fed.reporting.run_folder import EVENTS_FILE, REPORT_FILE
from distro_fed.settings import RunSettings

POLL_SECONDS = 0.3

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_LINE = re.compile(r"(DEBUG|INFO|WARNING|ERROR)\s*:")


def simulate(
    app_dir: Annotated[Path, typer.Argument(help="Folder of a Flower app (pyproject.toml with [tool.flwr.app]).")],
    nodes: Annotated[int, typer.Option(min=1, help="Virtual clients.")] = 4,
    run_config: RunConfigOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the run (default: that of the app, numbered).")] = None,
    runs_dir: RunsDirOption = Path("runs"),
    cpus_per_client: Annotated[int, typer.Option(min=1, help="CPUs that one virtual client takes.")] = 1,
    verbose: VerboseOption = False,
) -> None:
    """Run a Flower app in the simulation runtime, offline and apart from ~/.flwr."""
    app = FlowerApp.load(app_dir)
    overrides = parse_run_config(run_config or [], app)
    check_before_start(app, overrides, nodes)
    run_folder = new_run_folder(runs_dir, name, app.name)
    run_simulation(app, run_folder, overrides=overrides, nodes=nodes, cpus_per_client=cpus_per_client, verbose=verbose)
    if (run_folder / REPORT_FILE).exists():
        print_report(read_report(run_folder / REPORT_FILE), console)
    console.print(f"Everything about this run: {run_folder}", soft_wrap=True)


def check_before_start(app: FlowerApp, overrides: Mapping[str, Value], nodes: int) -> None:
    """Find wrong settings now, not a minute later in every client.

    Only apps with the settings of this package are looked at; others have rules of their own.

    Raises
    ------
    SettingsError
        A setting is wrong.
    DataNotFound
        The run's data folder does not hold an organisation for each node.
    """
    config = {**app.config, **overrides}
    if not {"base-model", "compressor", "data-folder"} <= config.keys():
        return
    settings = RunSettings.from_run_config(config)
    folder = Path(settings.data.data_folder).expanduser() if settings.data.data_folder else None
    if folder is None:
        raise DataNotFound("data-folder is empty: name a folder with one subfolder for each organisation")
    if not folder.is_dir():
        raise DataNotFound(f"data-folder {str(folder)!r} is not a folder")
    found = sum(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())
    if found < nodes:
        raise DataNotFound(f"data-folder {str(folder)!r} has {found} organisations (subfolders) for {nodes} nodes")


def run_simulation(
    app: FlowerApp,
    run_folder: Path,
    *,
    overrides: Mapping[str, Value],
    nodes: int,
    cpus_per_client: int = 1,
    verbose: bool = False,
) -> None:
    """Run an app to its end and show its events; all processes are gone when this returns or raises.

    An app that has the settings ``run-dir`` and ``run-name`` gets the run's absolute folder and its name
    there; what it writes to ``events.jsonl`` in that folder is shown. The run's log goes to ``flower.log``.

    Parameters
    ----------
    app : FlowerApp
        What to run.
    run_folder : Path
        Exists.
    overrides : mapping
        Settings that differ from the app's defaults.
    nodes : int
        Virtual clients.
    cpus_per_client : int
        CPUs that one of them takes; as many as fit run at the same time.
    verbose : bool
        Show the log as it grows.

    Raises
    ------
    FederationError
        If Flower does not start the run, or the run does not end well. The message ends with the
        traceback from the log.
    """
    given = {"run-dir": str(run_folder.resolve()), "run-name": run_folder.name}
    settings = {**{key: value for key, value in given.items() if key in app.config}, **overrides}
    may_download = {**app.config, **settings}.get("allow-download") is True
    with _ending_signals_unwind(), LocalSuperLink({"HF_HUB_OFFLINE": "0"} if may_download else {}) as superlink:
        arguments = ["run", str(app.folder), CONNECTION]
        arguments += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus={cpus_per_client}"]
        if settings:
            config_file = superlink.home / "run-config.toml"
            config_file.write_text(to_toml(settings), encoding="utf-8")
            arguments += ["--run-config", str(config_file)]
        run_id = str(superlink.flwr(*arguments)["run-id"])
        with ProgressView(console) as view:
            _follow(superlink, run_id, run_folder, view, verbose)
        status = superlink.status(run_id)
        if status != "finished:completed":
            log = (run_folder / LOG_FILE).read_text(errors="replace")
            where = f"the run ended as {status!r}; its log: {run_folder / LOG_FILE}"
            raise FederationError(f"{where}\n{_last_traceback(log)}")


@contextmanager
def _ending_signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: after the processes of the run are stopped."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _follow(superlink: LocalSuperLink, run_id: str, run_folder: Path, view: ProgressView, verbose: bool) -> None:
    """Show events (and the log) until the run has ended."""
    log_path = run_folder / LOG_FILE
    stream = superlink.stream_log(run_id, log_path)
    events_offset = log_offset = 0
    try:
        while True:
            ended = stream.poll() is not None
            events, events_offset = read_events(run_folder / EVENTS_FILE, events_offset)
            for event in events:
                view.show(event)
            if verbose:
                log_offset = _print_log(log_path, log_offset)
            if ended and superlink.status(run_id).startswith("finished"):
                return
            if not superlink.is_alive():
                raise FederationError(f"the local SuperLink ended during the run:\n{superlink.log_tail()}")
            if ended:
                stream, log_offset = superlink.stream_log(run_id, log_path), 0
            time.sleep(POLL_SECONDS)
    finally:
        stream.terminate()
        with suppress(subprocess.TimeoutExpired):
            stream.wait(timeout=5)


def _print_log(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        complete, newline, _ = file.read().rpartition(b"\n")
    if complete:
        console.print(complete.decode(errors="replace"), markup=False, highlight=False, soft_wrap=True)
    return offset + len(complete) + len(newline)


def _last_traceback(log: str) -> str:
    """Last Python traceback in a log, without colours and what was logged after it; last lines if there is none."""
    lines = _COLOUR.sub("", log).splitlines()
    starts = [index for index, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not starts:
        return "\n".join(lines[-20:])
    traceback = lines[starts[-1] :]
    ends = [index for index, line in enumerate(traceback) if _LOG_LINE.match(line)]
    return "\n".join(traceback[: ends[0]] if ends else traceback)
