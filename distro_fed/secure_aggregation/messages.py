"""The eleven messages as bytes.

Every message has a header of 40 bytes, then a body, then, if a member sends it, an Ed25519 signature of 64 bytes::

    0   4   magic "DFSA"
    4   1   protocol version, 2
    5   1   kind
    6   1   sender: index in the roster, 255 for the server
    7   1   reserved, 0
    8   32  context: digest of the proposal

Numbers are little-endian. Most bodies are a table: a set of members (32 bytes) and a row of fixed size for each of them
in increasing order. A length that is not the one that its own set gives is refused before anything is done with it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.encoding import (
    DIGEST_BYTES,
    MAX_MEMBERS,
    MEMBER_SET_BYTES,
    decode_members,
    encode_members,
)
from distro_fed.secure_aggregation.key_agreement import KEY_BYTES, TAG_BYTES
from distro_fed.secure_aggregation.refusals import Reason, refuse
from distro_fed.secure_aggregation.shamir import SHARE_BYTES

MAGIC = b"DFSA"
VERSION = 2
SERVER = MAX_MEMBERS
SIGNATURE_BYTES = 64
_HEADER = struct.Struct("<4sBBBB32s")
HEADER_BYTES = _HEADER.size
#: rows of tables
ADVERTISEMENT_BYTES = 2 * KEY_BYTES + DIGEST_BYTES
KEYS_ROW_BYTES = ADVERTISEMENT_BYTES + SIGNATURE_BYTES
ENCRYPTED_SHARES_BYTES = 2 * SHARE_BYTES + TAG_BYTES


class Kind(IntEnum):
    """What a message is; the server sends the odd ones, members the even ones and refusals."""

    PROPOSAL = 1
    ADVERTISEMENT = 2
    KEYS = 3
    SHARES = 4
    DELIVERY = 5
    MASKED_VECTOR = 6
    SURVIVOR_SET = 7
    ACKNOWLEDGEMENT = 8
    PROOF = 9
    UNMASK_SHARES = 10
    REFUSAL = 11


_SIGNED = {Kind.ADVERTISEMENT, Kind.SHARES, Kind.MASKED_VECTOR, Kind.ACKNOWLEDGEMENT, Kind.UNMASK_SHARES}


@dataclass(frozen=True, slots=True)
class Message:
    """A message whose header is sound; its body is not looked at yet.

    Attributes
    ----------
    kind : Kind
    sender : int
        Index in the roster, or :data:`SERVER`.
    context : bytes
        32 bytes that name the attempt.
    body : bytes or memoryview
        Of a parsed message a view, not a copy.
    signature : bytes
        Empty if the kind is not signed.
    """

    kind: Kind
    sender: int
    context: bytes
    body: bytes | memoryview = b""
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """Header, body and signature."""
        return header(self.kind, self.sender, self.context) + self.body + self.signature


def header(kind: Kind, sender: int, context: bytes) -> bytes:
    """The 40 bytes that a message starts with."""
    return _HEADER.pack(MAGIC, VERSION, kind, sender, 0, context)


def parse(data: bytes | memoryview) -> Message:
    """Read the header and cut off the signature.

    Raises
    ------
    Refused
        ``malformed`` or ``unsupported-version``.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise refuse(Reason.MALFORMED, f"{len(view)} bytes; a message has at least {HEADER_BYTES}")
    magic, version, kind, sender, reserved, context = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise refuse(Reason.MALFORMED, f"starts with {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise refuse(Reason.UNSUPPORTED_VERSION, f"version {version}; this release speaks {VERSION}")
    if kind not in Kind.__members__.values() or reserved:
        raise refuse(Reason.MALFORMED, f"kind {kind}, reserved byte {reserved}")
    kind = Kind(kind)
    if (sender == SERVER) != (kind % 2 == 1 and kind is not Kind.REFUSAL):
        raise refuse(Reason.MALFORMED, f"{kind.name} from sender {sender}")
    end = len(view) - SIGNATURE_BYTES if kind in _SIGNED else len(view)
    if end < HEADER_BYTES:
        raise refuse(Reason.MALFORMED, f"{kind.name} of {len(view)} bytes has no room for its signature")
    return Message(kind, sender, context, view[HEADER_BYTES:end], bytes(view[end:]))


def encode_table(rows: Mapping[int, bytes]) -> bytes:
    """A set of members and a row for each."""
    return encode_members(rows) + b"".join(rows[member] for member in sorted(rows))


def decode_table(body: bytes | memoryview, row_bytes: int) -> dict[int, bytes]:
    """Inverse of :func:`encode_table`, in increasing order of members.

    Raises
    ------
    Refused
        ``malformed``: the length is not that of the set of members.
    """
    if len(body) < MEMBER_SET_BYTES:
        raise refuse(Reason.MALFORMED, f"table of {len(body)} bytes")
    try:
        members = decode_members(body[:MEMBER_SET_BYTES])
    except EncodingError as error:
        raise refuse(Reason.MALFORMED, str(error)) from None
    if len(body) != MEMBER_SET_BYTES + len(members) * row_bytes:
        raise refuse(Reason.MALFORMED, f"table of {len(body)} bytes for {len(members)} rows of {row_bytes}")
    starts = range(MEMBER_SET_BYTES, len(body), row_bytes) if row_bytes else [0] * len(members)
    return {member: bytes(body[start : start + row_bytes]) for member, start in zip(members, starts, strict=True)}


def encode_delivery(model: bytes, rows: Mapping[int, bytes]) -> bytes:
    """Body of a delivery: digest of the model to train on, and the encrypted shares for one member by their senders."""
    return model + encode_table(rows)


def decode_delivery(body: bytes | memoryview) -> tuple[bytes, dict[int, bytes]]:
    """Inverse of :func:`encode_delivery`.

    Raises
    ------
    Refused
        ``malformed``.
    """
    return bytes(body[:DIGEST_BYTES]), decode_table(body[DIGEST_BYTES:], ENCRYPTED_SHARES_BYTES)


def refusal(reason: Reason | str, text: str, sender: int, context: bytes = bytes(DIGEST_BYTES)) -> bytes:
    """A refusal as a message: two ASCII strings, each with its length in a byte before it. It holds no data."""
    words = [word.encode("ascii", "replace")[:255] for word in (str(reason), text)]
    body = b"".join(len(word).to_bytes(1, "little") + word for word in words)
    return Message(Kind.REFUSAL, sender, context, body).to_bytes()


def read_refusal(message: Message) -> tuple[str, str]:
    """Reason and text of a refusal, printable.

    Raises
    ------
    Refused
        ``malformed``.
    """
    body, words = bytes(message.body), list[str]()
    for _ in range(2):
        size = body[0] if body else 0
        word, body = body[1 : 1 + size], body[1 + size :]
        if len(word) != size or not size or not all(32 <= character < 127 for character in word):
            raise refuse(Reason.MALFORMED, f"refusal of {len(message.body)} bytes")
        words.append(word.decode("ascii"))
    if body:
        raise refuse(Reason.MALFORMED, f"{len(body)} bytes after a refusal")
    return words[0], words[1]
