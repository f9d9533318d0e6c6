"""Files and folders that are either complete or not there.

A process that dies, or a second one that does the same work at the same time, must never leave a
half-written file for a third to read: everything is written beside its place and renamed into it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: str | Path, data: bytes | str) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    The bytes are on the disk before the name points to them. Parent folders are made. Text is UTF-8.

    Raises
    ------
    OSError
        If the file cannot be written; an old file is then still whole.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data.encode() if isinstance(data, str) else data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(beside).chmod(0o666 & ~_umask())
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def atomic_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill a new folder beside ``path`` and rename it into place at the end.

    If the block raises, nothing appears. If another process was first, its folder stays and this one is
    thrown away: use it for content that is the same whoever writes it, or pass ``replace``.

    Parameters
    ----------
    path : str or Path
        Where the folder shall appear.
    replace : bool
        An old folder or file at ``path`` goes away in favour of the new one.

    Yields
    ------
    Path
        An empty folder on the same file system.

    Raises
    ------
    FileExistsError
        If ``path`` is a file, or a folder without ``replace`` that was there at the start.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise FileExistsError(f"{path} exists already: remove it or choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        yield beside
        for name in beside.rglob("*"):
            if name.is_file():
                with name.open("rb") as stream:
                    os.fsync(stream.fileno())
                # safetensors writes files that only their owner may read
                name.chmod(0o666 & ~_umask())
        beside.chmod(0o777 & ~_umask())
        old = beside.with_suffix(".old")
        if replace and path.exists():
            # a folder cannot be renamed over one that is not empty
            path.rename(old)
        try:
            beside.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            if not path.is_dir():
                raise
        _remove(old)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    _sync_folder(path.parent)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # A rename is durable only when the folder is; some file systems cannot sync a folder.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    # mkstemp and mkdtemp make private files; results get the rights that an ordinary file would get.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_dir() -> Path:
    """Where converted models, wheels and digests are kept: ``DISTRO_FED_CACHE`` or the user's cache folder.

    Everything in it can be deleted at any time and is made again when it is needed.
    """
    chosen = os.environ.get("DISTRO_FED_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("distro-fed", appauthor=False)
