"""What this member has answered, in an append-only file: each stage of an attempt once, one masked vector a round.

The state that travels between the stages may be lost or restored from an old copy; the ledger may not. A line is on the
disk before the answer it stands for leaves the machine, so a crash in between costs this member its place in the round,
and never gives a second answer.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from distro_fed.errors import LedgerError
from distro_fed.secure_aggregation.refusals import Reason, refuse

_FIRST_LINE = b"# distro-fed ledger 1: what this member answered in secure aggregation; do not edit, copy or delete\n"


class Stage(StrEnum):
    """Answers of a member, in their order."""

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    ACKNOWLEDGE = "acknowledge"
    UNMASK = "unmask"


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer.

    Attributes
    ----------
    run, round, attempt : int
    stage : Stage
    context : str
        First 16 hex digits of the attempt's context.
    """

    run: int
    round: int
    attempt: int
    stage: Stage
    context: str

    def line(self) -> bytes:
        """As it stands in the file."""
        return f"{self.run} {self.round} {self.attempt} {self.stage} {self.context}\n".encode()

    @classmethod
    def from_line(cls, line: bytes) -> Entry:
        """Inverse of :meth:`line`; ValueError if it is none."""
        run, round_, attempt, stage, context = line.decode("ascii").split(" ")
        entry = cls(int(run), int(round_), int(attempt), Stage(stage), context.strip())
        if entry.line() != line:
            raise ValueError("not the canonical form")
        return entry


def check_entry(entry: Entry, earlier: Iterable[Entry]) -> None:
    """Raise unless ``entry`` may follow the ``earlier`` ones.

    Raises
    ------
    Refused
        ``round-consumed``: this round has a masked vector already; ``stale-attempt``: a later attempt or round was
        begun; ``already-answered``: this stage of this attempt was.
    """
    of_run = [old for old in earlier if old.run == entry.run]
    here = (entry.round, entry.attempt)
    consumed = any(old.stage is Stage.MASK and old.round == entry.round for old in of_run)
    if consumed and entry.stage in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK):
        raise refuse(Reason.ROUND_CONSUMED, f"round {entry.round} of run {entry.run}")
    begun = [(old.round, old.attempt) for old in of_run if old.stage is Stage.ADVERTISE]
    if entry.stage is Stage.ADVERTISE and begun and max(begun) >= here:
        raise refuse(Reason.STALE_ATTEMPT, f"round and attempt {here} after {max(begun)}")
    if entry.stage is Stage.MASK and begun and max(begun) > here:
        raise refuse(Reason.STALE_ATTEMPT, f"masked vector of {here} after {max(begun)} was begun")
    if any((old.round, old.attempt, old.stage) == (*here, entry.stage) for old in of_run):
        raise refuse(Reason.ALREADY_ANSWERED, f"stage {entry.stage} of {here}")


class Ledger:
    """The file of one member.

    Parameters
    ----------
    path : str or Path
        Made by :func:`create_ledger`; on a file system that keeps what it has synced.

    Raises
    ------
    LedgerError
        If it is not there: a member whose ledger was lost must not go on with a run as if it had none.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise LedgerError(
                f"{self._path} is not there. It was made together with the identity; if it was lost, this member could "
                "be asked twice for the same round: leave running federations, then make a new identity and ledger"
            )

    def check(self, entry: Entry) -> None:
        """Raise what :meth:`record` would raise, and record nothing."""
        with self._locked() as stream:
            check_entry(entry, self._read(stream)[0])

    def record(self, entry: Entry) -> None:
        """Note an answer before it is sent; when this returns, the line is on the disk.

        Raises
        ------
        Refused
            As :func:`check_entry`; nothing is noted then.
        LedgerError
            If a line is damaged.
        """
        with self._locked() as stream:
            entries, end = self._read(stream)
            check_entry(entry, entries)
            stream.truncate(end)
            stream.seek(end)
            stream.write(entry.line())
            stream.flush()
            os.fsync(stream.fileno())

    def entries(self) -> list[Entry]:
        """Everything noted so far."""
        with self._locked() as stream:
            return self._read(stream)[0]

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        # Flower may run two processes of one member at a time
        with self._path.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield stream

    def _read(self, stream: IO[bytes]) -> tuple[list[Entry], int]:
        lines = stream.read().splitlines(keepends=True)
        if not lines or lines[0] != _FIRST_LINE:
            raise LedgerError(f"{self._path}, line 1: not a ledger of this version")
        entries, end = [], len(_FIRST_LINE)
        for number, line in enumerate(lines[1:], 2):
            if number == len(lines) and not line.endswith(b"\n"):
                break  # the machine stopped while this was written, so its answer was never sent
            try:
                entries.append(Entry.from_line(line))
            except ValueError:
                raise LedgerError(
                    f"{self._path}, line {number}: {line[:80]!r} is damaged. Restore the file from the newest copy, or "
                    "leave running federations and make a new identity and a new ledger"
                ) from None
            end += len(line)
        return entries, end


def create_ledger(path: str | Path) -> Ledger:
    """Make an empty ledger, on the disk when this returns.

    Raises
    ------
    LedgerError
        If the file exists.
    """
    path = Path(path)
    try:
        with path.open("xb") as stream:
            stream.write(_FIRST_LINE)
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError:
        raise LedgerError(
            f"{path} exists already; a ledger is never replaced: move it away only if its identity is gone for good"
        ) from None
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return Ledger(path)
