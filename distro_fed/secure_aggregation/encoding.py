"""Bytes that mean exactly one thing: what is hashed, signed and fed to key derivation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from distro_fed.errors import EncodingError

#: first field of everything that is hashed or signed; changes with the protocol
DOMAIN = b"distro-fed secure aggregation 2"
#: members of a roster have the indices 0 to 254; 255 stands for the server
MAX_MEMBERS = 255
MEMBER_SET_BYTES = 32
DIGEST_BYTES = 32


def encode(name: str, *fields: bytes | int | str) -> bytes:
    """Injective encoding of a name and fields: each with its type and its length in front.

    Integers are 0 <= value < 2**64.
    """
    out = [_DOMAIN_FIELD, _field(b"s", name.encode())]
    for field in fields:
        if isinstance(field, int):
            out.append(_field(b"i", field.to_bytes(8, "big")))
        elif isinstance(field, str):
            out.append(_field(b"s", field.encode()))
        else:
            out.append(_field(b"b", field))
    return b"".join(out)


def digest(name: str, *fields: bytes | int | str) -> bytes:
    """SHA-256 of :func:`encode`."""
    return hashlib.sha256(encode(name, *fields)).digest()


def encode_members(members: Iterable[int]) -> bytes:
    """A set of roster indices as 256 bits, lowest bit of the first byte first.

    Raises
    ------
    EncodingError
        If an index is not in 0..254.
    """
    bits = 0
    for member in members:
        if not 0 <= member < MAX_MEMBERS:
            raise EncodingError(f"member index {member} is not in 0..{MAX_MEMBERS - 1}")
        bits |= 1 << member
    return bits.to_bytes(MEMBER_SET_BYTES, "little")


def decode_members(data: bytes | memoryview) -> tuple[int, ...]:
    """Inverse of :func:`encode_members`, in increasing order.

    Raises
    ------
    EncodingError
        If the length is wrong or bit 255, which stands for nobody, is set.
    """
    bits = int.from_bytes(data, "little")
    if len(data) != MEMBER_SET_BYTES or bits >> MAX_MEMBERS:
        raise EncodingError(f"{bytes(data).hex()} is not a set of members")
    members = []
    while bits:
        members.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return tuple(members)


def _field(kind: bytes, value: bytes) -> bytes:
    return kind + len(value).to_bytes(4, "big") + value


_DOMAIN_FIELD = _field(b"d", DOMAIN)
