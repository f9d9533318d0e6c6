"""The replica of a machine: in memory, and rebuilt from files in a new process.

All virtual clients of a simulation share one store: updates are public within the run, so neither memory
nor disk grows by a model per client. Without a folder nothing is kept beyond the process, and the server
is told so.
"""

from __future__ import annotations

import logging
import re
import zlib
from pathlib import Path

from distro_fed.errors import UpdateError, WrongBase
from distro_fed.files import write_atomically
from distro_fed.replica import Replica, advance
from distro_fed.transport.records import Request
from distro_fed.update import Kind, Update, parse_frame

log = logging.getLogger("distro_fed")

#: replaying more updates than this in a new process costs more than writing the state once
SNAPSHOT_EVERY = 16
#: version, and checksum of the file
_SNAPSHOT = re.compile(r"snapshot-\d{8}-[0-9a-f]{8}\.frame")
_NEEDS_KEYFRAME = -1


class ReplicaStore:
    """Brings the replica to the version that a request asks for.

    A replica whose values are not what its version says, because bits have flipped in memory or in a file, is never
    trained: the member asks for a full state, and says why.

    Parameters
    ----------
    initial : Replica
        Version 0 as this member makes it; kept and advanced in place.
    folder : Path or None
        Where updates and snapshots are kept; None: in memory only.
    """

    def __init__(self, initial: Replica, folder: Path | None) -> None:
        self._replica = initial
        self._checksum = initial.checksum()
        self._damaged = False
        self._from_keyframe = False
        self._folder = folder
        if folder is not None:
            try:
                (folder / "updates").mkdir(parents=True, exist_ok=True)
                self._catch_up(folder, None)
            except OSError as error:
                self._do_without(error)
            self._checksum = self._replica.checksum()

    def start_for(self, request: Request) -> int:
        """Version from which the server must start to serve this member; -1: it needs a full state.

        A version whose chain digest differs from the server's is of no use as a start, and neither is one that the
        server has gone back behind.
        """
        behind = self._replica.version > request.version
        return _NEEDS_KEYFRAME if behind or self.differs_from(request) else self._replica.version

    def differs_from(self, request: Request) -> bool:
        """Whether the replica held here is not the server's of that version, as far as the request tells."""
        version, chain = self._replica.version, self._replica.chain
        theirs = {update.base_version: update.chain for update in request.frames}
        theirs[request.version] = request.chain
        return self._damaged or theirs.get(version, chain) != chain

    @property
    def retained_version(self) -> int:
        """Version that is still held when the next message finds a new process."""
        if self._folder is not None:
            return self._replica.version
        return _NEEDS_KEYFRAME if self._from_keyframe else 0

    def bring_to(self, request: Request) -> Replica:
        """The replica at ``request.version``.

        Raises
        ------
        WrongBase
            The updates held and those in the request do not lead there; :meth:`start_for` says from where
            the server must start. So it is with an older version than the one held: the message is late, or the server
            has gone back to a checkpoint, and only then it will send what leads there.
        """
        if self._replica.checksum() != self._checksum:
            self._damaged = True
            log.error(
                "the replica at version %d has changed by itself; a full state is asked for", self._replica.version
            )
        if self._folder is not None and not self._damaged:
            try:
                self._catch_up(self._folder, request.version)
            except OSError as error:
                self._do_without(error)
        before = self._replica
        try:
            self._advance(request)
        finally:
            # an update that does not fit ends the way half way, and what was applied before it stays
            if not self._damaged:
                self._checksum = self._replica.checksum()
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

    def _advance(self, request: Request) -> None:
        keyframe = next((update for update in request.frames if update.kind is Kind.KEYFRAME), None)
        if self._damaged or self._replica.version > request.version:
            if keyframe is None:
                raise WrongBase(
                    f"asked for version {request.version}; this member holds {self._replica.version}"
                    f"{', damaged' if self._damaged else ''}, and there is no way from there"
                )
            self._replica = Replica.from_keyframe(self._replica.agreement, keyframe)
            self._damaged = False
            if self._folder is not None:
                self._forget_from(self._folder, keyframe.base_version)
        self._replica = advance(self._replica, request.frames, request.version)

    def _do_without(self, error: OSError) -> None:
        """Files are an accelerator: without them the server is told that nothing is kept."""
        log.warning("the state folder %s cannot be used (%s); nothing is kept between messages", self._folder, error)
        self._folder = None

    def _catch_up(self, folder: Path, target: int | None) -> None:
        """Advance with what processes of this machine have kept: the newest snapshot, and updates after it."""
        for path in reversed(_snapshots(folder)):
            if _version(path) <= self._replica.version:
                break
            if target is not None and _version(path) > target:
                continue
            if self._take_snapshot(path):
                break
        while not self._damaged and (target is None or self._replica.version < target):
            path = _frame_path(folder, self._replica.version)
            try:
                self._replica.apply(parse_frame(path.read_bytes()))
            except FileNotFoundError:
                return
            except UpdateError as error:
                log.warning("kept update %s is thrown away: %s", path, error)
                path.unlink(missing_ok=True)
                return

    def _take_snapshot(self, path: Path) -> bool:
        """Go on from a snapshot; False if it is of no use and an older one may be."""
        try:
            data = path.read_bytes()
            replica = Replica.from_keyframe(self._replica.agreement, parse_frame(data))
        except (UpdateError, OSError) as error:  # damaged, or just pruned by another process
            log.warning("snapshot %s is passed over: %s", path, error)
            return False
        self._replica, self._from_keyframe = replica, True
        if f"{zlib.crc32(data):08x}" != path.stem.split("-")[2]:
            log.error("snapshot %s is sound, but not what was written; a full state is asked for", path)
            path.unlink(missing_ok=True)
            self._damaged = True
        return True

    def _keep(self, folder: Path, frames: tuple[Update, ...]) -> None:
        for update in frames:
            path = _frame_path(folder, update.base_version)
            if update.kind is Kind.AGGREGATE and not path.exists():
                write_atomically(path, update.to_bytes())
        newest = max(map(_version, _snapshots(folder)), default=0)
        keyframe_came = any(update.kind is Kind.KEYFRAME for update in frames)
        if keyframe_came or self._replica.version - newest >= SNAPSHOT_EVERY:
            self._snapshot(folder)

    def _snapshot(self, folder: Path) -> None:
        data = self._replica.keyframe(0).to_bytes()
        write_atomically(folder / f"snapshot-{self._replica.version:08d}-{zlib.crc32(data):08x}.frame", data)
        # the snapshot before and what follows it stay: another process may be reading them
        kept = _snapshots(folder)[-2:]
        oldest = min(map(_version, kept), default=0)  # another process may have pruned them all
        for path in [*_snapshots(folder), *_updates(folder)]:
            if _version(path) < oldest and path not in kept:
                path.unlink(missing_ok=True)

    def _forget_from(self, folder: Path, version: int) -> None:
        """Throw away what leads on from a version along a way that the server did not go."""
        for path in [*_snapshots(folder), *_updates(folder)]:
            if _version(path) >= version:
                path.unlink(missing_ok=True)


def _snapshots(folder: Path) -> list[Path]:
    """Snapshots in a folder, the newest last."""
    return sorted(path for path in folder.glob("snapshot-*.frame") if _SNAPSHOT.fullmatch(path.name))


def _updates(folder: Path) -> list[Path]:
    return list((folder / "updates").glob("[0-9]" * 8 + ".frame"))


def _frame_path(folder: Path, base_version: int) -> Path:
    return folder / "updates" / f"{base_version:08d}.frame"


def _version(path: Path) -> int:
    """Version of a snapshot, or the one that an update applies to."""
    return int(path.stem.split("-")[1] if path.name.startswith("snapshot-") else path.stem)
