"""The way of a peer to an aggregator: one frame up, one answer down."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Sequence

import torch

from distro_fed.errors import ChecksumMismatch, PeerLost, SettingsError, WrongBase
from distro_fed.model.trainable import tensor_bytes
from distro_fed.optim.byte_store import ByteStore, Store
from distro_fed.optim.exchange import Answer, Exchange, PeerState

_STATE_HEAD = struct.Struct("<Q16s16s")


class AggregatorLink(Exchange):
    """Exchange over the store of an :class:`~distro_fed.optim.aggregator.Aggregator`.

    A peer that joins calls ``optimizer.synchronise()`` first: the next peer that begins a step hands it parameters,
    number of steps and history. From then on it takes part like any other.

    Parameters
    ----------
    store : torch.distributed.Store
        A connection of this peer's own, for example
        ``TCPStore(host, port, is_master=False, wait_for_workers=False)``.
    peer : int
        Id of this peer, 0 to 2**32 - 1; no other has it. A peer that was killed may come back with the same.
    timeout : float
        Seconds to wait for an answer, for the parameters when joining, and for other peers in a check.
    """

    def __init__(self, store: Store, peer: int, *, timeout: float = 600.0) -> None:
        if not 0 <= peer < 2**32:
            raise SettingsError(f"peer = {peer}; ids are 0 to 2**32 - 1")
        self.peer = peer
        self._store = ByteStore(store)
        self._timeout = timeout
        self._joined = False
        self._requests_seen = 0
        self._last_check: str | None = None

    def offer(self, state: Callable[[], PeerState]) -> None:
        """Hand the parameters to peers that asked since the last step, unless another peer does."""
        wanted = self._store.add("state/wanted")
        while self._requests_seen < wanted:
            self._requests_seen += 1
            if self._store.add(f"state/{self._requests_seen}/claimed", 1) == 1:
                self._upload(f"state/{self._requests_seen}", state())

    def exchange(self, frame: bytes, steps: int) -> Answer:
        """Send the frame and wait for the answer to the step."""
        if not self._joined:
            self._tell("join")
            self._joined = True
        key = f"frame/{steps}/{self.peer}"
        self._store.put(key, frame)
        self._store.add(f"sign/{self.peer}", 1)
        oldest = self._store.add("oldest")
        if steps < oldest:
            raise WrongBase(
                f"this peer has applied {steps} steps, and the aggregator keeps answers from step {oldest} on: call "
                "synchronise()"
            )
        if not self._store.wait(f"answer/{steps}", self._timeout):
            raise PeerLost(
                f"no answer to step {steps} within {self._timeout:g} s: the aggregator is gone or waits for more peers"
            )
        answer = self._store.get(f"answer/{steps}")
        self._store.delete(key)
        return Answer({}, answer, len(frame), len(answer))

    def leave(self) -> None:
        """Say goodbye, so that nobody waits for this peer."""
        if self._joined:
            self._tell("leave")
            self._joined = False

    def gather(self, payload: bytes, steps: int, peers: Sequence[int]) -> dict[int, bytes]:
        """Payload of each of ``peers``."""
        if self._last_check is not None:
            self._store.delete(self._last_check)
        self._last_check = f"check/{steps}/{self.peer}"
        self._store.put(self._last_check, payload)
        until, found = time.monotonic() + self._timeout, {self.peer: payload}
        for peer in peers:
            key = f"check/{steps}/{peer}"
            if not self._store.wait(key, max(0.01, until - time.monotonic())):
                raise PeerLost(f"peer {peer} did not take part in the check after step {steps}")
            found[peer] = self._store.get(key)
        return found

    def synchronise(self, state: PeerState) -> PeerState:
        """Ask for parameters; the others go on with their steps and need not call this."""
        number = self._store.add("state/wanted", 1)
        key = f"state/{number}"
        self._requests_seen = number
        if not self._store.wait(key, self._timeout):
            self._store.add(f"{key}/claimed", 1)  # nobody shall answer any more
            raise PeerLost(f"no peer handed over its parameters within {self._timeout:g} s: is any of them training?")
        steps, chain, digest = _STATE_HEAD.unpack(self._store.get(key))
        parts = [self._store.get(f"{key}/value/{index}") for index in range(len(state.values))]
        if _digest(parts) != digest:
            raise ChecksumMismatch(
                f"the parameters after step {steps} were damaged on the way: call synchronise() again"
            )
        for index, (value, part) in enumerate(zip(state.values, parts, strict=True)):
            received = (
                torch.frombuffer(bytearray(part), dtype=torch.uint8) if part else torch.zeros(0, dtype=torch.uint8)
            )
            value.detach().copy_(received.view(value.dtype).view(value.shape))
            self._store.delete(f"{key}/value/{index}")
        self._store.delete(key)
        return PeerState(steps, chain, state.values)

    def _upload(self, key: str, state: PeerState) -> None:
        parts = [tensor_bytes(value) for value in state.values]
        for index, part in enumerate(parts):
            self._store.put(f"{key}/value/{index}", part)
        self._store.put(key, _STATE_HEAD.pack(state.steps, state.chain, _digest(parts)))

    def _tell(self, what: str) -> None:
        number = self._store.add("events", 1) - 1
        self._store.put(f"event/{number}", f"{what} {self.peer}".encode())


def _digest(parts: Sequence[bytes | memoryview]) -> bytes:
    state = hashlib.blake2b(digest_size=16, person=b"df-state")
    for part in parts:
        state.update(part)
    return state.digest()
