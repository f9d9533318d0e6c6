"""The replica of a machine: in memory, and rebuilt from files in a new process.

All virtual clients of a simulation share one store: updates are public within the run, so neither memory
nor disk grows by a model per client. Without a folder nothing is kept beyond the process, and the server
is told so.
"""

from __future__ import annotations

import logging
from pathlib import Path

from distro_fed.errors import ReplicaError, UpdateError, WrongBase
from distro_fed.files import write_atomically
from distro_fed.replica import Replica, advance
from distro_fed.transport.records import Request
from distro_fed.update import Kind, Update, parse_frame

log = logging.getLogger("distro_fed")

#: replaying more updates than this in a new process costs more than writing the state once
SNAPSHOT_EVERY = 16
_SNAPSHOTS = "snapshot-" + "[0-9]" * 8 + ".frame"


class ReplicaStore:
    """Brings the replica to the version that a request asks for.

    Parameters
    ----------
    initial : Replica
        Version 0 as this member makes it; kept and advanced in place.
    folder : Path or None
        Where updates and snapshots are kept; None: in memory only.
    """

    def __init__(self, initial: Replica, folder: Path | None) -> None:
        self._replica = initial
        self._from_keyframe = False
        self._folder = folder
        if folder is not None:
            try:
                (folder / "updates").mkdir(parents=True, exist_ok=True)
                self._catch_up(folder, None)
            except OSError as error:
                self._do_without(error)

    def start_for(self, request: Request) -> int:
        """Version from which the server must start to serve this member; -1: it needs a full state.

        A version whose chain digest differs from the server's is of no use as a start.
        """
        version, chain = self._replica.version, self._replica.chain
        theirs = {update.base_version: update.chain for update in request.frames}
        theirs[request.version] = request.chain
        return version if theirs.get(version, chain) == chain else -1

    @property
    def retained_version(self) -> int:
        """Version that is still held when the next message finds a new process."""
        if self._folder is not None:
            return self._replica.version
        return -1 if self._from_keyframe else 0

    def bring_to(self, request: Request) -> Replica:
        """The replica at ``request.version``.

        Raises
        ------
        WrongBase
            The updates held and those in the request do not lead there; :meth:`start_for` says from where
            the server must start.
        ReplicaError
            The request is for an older version than the one held.
        """
        if request.version < self._replica.version:
            raise ReplicaError(
                f"asked for version {request.version}, this member is at {self._replica.version}: a late message"
            )
        if self._folder is not None:
            try:
                self._catch_up(self._folder, request.version)
            except OSError as error:
                self._do_without(error)
        before = self._replica
        self._replica = advance(self._replica, request.frames, request.version)
        if self._replica.chain != request.chain:
            raise WrongBase(f"version {request.version} here is {self._replica.chain.hex()}, not {request.chain.hex()}")
        if self._replica is not before:
            self._from_keyframe = True
        if self._folder is not None:
            try:
                self._keep(self._folder, request.frames)
            except OSError as error:
                self._do_without(error)
        return self._replica

    def _do_without(self, error: OSError) -> None:
        """Files are an accelerator: without them the server is told that nothing is kept."""
        log.warning("the state folder %s cannot be used (%s); nothing is kept between messages", self._folder, error)
        self._folder = None

    def _catch_up(self, folder: Path, target: int | None) -> None:
        """Advance with what processes of this machine have kept: the newest snapshot, and updates after it."""
        for path in sorted(folder.glob(_SNAPSHOTS), reverse=True):
            if _version(path) <= self._replica.version:
                break
            if target is not None and _version(path) > target:
                continue
            try:
                self._replica = Replica.from_keyframe(self._replica.agreement, parse_frame(path.read_bytes()))
                self._from_keyframe = True
                break
            except (UpdateError, OSError) as error:  # damaged, or just pruned by another process
                log.warning("snapshot %s is passed over: %s", path, error)
        while target is None or self._replica.version < target:
            path = _frame_path(folder, self._replica.version)
            try:
                self._replica.apply(parse_frame(path.read_bytes()))
            except FileNotFoundError:
                return
            except UpdateError as error:
                log.warning("kept update %s is thrown away: %s", path, error)
                path.unlink(missing_ok=True)
                return

    def _keep(self, folder: Path, frames: tuple[Update, ...]) -> None:
        for update in frames:
            path = _frame_path(folder, update.base_version)
            if update.kind is Kind.AGGREGATE and not path.exists():
                write_atomically(path, update.to_bytes())
        newest = max((_version(path) for path in folder.glob(_SNAPSHOTS)), default=0)
        keyframe_came = any(update.kind is Kind.KEYFRAME for update in frames)
        if keyframe_came or self._replica.version - newest >= SNAPSHOT_EVERY:
            self._snapshot(folder)

    def _snapshot(self, folder: Path) -> None:
        version = self._replica.version
        write_atomically(folder / f"snapshot-{version:08d}.frame", self._replica.keyframe(0).to_bytes())
        # the snapshot before and what follows it stay: another process may be reading them
        kept = sorted(folder.glob(_SNAPSHOTS))[-2:]
        oldest = _version(kept[0])
        for path in [*folder.glob(_SNAPSHOTS), *(folder / "updates").glob("[0-9]" * 8 + ".frame")]:
            if _version(path) < oldest and path not in kept:
                path.unlink(missing_ok=True)


def _frame_path(folder: Path, base_version: int) -> Path:
    return folder / "updates" / f"{base_version:08d}.frame"


def _version(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
