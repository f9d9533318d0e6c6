"""Secrets of one attempt, all derived from one 32-byte seed, and keys that two members share.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-256-GCM (NIST SP 800-38D). The salt of every derivation is the digest of
everything that was agreed on by then (context, keys transcript, masking transcript), so that a member who was told
something else gets keys that fit nobody's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from distro_fed.secure_aggregation import shamir
from distro_fed.secure_aggregation.encoding import digest, encode
from distro_fed.secure_aggregation.refusals import Reason, refuse

KEY_BYTES = 32
NONCE_BYTES, TAG_BYTES = 12, 16
SEALED_SEED_BYTES = NONCE_BYTES + KEY_BYTES + TAG_BYTES


def new_seed() -> bytes:
    """32 bytes of the operating system's randomness: the one secret kept between the stages of an attempt."""
    return os.urandom(KEY_BYTES)


def derive(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256; at most 255 * 32 bytes."""
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


@dataclass(frozen=True)
class AttemptSecrets:
    """What a member keeps to itself in one attempt.

    Parameters
    ----------
    seed : bytes
        32 bytes.
    context : bytes
        Digest of the proposal; the same seed gives other secrets in another attempt.
    """

    seed: bytes
    context: bytes

    @cached_property
    def channel_private(self) -> X25519PrivateKey:
        """For the shares sent to single members."""
        return private_key(self._derive("channel key"))

    @cached_property
    def mask_private(self) -> X25519PrivateKey:
        """For the pairwise masks."""
        return private_key(self.mask_key)

    @cached_property
    def mask_key(self) -> bytes:
        """Bytes of :attr:`mask_private`, clamped, so that they are a number below the prime of the shares."""
        key = bytearray(self._derive("mask key"))
        key[0] &= 248
        key[31] = key[31] & 127 | 64
        return bytes(key)

    @cached_property
    def self_mask(self) -> bytes:
        """Secret of the mask that covers this member's vector alone; a number of 255 bits."""
        secret = bytearray(self._derive("self mask"))
        secret[31] &= 127
        return bytes(secret)

    @property
    def rounding_key(self) -> bytes:
        """For stochastic rounding, which must not be known to others."""
        return self._derive("rounding")

    def commitment(self, member: int) -> bytes:
        """Binds the member to its self-mask secret and hides it (the secret has 255 bits of entropy)."""
        return self_mask_commitment(self.context, member, self.self_mask)

    def shares(self, points: list[int], threshold: int) -> list[bytes]:
        """64 bytes for each point: a share of the mask key and one of the self-mask secret."""
        mask_shares = shamir.split(self.mask_key, points, self._coefficients("mask key", threshold))
        self_shares = shamir.split(self.self_mask, points, self._coefficients("self mask", threshold))
        return [a + b for a, b in zip(mask_shares, self_shares, strict=True)]

    def _coefficients(self, name: str, threshold: int) -> list[int]:
        stream = self._derive(f"polynomial of {name}", (threshold - 1) * KEY_BYTES) if threshold > 1 else b""
        # reduction is uniform but for a distance of 2**-248
        return [
            int.from_bytes(stream[start : start + KEY_BYTES], "little") % shamir.PRIME
            for start in range(0, len(stream), KEY_BYTES)
        ]

    def _derive(self, name: str, length: int = KEY_BYTES) -> bytes:
        return derive(self.seed, self.context, encode(name), length)


def self_mask_commitment(context: bytes, member: int, secret: bytes) -> bytes:
    """What is advertised of a self-mask secret."""
    return digest("commitment", context, member, secret)


def private_key(raw: bytes) -> X25519PrivateKey:
    """X25519 private key from its 32 bytes; costs as much as an exchange."""
    return X25519PrivateKey.from_private_bytes(raw)


def public_key(private: X25519PrivateKey) -> bytes:
    """X25519 public key, 32 bytes."""
    return private.public_key().public_bytes_raw()


def exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    """X25519 shared secret.

    Raises
    ------
    Refused
        ``bad-key``: the public key has low order, so that the result would not be a secret.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise refuse(Reason.BAD_KEY) from None


def pair_mask_key(private: X25519PrivateKey, public: bytes, transcript: bytes, member: int, other: int) -> bytes:
    """AES-256 key of the mask between two members; the same from both sides."""
    low, high = sorted((member, other))
    return derive(exchange(private, public), transcript, encode("pair mask", low, high))


def self_mask_key(secret: bytes, transcript: bytes, member: int) -> bytes:
    """AES-256 key of a member's self-mask."""
    return derive(secret, transcript, encode("own mask", member))


@dataclass(frozen=True)
class ShareChannel:
    """The way of shares from one member to another.

    A key serves one ciphertext, hence the fixed nonce. Doing the stage again with the same transcript gives the same
    plaintext, and with another transcript another key.
    """

    secret: bytes
    transcript: bytes
    sender: int
    receiver: int

    def encrypt(self, shares: bytes) -> bytes:
        """Ciphertext, 16 bytes longer than the shares."""
        return self._cipher.encrypt(bytes(NONCE_BYTES), shares, self._bound)

    def decrypt(self, ciphertext: bytes) -> bytes:
        """Inverse of :meth:`encrypt`.

        Raises
        ------
        Refused
            ``bad-share``: it was not made by this sender, for this receiver, in this attempt.
        """
        try:
            return self._cipher.decrypt(bytes(NONCE_BYTES), ciphertext, self._bound)
        except InvalidTag:
            raise refuse(Reason.BAD_SHARE) from None

    @property
    def _cipher(self) -> AESGCM:
        return AESGCM(derive(self.secret, self.transcript, encode("share channel", self.sender, self.receiver)))

    @property
    def _bound(self) -> bytes:
        return encode("share", self.transcript, self.sender, self.receiver)


def seal_seed(key: bytes, seed: bytes, bound: bytes) -> bytes:
    """Encrypt a seed for keeping it between stages; ``bound`` is authenticated with it, in clear."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, seed, bound)


def open_seed(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    """Inverse of :func:`seal_seed`.

    Raises
    ------
    cryptography.exceptions.InvalidTag
        If it was sealed by another key, or it or ``bound`` was changed.
    """
    return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
