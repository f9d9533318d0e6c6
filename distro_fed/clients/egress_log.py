"""Everything that has left an organisation through this package, in an append-only file.

One JSON object a line. Each line ends with ``hash``, the SHA-256 of the line as it would be without it, and holds as
``previous`` the hash of the line before (64 zeros in the first one): a line that is changed, removed or put elsewhere
breaks the chain. Lines missing at the end do not; compare the newest hash with one noted elsewhere.

A line is on the disk before what it stands for is handed to Flower. So a line that breaks off stands for something that
never left; the next line then says that there was one (kind ``cut-off``).
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distro_fed.errors import EgressLogError

GENESIS = "0" * 64
#: kind of a line that stands for one that broke off
CUT_OFF = "cut-off"
_HASH_AT_END = len(',"hash":"') + 64 + len('"}\n')


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that is sound.

    Attributes
    ----------
    time : str
        UTC, ISO 8601.
    run : str
        Flower's id of the run.
    round : int or None
        As the request says; None if it says none.
    kind : str
        What left (:mod:`.egress_kinds`).
    bytes : int
        Of the message, as Flower serialises it.
    sha256 : str
        Flower's own id of the message's content: SHA-256 of its serialised form, 64 hex digits.
    hash : str
        Hash of this line, 64 hex digits.
    details : mapping
        What else the line holds: ``message`` (type), ``metrics``, ``words``, ``refused``.
    """

    time: str
    run: str
    round: int | None
    kind: str
    bytes: int
    sha256: str
    hash: str
    details: Mapping[str, Any]


def parse_line(line: bytes, previous: str) -> Entry:
    """Check one line.

    Parameters
    ----------
    line : bytes
        With its newline.
    previous : str
        Hash of the line before.

    Raises
    ------
    ValueError
        With what is wrong.
    """
    body, ending = line[:-_HASH_AT_END] + b"}", line[-_HASH_AT_END:]
    found = hashlib.sha256(body).hexdigest()
    if ending != f',"hash":"{found}"}}\n'.encode():
        raise ValueError("it was changed: its hash is not that of its content")
    try:
        values = json.loads(body)
        fixed = {name: values.pop(name) for name in ("time", "run", "round", "kind", "bytes", "sha256")}
        before = values.pop("previous")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"it is not a line of this format ({error!r})") from None
    if before != previous:
        raise ValueError("lines are missing before it, or were put in another order")
    kinds = {"time": str, "run": str, "round": int | None, "kind": str, "bytes": int, "sha256": str}
    for name, kind in kinds.items():
        if not isinstance(fixed[name], kind):
            raise ValueError(f"its {name} is {fixed[name]!r}")
    return Entry(**fixed, hash=found, details=values)


@dataclass(frozen=True, slots=True)
class Audit:
    """What a log holds, as far as it can be believed.

    Attributes
    ----------
    entries : list of Entry
        All lines before the first one that is wrong.
    broken : str
        Which line is wrong and how; empty: none.
    cut_off : int
        Bytes of a last line that broke off, left by a crash; 0: none.
    """

    entries: list[Entry]
    broken: str
    cut_off: int

    @property
    def head(self) -> str:
        """Hash of the newest sound line; note it elsewhere to find out later whether lines were taken off the end."""
        return self.entries[-1].hash if self.entries else GENESIS


def audit(path: str | Path) -> Audit:
    """Read and verify a log; the file is not changed.

    Raises
    ------
    OSError
        It cannot be read.
    """
    with Path(path).open("rb") as stream:
        return _audit(stream)


def _audit(lines: Iterable[bytes]) -> Audit:
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return Audit(entries, "", len(line))
        try:
            entries.append(parse_line(line, entries[-1].hash if entries else GENESIS))
        except ValueError as error:
            return Audit(entries, f"line {number}: {error}", 0)
    return Audit(entries, "", 0)


class EgressLog:
    """The file of one organisation; several processes may write to it.

    Parameters
    ----------
    path : Path
        Made with its folder when the first line is written, readable by its owner only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[OpenLog]:
        """Open the file for one process at a time.

        Raises
        ------
        EgressLogError
            It cannot be opened, or locked.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                if new:
                    _sync(self.path.parent)
                yield OpenLog(stream, self.path)
        except OSError as error:
            raise EgressLogError(
                f"{self.path} cannot be written ({error}), so nothing may leave: make room or give this user the right "
                "to write it, or name another file with 'egress-log' in the node config"
            ) from error


class OpenLog:
    """A log that no other process writes meanwhile."""

    def __init__(self, stream: io.FileIO, path: Path) -> None:
        self._stream, self._path = stream, path

    def entries(self) -> list[Entry]:
        """All lines, verified.

        Raises
        ------
        EgressLogError
            The chain is broken.
        """
        self._stream.seek(0)
        found = _audit(io.BytesIO(self._stream.readall()))
        if found.broken:
            raise self._damaged(found.broken)
        return found.entries

    def append(self, **values: Any) -> None:
        """Write one line; when this returns it is on the disk.

        Parameters
        ----------
        **values
            Fields of :class:`Entry` but ``time`` and ``hash``, and what else is to be told, for JSON.

        Raises
        ------
        EgressLogError
            The newest line is damaged.
        OSError
            The line cannot be written; what was written of it is taken back.
        """
        previous, end, fragment = self._newest()
        lines = b""
        if fragment:
            digest = hashlib.sha256(fragment).hexdigest()
            cut = {"run": "", "round": None, "kind": CUT_OFF, "bytes": 0, "sha256": digest, "cut_bytes": len(fragment)}
            lines, previous = _line(cut, previous)
            self._stream.truncate(end)
        lines += _line(values, previous)[0]
        try:
            self._stream.seek(0, os.SEEK_END)
            while lines:  # not buffered: what a full disk does not take must not be tried again when the file is closed
                lines = lines[self._stream.write(lines) :]
            os.fsync(self._stream.fileno())
        except OSError:
            with suppress(OSError):
                self._stream.truncate(end)
            raise

    def _newest(self) -> tuple[str, int, bytes]:
        """Hash of the newest line, where it ends, and what stands behind it."""
        size = self._stream.seek(0, os.SEEK_END)
        tail, start = b"", size
        while start > 0 and tail.count(b"\n") < 2:
            start = max(0, start - 65536)
            self._stream.seek(start)
            tail = self._stream.read(size - start)
        whole, newline, fragment = tail.rpartition(b"\n")
        if not newline:
            return GENESIS, 0, fragment
        line = whole.rpartition(b"\n")[2] + newline
        try:
            values = json.loads(line)
            return parse_line(line, values["previous"]).hash, size - len(fragment), fragment
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"the newest line: {error}") from None

    def _damaged(self, what: str) -> EgressLogError:
        return EgressLogError(
            f"{self._path}, {what}. Nothing may leave before somebody has looked: distro-fed audit {self._path}; then "
            "move the file away, and a new one is begun"
        )


def _line(values: Mapping[str, Any], previous: str) -> tuple[bytes, str]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = json.dumps({"time": now, **values, "previous": previous}, ensure_ascii=True, separators=(",", ":")).encode()
    found = hashlib.sha256(body).hexdigest()
    return body[:-1] + f',"hash":"{found}"}}\n'.encode(), found


def _sync(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
