"""What a member keeps between two stages, as bytes that the caller carries from process to process.

For each open attempt: the server's messages that were answered so far, which are public, and the sealed seed of its
secrets. The seal (AES-256-GCM under a key derived from the identity) covers the messages too. Losing this state, or
going back to an old copy of it, costs the member its place in the round and nothing else (:mod:`.ledger`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import cached_property

from cryptography.exceptions import InvalidTag

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.encoding import encode
from distro_fed.secure_aggregation.key_agreement import SEALED_SEED_BYTES, AttemptSecrets, open_seed, seal_seed
from distro_fed.secure_aggregation.messages import (
    KEYS_ROW_BYTES,
    Message,
    decode_delivery,
    decode_table,
    parse,
)
from distro_fed.secure_aggregation.proposal import Proposal
from distro_fed.secure_aggregation.transcript import keys_transcript, masking_transcript, survivor_transcript

#: attempts that are open at a time: of a round that ends and of the one that begins
MAX_OPEN = 2
_HEAD = struct.Struct("<4sBB")
_MAGIC, _VERSION = b"DFSS", 1
_STAGES = 4


@dataclass(frozen=True)
class OpenAttempt:
    """One attempt as a member sees it after ``len(answered)`` stages.

    Attributes
    ----------
    me : int
        Own index in the roster.
    seed : bytes
        32 bytes.
    answered : tuple of bytes
        Messages of the server: proposal, keys, delivery, survivor set.
    """

    me: int
    seed: bytes = field(repr=False)
    answered: tuple[bytes, ...]

    def after(self, message: bytes) -> OpenAttempt:
        """The attempt when one more message has been answered."""
        return replace(self, answered=(*self.answered, message))

    @property
    def stage(self) -> int:
        """Number of stages answered, 1..4."""
        return len(self.answered)

    @cached_property
    def proposal(self) -> Proposal:
        """What was agreed on in stage 0."""
        return Proposal.from_message(self._message(0))

    @cached_property
    def context(self) -> bytes:
        """32 bytes that name the attempt."""
        return self._message(0).context

    @cached_property
    def secrets(self) -> AttemptSecrets:
        """Own secrets."""
        return AttemptSecrets(self.seed, self.context)

    @cached_property
    def keys(self) -> dict[int, bytes]:
        """Signed advertisements of those who take part (from stage 1 on)."""
        return decode_table(self._message(1).body, KEYS_ROW_BYTES)

    @cached_property
    def keys_transcript(self) -> bytes:
        """Digest of everything up to stage 1."""
        return keys_transcript(self.context, self.keys)

    @cached_property
    def delivered(self) -> tuple[bytes, dict[int, bytes]]:
        """Model digest and encrypted shares from the others (from stage 2 on)."""
        return decode_delivery(self._message(2).body)

    @property
    def sharers(self) -> frozenset[int]:
        """Members who shared secrets, this one included."""
        return frozenset({*self.delivered[1], self.me})

    @cached_property
    def masking_transcript(self) -> bytes:
        """Digest of everything up to stage 2."""
        return masking_transcript(self.keys_transcript, self.sharers, self.delivered[0])

    @cached_property
    def survivors(self) -> frozenset[int]:
        """Members whose vectors are in the sum (from stage 3 on)."""
        return frozenset(decode_table(self._message(3).body, 0))

    @cached_property
    def survivor_transcript(self) -> bytes:
        """Digest of everything up to stage 3."""
        return survivor_transcript(self.masking_transcript, self.survivors)

    def _message(self, stage: int) -> Message:
        return parse(self.answered[stage])


@dataclass(frozen=True)
class ClientState:
    """The open attempts of a member, in the order in which they were opened.

    Attributes
    ----------
    attempts : tuple of OpenAttempt
        At most :data:`MAX_OPEN`.
    """

    attempts: tuple[OpenAttempt, ...] = ()

    def find(self, context: bytes) -> OpenAttempt | None:
        """The attempt of this name."""
        return next((attempt for attempt in self.attempts if attempt.context == context), None)

    def opened(self, attempt: OpenAttempt) -> ClientState:
        """With one more attempt; the oldest one gives way."""
        return ClientState((*self.attempts, attempt)[-MAX_OPEN:])

    def changed(self, attempt: OpenAttempt) -> ClientState:
        """With an attempt one stage further."""
        return ClientState(tuple(attempt if old.context == attempt.context else old for old in self.attempts))

    def closed(self, attempt: OpenAttempt) -> ClientState:
        """Without an attempt and its seed."""
        return ClientState(tuple(old for old in self.attempts if old.context != attempt.context))

    def to_bytes(self, key: bytes) -> bytes:
        """Bytes for :meth:`from_bytes`.

        Parameters
        ----------
        key : bytes
            ``Identity.sealing_key``.
        """
        parts = [_HEAD.pack(_MAGIC, _VERSION, len(self.attempts))]
        for attempt in self.attempts:
            parts.append(seal_seed(key, attempt.seed, encode("state", *attempt.answered)))
            parts.append(len(attempt.answered).to_bytes(1, "little"))
            for message in attempt.answered:
                parts += [len(message).to_bytes(4, "little"), message]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes, key: bytes, me: int) -> ClientState:
        """Inverse of :meth:`to_bytes`; no bytes are an empty state.

        Raises
        ------
        EncodingError
            If the state was not made by this member, or was changed.
        """
        if not data:
            return cls()
        try:
            magic, version, count = _HEAD.unpack_from(data)
            if (magic, version) != (_MAGIC, _VERSION) or count > MAX_OPEN:
                raise ValueError
            attempts, rest = [], data[_HEAD.size :]
            for _ in range(count):
                sealed, stages, rest = rest[:SEALED_SEED_BYTES], rest[SEALED_SEED_BYTES], rest[SEALED_SEED_BYTES + 1 :]
                if not 1 <= stages <= _STAGES:
                    raise ValueError
                answered = []
                for _ in range(stages):
                    size = int.from_bytes(rest[:4], "little")
                    message, rest = rest[4 : 4 + size], rest[4 + size :]
                    if len(message) != size:
                        raise ValueError
                    answered.append(message)
                seed = open_seed(key, sealed, encode("state", *answered))
                attempts.append(OpenAttempt(me, seed, tuple(answered)))
            if rest:
                raise ValueError
        except (ValueError, IndexError, struct.error, InvalidTag):
            raise EncodingError(
                f"{len(data)} bytes are not the state of this member between two stages: the attempts in it are lost"
            ) from None
        return cls(tuple(attempts))
