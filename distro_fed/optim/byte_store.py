"""Byte strings of any length in a store of torch.distributed, and its failures by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from distro_fed.errors import PeerLost


class Store(Protocol):
    """What is used of :class:`torch.distributed.Store`; a ``TCPStore``, ``FileStore`` and ``HashStore`` are such."""

    def set(self, key: str, value: Any, /) -> None: ...  # noqa: D102
    def get(self, key: str, /) -> bytes: ...  # noqa: D102
    def add(self, key: str, amount: int, /) -> int: ...  # noqa: D102
    def check(self, keys: list[str], /) -> bool: ...  # noqa: D102
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...  # noqa: D102
    def delete_key(self, key: str, /) -> bool: ...  # noqa: D102


# A TCPStore takes values of at most 8 MiB.
_PIECE = 4 * 2**20


class ByteStore:
    """A few words on a store; safe as long as each key is written by one process.

    Every method raises :class:`~distro_fed.errors.PeerLost` if the store cannot be reached.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write; readers see nothing before all of it is there."""
        pieces = [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]
        with _unreachable_by_name():
            for index, piece in enumerate(pieces):
                self._store.set(f"{key}/{index}", bytes(piece))
            self._store.set(key, str(len(pieces)))

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        with _unreachable_by_name():
            return bool(self._store.check([key]))

    def wait(self, key: str, seconds: float) -> bool:
        """Wait for the key; False if it does not come in time."""
        with _unreachable_by_name():
            try:
                self._store.wait([key], timedelta(seconds=seconds))
            except dist.DistStoreError:
                return False
        return True

    def get(self, key: str) -> bytes:
        """Read a key that is there."""
        with _unreachable_by_name():
            pieces = int(self._store.get(key))
            return b"".join(self._store.get(f"{key}/{index}") for index in range(pieces))

    def delete(self, key: str) -> None:
        """Remove the key if it is there."""
        if not self.has(key):
            return
        with _unreachable_by_name():
            pieces = int(self._store.get(key))
            self._store.delete_key(key)
            for index in range(pieces):
                self._store.delete_key(f"{key}/{index}")

    def add(self, counter: str, amount: int = 0) -> int:
        """Add to a counter, which starts at 0, and return it."""
        with _unreachable_by_name():
            return int(self._store.add(counter, amount))


@contextmanager
def _unreachable_by_name() -> Iterator[None]:
    """A store reports a lost connection as RuntimeError or one of its subclasses."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(
            f"the store failed ({error}); its host, the aggregator, died or cannot be reached: start it again and give "
            "every peer a new exchange"
        ) from error
