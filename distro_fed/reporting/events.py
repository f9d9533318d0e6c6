"""Progress of a run as JSON lines: one process appends, others follow the file.

==================  ==================================================================================
event               fields besides ``event`` and ``time`` (unix seconds)
==================  ==================================================================================
``run_started``     name, mode, compressor, rounds, local_steps, parameters, trainable
``resumed``         round (the next one), version, rounds: what was said of this round before is void
``round_started``   round, clients (names)
``reply``           round, client, accepted, reason, loss, held_out_loss, seconds, bytes_up, bytes_down
``no_answer``       round, client, seconds (waited), reason
``late_reply``      round (it was for), client, accepted, reason
``drift``           round, client, version: the client's replica differs and is replaced
``traffic``         round, bytes_up, bytes_down (of the whole run so far, by client)
``round_finished``  round, loss, held_out_loss, seconds, bytes_up, bytes_down, skipped, eta_seconds
``evaluation``      round, client, held_out_loss
``run_finished``    seconds
``run_failed``      error
==================  ==================================================================================

A loss that is unknown or not finite is ``null``. Bytes are those of that reply or of that round, but for ``traffic``,
which comes at the end of a round and of the run. It has what replies cannot have: requests without an answer, late
replies, stages of secure aggregation, the last evaluation.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from distro_fed.errors import DistroFedError

FIELDS: dict[str, tuple[str, ...]] = {
    "run_started": ("name", "mode", "compressor", "rounds", "local_steps", "parameters", "trainable"),
    "resumed": ("round", "version", "rounds"),
    "round_started": ("round", "clients"),
    "reply": (
        *("round", "client", "accepted", "reason", "loss", "held_out_loss"),
        *("seconds", "bytes_up", "bytes_down"),
    ),
    "no_answer": ("round", "client", "seconds", "reason"),
    "late_reply": ("round", "client", "accepted", "reason"),
    "drift": ("round", "client", "version"),
    "traffic": ("round", "bytes_up", "bytes_down"),
    "round_finished": (
        *("round", "loss", "held_out_loss", "seconds", "bytes_up", "bytes_down"),
        *("skipped", "eta_seconds"),
    ),
    "evaluation": ("round", "client", "held_out_loss"),
    "run_finished": ("seconds",),
    "run_failed": ("error",),
}

Event = dict[str, Any]


class EventWriter:
    """Appends events to a file and flushes each line, so that a reader sees it at once.

    The file is locked (``flock``) until it is closed: two servers on one run folder would delete each other's
    checkpoints. A last line that a killed process left half written is cut off on opening.

    Parameters
    ----------
    path : Path
        File to append to; folders above it are made.
    listeners : sequence of callable, optional
        Called with each event after it is written. They must not raise.

    Raises
    ------
    DistroFedError
        Another writer has it open.
    """

    def __init__(self, path: Path, listeners: Sequence[Callable[[Event], None]] = ()) -> None:
        self._listeners = listeners
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            _lock(self._file.fileno())
        except BlockingIOError as error:
            self._file.close()
            raise DistroFedError(
                f"{path} is being written by another process: a run goes on in this folder; wait for its end, stop it, "
                "or name another folder"
            ) from error
        _cut_half_line(self._file.fileno())

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the time of now.

        Raises
        ------
        DistroFedError
            If the kind of event is unknown or one of its fields is missing.
        """
        if event not in FIELDS:
            raise DistroFedError(f"unknown event {event!r}; known: {', '.join(FIELDS)}")
        missing = [name for name in FIELDS[event] if name not in fields]
        if missing:
            raise DistroFedError(f"event {event!r} lacks {', '.join(missing)}")
        record = {"event": event, "time": time.time(), **fields}
        clean = {key: finite_or_null(value) for key, value in record.items()}
        self._file.write(json.dumps(clean, allow_nan=False).encode() + b"\n")
        self._file.flush()
        for listener in self._listeners:
            listener(clean)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Events from ``offset`` on, and the offset to go on from.

    A line without its end is left for the next call; a file that does not exist yet has no events.

    Parameters
    ----------
    path : Path
        File of an :class:`EventWriter`.
    offset : int
        Bytes already read.

    Raises
    ------
    DistroFedError
        If a complete line is not an event.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    complete, newline, _ = data.rpartition(b"\n")
    events: list[Event] = []
    for line in complete.splitlines():
        try:
            event = json.loads(line)
        except ValueError as error:
            raise DistroFedError(f"{path} holds a line that is not JSON: {line[:80]!r}") from error
        if not isinstance(event, dict) or "event" not in event:
            raise DistroFedError(f"{path} holds a line that is not an event: {line[:80]!r}")
        events.append(event)
    return events, offset + len(complete) + len(newline)


def finite_or_null(value: object) -> object:
    """Copy ``value`` with every float that JSON does not know (NaN, infinity) as ``None``."""
    if isinstance(value, dict):
        return {str(key): finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(item) for item in value]
    if isinstance(value, float):
        # float() turns a numpy.float64 (a subclass of float) into the plain type
        return float(value) if math.isfinite(value) else None
    return value


def _lock(descriptor: int) -> None:
    """Keep a file for this process alone, where the file system can."""
    import fcntl  # not on every system; readers need none of it

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems know no locks
        return


def _cut_half_line(descriptor: int) -> None:
    end = os.fstat(descriptor).st_size
    keep = end
    while keep:
        start = max(0, keep - 65536)
        newline = os.pread(descriptor, keep - start, start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep < end:
        os.ftruncate(descriptor, keep)
