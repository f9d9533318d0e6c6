"""The trainable tensors at one version, and the log of updates that lead from one version to the next.

Versions form a hash chain: version 0 is identified by a digest of the initial values, version v + 1 by
the digest of the aggregated update that leads to it, which names the digest of version v. Two replicas
with equal chain digests went through the same updates.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.compression.base import RoundKey
from distro_fed.errors import ReplicaError, WrongBase
from distro_fed.update import Kind, Update

if TYPE_CHECKING:
    import torch


class Replica:
    """Flat float32 values of all trainable tensors, with version and chain digest.

    Attributes
    ----------
    values : torch.Tensor
        Float32, ``(layout.numel,)``; changed in place by :meth:`apply`.
    version : int
        Number of aggregated updates applied so far.
    chain : bytes
        16 bytes that identify the version.
    memory : torch.Tensor or None
        What the compressor keeps of the last update applied: flat float32 on the CPU. It follows from the updates, so
        the chain identifies it too.
    """

    def __init__(
        self, agreement: Agreement, values: torch.Tensor, version: int, chain: bytes, memory: torch.Tensor | None = None
    ) -> None:
        if tuple(values.shape) != (agreement.layout.numel,):
            raise ReplicaError(
                f"replica of shape {tuple(values.shape)}; the layout has {agreement.layout.numel} values in one vector"
            )
        self.agreement = agreement
        self.values = values
        self.version = version
        self.chain = chain
        self.memory = memory

    @classmethod
    def initial(cls, agreement: Agreement, values: torch.Tensor) -> Replica:
        """Version 0; ``values`` is kept, not copied."""
        return cls(agreement, values, 0, chain_of_initial(agreement, values))

    @classmethod
    def from_keyframe(cls, agreement: Agreement, update: Update) -> Replica:
        """A replica out of a full state.

        Raises
        ------
        UpdateError
            If the frame is not a sound keyframe of this run.
        """
        import torch

        decoded = agreement.open(update, kind=Kind.KEYFRAME, base_version=update.base_version, chain=update.chain)
        everything = torch.zeros(agreement.keyframe_space(update.base_version).numel)
        decoded.add_to(everything)
        end = agreement.layout.numel
        memory = everything[end:].clone() if everything.numel() > end else None
        return cls(agreement, everything[:end], update.base_version, update.chain, memory)

    def keyframe(self, round_: int) -> Update:
        """The full state as a frame."""
        coder = self.agreement.compressor(Kind.KEYFRAME)
        body = coder.encode(self.values, self.agreement.layout, 0)
        memory_layout = self.agreement.uplink.memory_layout(self.agreement.layout, self.version)
        if self.memory is not None and memory_layout is not None:
            body += coder.encode(self.memory, memory_layout, 0)
        return self.agreement.frame(Kind.KEYFRAME, round_, self.version, self.chain, body)

    def key(self, round_: int) -> RoundKey:
        """What is public about a round that starts from this version."""
        return self.agreement.key(round_, self.version, self.memory)

    def checksum(self) -> int:
        """32 bits over all values and the memory; finds accidents, such as bits that flip.

        The chain names the updates that a replica went through, and cannot tell whether its values are still theirs.
        """
        state = zlib.crc32(self.values.numpy().data)
        return state if self.memory is None else zlib.crc32(self.memory.numpy().data, state)

    def apply(self, update: Update, scratch: torch.Tensor | None = None) -> None:
        """Advance by one aggregated update, in place.

        Parameters
        ----------
        update : Update
            Kind ``AGGREGATE``, on top of this version.
        scratch : torch.Tensor, optional
            Float32, as long as the space of the update's round; overwritten. Saves an allocation.

        Raises
        ------
        UpdateError
            The update does not fit; the replica is unchanged.
        """
        import torch

        agreement, key = self.agreement, self.key(update.round)
        decoded = agreement.open(update, kind=Kind.AGGREGATE, base_version=self.version, chain=self.chain)
        if scratch is None:
            scratch = torch.zeros(agreement.space(key).numel, device=self.values.device)
        else:
            scratch.zero_()
        decoded.add_to(scratch)
        memory = agreement.downlink.remember(scratch, agreement.layout, key)
        agreement.synthesise(scratch, self.values, key)
        self.memory = memory
        self.version += 1
        self.chain = update.digest


def chain_of_initial(agreement: Agreement, values: torch.Tensor) -> bytes:
    """16 bytes that identify version 0: its layout and its exact float32 values."""
    state = hashlib.blake2b(agreement.layout.digest, digest_size=16, person=b"df-initial")
    state.update(values.detach().cpu().contiguous().numpy().data)
    return state.digest()


class UpdateLog:
    """Aggregated updates in order, from one version on.

    Parameters
    ----------
    start_version : int
        The version that the first update applies to.
    frames : iterable of bytes
        Updates from there on.
    """

    def __init__(self, start_version: int = 0, frames: Iterable[bytes] = ()) -> None:
        self._frames = deque(frames)
        self._start = start_version

    @property
    def start_version(self) -> int:
        """Oldest version from which the log leads on."""
        return self._start

    @property
    def end_version(self) -> int:
        """Version that the log leads to."""
        return self._start + len(self._frames)

    def append(self, update: Update) -> None:
        """Add the next update.

        Raises
        ------
        ReplicaError
            If it does not continue the log.
        """
        if update.kind is not Kind.AGGREGATE or update.base_version != self.end_version:
            raise ReplicaError(
                f"{update.kind.name} update on top of version {update.base_version} does not continue a log that "
                f"ends at version {self.end_version}"
            )
        self._frames.append(update.to_bytes())

    def frames_since(self, version: int) -> list[bytes] | None:
        """Frames that lead from ``version`` to the end; None if the log does not reach back so far."""
        if not self._start <= version <= self.end_version:
            return None
        return list(self._frames)[version - self._start :]

    def prune(self, keep_bytes: int) -> None:
        """Forget the oldest updates until at most ``keep_bytes`` are left (the newest always stays)."""
        size = sum(map(len, self._frames))
        while len(self._frames) > 1 and size > keep_bytes:
            size -= len(self._frames.popleft())
            self._start += 1


def advance(replica: Replica, updates: Iterable[Update], target: int) -> Replica:
    """Apply those of ``updates`` that lead from the replica's version to ``target``.

    A keyframe among them is taken if the replica cannot get on without it. Updates that are
    already applied are passed over.

    Raises
    ------
    WrongBase
        The updates do not lead from here to ``target``.
    """
    for update in updates:
        if replica.version >= target and update.kind is not Kind.KEYFRAME:
            break
        if update.kind is Kind.KEYFRAME:
            if update.base_version > replica.version or update.chain != replica.chain:
                replica = Replica.from_keyframe(replica.agreement, update)
        elif update.base_version >= replica.version:
            replica.apply(update)
    if replica.version != target:
        raise WrongBase(f"the replica is at version {replica.version}; the updates given do not lead to {target}")
    return replica
