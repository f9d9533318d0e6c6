"""Start a run at a SuperLink of this machine, show its events as they come, and tell why it failed if it did."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from distro_fed.cli.common import LOG_FILE, console
from distro_fed.cli.flower_runtime import CONNECTION, SuperLink
from distro_fed.cli.run_config import FlowerApp, Value, to_toml
from distro_fed.errors import FederationError
from distro_fed.reporting.console import ProgressView
from distro_fed.reporting.events import read_events
from distro_fed.reporting.run_folder import EVENTS_FILE

POLL_SECONDS = 0.3

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_LINE = re.compile(r"(DEBUG|INFO|WARNING|ERROR)\s*:")


def settings_of_run(app: FlowerApp, run_folder: Path, overrides: Mapping[str, Value]) -> dict[str, Value]:
    """Settings that differ from the app's defaults; an app with ``run-dir`` and ``run-name`` is told the run's own."""
    given = {"run-dir": str(run_folder.resolve()), "run-name": run_folder.name}
    return {**{key: value for key, value in given.items() if key in app.config}, **overrides}


def hub_environment(app: FlowerApp, settings: Mapping[str, Value]) -> dict[str, str]:
    """Variables for processes of a run that may ask the hub, if it may."""
    return {"HF_HUB_OFFLINE": "0"} if {**app.config, **settings}.get("allow-download") is True else {}


def start_run(
    superlink: SuperLink, app: FlowerApp, settings: Mapping[str, Value], arguments: Sequence[str] = ()
) -> str:
    """``flwr run``; returns the id of the run."""
    command = ["run", str(app.folder), CONNECTION, *arguments]
    if settings:
        config_file = superlink.home / "run-config.toml"
        config_file.write_text(to_toml(settings), encoding="utf-8")
        command += ["--run-config", str(config_file)]
    return str(superlink.flwr(*command)["run-id"])


def run_to_its_end(
    superlink: SuperLink,
    app: FlowerApp,
    run_folder: Path,
    settings: Mapping[str, Value],
    arguments: Sequence[str] = (),
    *,
    verbose: bool = False,
) -> None:
    """Start a run and show what it writes to ``events.jsonl`` in its folder, until it ends.

    Parameters
    ----------
    superlink : SuperLink
        Running.
    app : FlowerApp
    run_folder : Path
        Its log goes to ``flower.log`` there.
    settings : mapping
        As of :func:`settings_of_run`.
    arguments : sequence of str
        More of ``flwr run``.
    verbose : bool
        Show the log as it grows.

    Raises
    ------
    FederationError
        If Flower does not start the run, or the run does not end well. The message ends with the
        traceback from the log.
    """
    run_id = start_run(superlink, app, settings, arguments)
    with ProgressView(console) as view:
        _follow(superlink, run_id, run_folder, view, verbose)
    status = superlink.status(run_id)
    if status != "finished:completed":
        log = (run_folder / LOG_FILE).read_text(errors="replace")
        where = f"the run ended as {status!r}; its log: {run_folder / LOG_FILE}"
        raise FederationError(f"{where}\n{last_traceback(log)}")


@contextmanager
def ending_signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: after the processes of the run are stopped.

    A signal that this process was told to ignore, such as SIGHUP under ``nohup``, stays ignored.
    """

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    heeded = (number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN)
    old = {number: signal.signal(number, unwind) for number in heeded}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _follow(superlink: SuperLink, run_id: str, run_folder: Path, view: ProgressView, verbose: bool) -> None:
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
                raise FederationError(f"the SuperLink ended during the run:\n{superlink.log_tail()}")
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


def last_traceback(log: str) -> str:
    """Last Python traceback in a log, without colours and what was logged after it; last lines if there is none."""
    lines = _COLOUR.sub("", log).splitlines()
    starts = [index for index, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not starts:
        return "\n".join(lines[-20:])
    traceback = lines[starts[-1] :]
    ends = [index for index, line in enumerate(traceback) if _LOG_LINE.match(line)]
    return "\n".join(traceback[: ends[0]] if ends else traceback)
