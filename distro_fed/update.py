"""The one thing that crosses the network: an immutable, versioned, checked frame.

Byte layout (little-endian, no padding; ``docs/wire-format.md`` has it as a table)::

    0   4   magic "DFED"
    4   1   format version, 1
    5   1   kind: 1 client update, 2 aggregated update, 3 keyframe
    6   1   codec number of the compressor
    7   1   reserved, 0
    8   4   codec parameters
    12  4   round
    16  4   base version: version of the replica that the update is made on top of
    20  16  run digest
    36  16  layout digest of the trainable tensors
    52  16  chain digest of the base version
    68  8   body length in bytes
    76  ..  body
    ..  8   checksum: BLAKE2b-64 of all bytes before

The checksum finds accidents, not attacks: who sent a frame is a matter of the connection and of node keys.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

from distro_fed.errors import (
    BadMagic,
    ChecksumMismatch,
    TruncatedFrame,
    UnknownCodec,
    UnsupportedVersion,
    UpdateError,
    WrongBase,
    WrongCodec,
    WrongLayout,
    WrongRun,
)

MAGIC = b"DFED"
VERSION = 1
_HEADER = struct.Struct("<4sBBBBIII16s16s16sQ")
HEADER_BYTES = _HEADER.size
CHECKSUM_BYTES = 8
OVERHEAD_BYTES = HEADER_BYTES + CHECKSUM_BYTES


class Kind(IntEnum):
    """What a frame holds."""

    CLIENT = 1
    AGGREGATE = 2
    KEYFRAME = 3


@dataclass(frozen=True, slots=True)
class Update:
    """A parsed frame.

    Attributes
    ----------
    kind : Kind
    codec : int
        Number of the compressor, 1..255 (``Compressor.codec``).
    parameters : int
        ``Compressor.parameters()``, 32 bits.
    round : int
        Round in which it was made, from 1.
    base_version : int
        Version of the replica that it applies to. An aggregated update leads to ``base_version + 1``;
        a keyframe *is* ``base_version``.
    run, layout, chain : bytes
        16 bytes each: run digest, layout digest, chain digest of ``base_version``.
    body : bytes or memoryview
        What the compressor encoded; of a parsed frame a view into it, not a copy. Not yet checked:
        ``Compressor.decode`` does that.
    """

    kind: Kind
    codec: int
    parameters: int
    round: int
    base_version: int
    run: bytes
    layout: bytes
    chain: bytes
    body: bytes | memoryview

    def to_bytes(self) -> bytes:
        """Serialise to one frame of ``OVERHEAD_BYTES + len(body)`` bytes."""
        return b"".join(self._parts())

    def _parts(self) -> tuple[bytes, bytes | memoryview, bytes]:
        header = _HEADER.pack(
            MAGIC, VERSION, self.kind, self.codec, 0, self.parameters, self.round, self.base_version,
            self.run, self.layout, self.chain, len(self.body),
        )  # fmt: skip
        state = hashlib.blake2b(header, digest_size=CHECKSUM_BYTES)
        state.update(self.body)
        return header, self.body, state.digest()

    @property
    def digest(self) -> bytes:
        """16 bytes over everything that the update says; the links of the version chain."""
        state = hashlib.blake2b(digest_size=16, person=b"df-update")
        for part in self._parts():
            state.update(part)
        return state.digest()

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return OVERHEAD_BYTES + len(self.body)


def parse_frame(data: bytes | memoryview) -> Update:
    """Parse exactly one frame.

    Nothing is allocated for the body before its length is known to be that of ``data``.

    Raises
    ------
    TruncatedFrame, BadMagic, UnsupportedVersion, UnknownCodec, ChecksumMismatch
    """
    update, end = _parse_at(memoryview(data), 0)
    if end != len(data):
        raise TruncatedFrame(f"{len(data) - end} bytes follow the frame of {end} bytes; exactly one frame is expected")
    return update


def parse_frames(data: bytes | memoryview, limit: int = 100_000) -> list[Update]:
    """Parse a bundle: frames one after the other, nothing between or after them.

    Raises
    ------
    UpdateError
        As :func:`parse_frame`; also if there are more than ``limit`` frames.
    """
    view, start, updates = memoryview(data), 0, list[Update]()
    while start < len(view):
        if len(updates) == limit:
            raise UpdateError(f"more than {limit} frames in one bundle of {len(view)} bytes")
        update, start = _parse_at(view, start)
        updates.append(update)
    return updates


def _parse_at(view: memoryview, start: int) -> tuple[Update, int]:
    left = len(view) - start
    if left < 4 or view[start : start + 4] != MAGIC:
        found = bytes(view[start : start + 4])
        if MAGIC.startswith(found) and left < 4:
            raise TruncatedFrame(f"only {left} bytes at offset {start}; a frame has at least {OVERHEAD_BYTES}")
        raise BadMagic(f"frame starts with {found!r} instead of {MAGIC!r}; this is not an update of this package")
    if left >= 5 and view[start + 4] != VERSION:
        raise UnsupportedVersion(
            f"frame has format version {view[start + 4]}, this release reads {VERSION}; "
            "all members of a run need releases with the same format version"
        )
    if left < OVERHEAD_BYTES:
        raise TruncatedFrame(f"only {left} bytes at offset {start}; a frame has at least {OVERHEAD_BYTES}")
    _, _, kind, codec, reserved, parameters, round_, base, run, layout, chain, length = _HEADER.unpack_from(view, start)
    if kind not in Kind.__members__.values() or codec == 0 or reserved != 0:
        raise UnknownCodec(f"frame has kind {kind}, codec {codec}, reserved byte {reserved}; this release has no such")
    if length > left - OVERHEAD_BYTES:
        raise TruncatedFrame(f"frame announces a body of {length} bytes, but only {left - OVERHEAD_BYTES} are there")
    body_start = start + HEADER_BYTES
    body_end = body_start + length
    checksum = hashlib.blake2b(view[start:body_end], digest_size=CHECKSUM_BYTES).digest()
    end = body_end + CHECKSUM_BYTES
    if checksum != view[body_end:end]:
        raise ChecksumMismatch(
            f"checksum of the frame at offset {start} is {bytes(view[body_end:end]).hex()}, computed {checksum.hex()}: "
            "it was damaged on the way"
        )
    body = view[body_start:body_end]
    return Update(Kind(kind), codec, parameters, round_, base, run, layout, chain, body), end


def check_update(
    update: Update,
    *,
    kind: Kind,
    run: bytes,
    layout: bytes,
    base_version: int,
    chain: bytes,
    codec: int,
    parameters: int,
) -> None:
    """Check that an update is the one that is expected here.

    Raises
    ------
    WrongRun, WrongLayout, WrongBase, WrongCodec
        The first of these that does not hold, with both values.
    """
    if update.run != run:
        raise WrongRun(f"update of run {update.run.hex()}, this is run {run.hex()}")
    if update.layout != layout:
        raise WrongLayout(
            f"update for tensor layout {update.layout.hex()}, this run trains {layout.hex()}; base model, mode, rank "
            "and target modules must be the same for all members"
        )
    if update.kind != kind:
        raise WrongCodec(f"frame of kind {update.kind.name}, expected {kind.name}")
    if update.codec != codec or update.parameters != parameters:
        raise WrongCodec(
            f"update made by codec {update.codec} with parameters {update.parameters:#x}, this run uses codec {codec} "
            f"with {parameters:#x}"
        )
    if update.base_version != base_version or update.chain != chain:
        raise WrongBase(
            f"update on top of version {update.base_version} ({update.chain.hex()}), expected version {base_version} "
            f"({chain.hex()})"
        )
