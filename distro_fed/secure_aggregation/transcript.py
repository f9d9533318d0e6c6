"""What has been said in an attempt, as a chain of digests; each covers all before it.

Key derivations are salted with the newest of them and every signature covers it, so that messages of different
attempts, or of members who were told different things, do not fit together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from distro_fed.secure_aggregation.encoding import digest, encode, encode_members
from distro_fed.secure_aggregation.messages import Kind, encode_table


def keys_transcript(context: bytes, rows: Mapping[int, bytes]) -> bytes:
    """After stage 1: the attempt and the signed keys of all who take part."""
    return digest("keys transcript", context, encode_table(rows))


def masking_transcript(keys: bytes, members: Iterable[int], model: bytes) -> bytes:
    """After stage 2: also who shared secrets, and the digest of the model that all train on."""
    return digest("masking transcript", keys, encode_members(members), model)


def survivor_transcript(masking: bytes, survivors: Iterable[int]) -> bytes:
    """After stage 3: also whose vectors are in the sum."""
    return digest("survivor transcript", masking, encode_members(survivors))


def body_digest(body: bytes | memoryview) -> bytes:
    """SHA-256 of a body: signing hashes its input twice, which a long vector need not go through."""
    return hashlib.sha256(body).digest()


def signed_bytes(kind: Kind, sender: int, transcript: bytes, digest_of_body: bytes) -> bytes:
    """What the signature of a message covers.

    Parameters
    ----------
    transcript : bytes
        The newest when the message is made: the context for an advertisement, the keys transcript for shares, the
        masking transcript for a masked vector, the survivor transcript for the last two.
    digest_of_body : bytes
        :func:`body_digest` of it.
    """
    return encode("signed", int(kind), sender, transcript, digest_of_body)
