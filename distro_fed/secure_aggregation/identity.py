"""A member's signing key: an Ed25519 key (RFC 8032) in a file that only its owner may read, with a ledger beside it."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distro_fed.errors import IdentityError
from distro_fed.secure_aggregation.encoding import digest, encode
from distro_fed.secure_aggregation.key_agreement import KEY_BYTES, derive
from distro_fed.secure_aggregation.ledger import create_ledger
from distro_fed.secure_aggregation.toml_file import TomlFile

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_PREFIX = "ed25519:"


@dataclass(frozen=True)
class Identity:
    """Name and signing key of one member.

    Attributes
    ----------
    name : str
        As in the roster.
    private : bytes
        32 bytes, never sent and not shown by ``repr``.
    """

    name: str
    private: bytes = field(repr=False)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.private)

    @cached_property
    def public(self) -> bytes:
        """32-byte public key."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """64-byte signature."""
        return self._key.sign(data)

    @cached_property
    def sealing_key(self) -> bytes:
        """AES-256 key for what this member keeps between stages."""
        return derive(self.private, b"", encode("seal"))


def create_identity(path: str | Path, name: str) -> Identity:
    """Make a new key and write it to ``path`` (mode 0600), and an empty ledger beside it.

    Raises
    ------
    IdentityError
        If the name is not usable or the file exists: a key is never replaced.
    LedgerError
        If there is a ledger already.
    """
    path = Path(path)
    check_name(name, IdentityError)
    if path.exists():
        raise IdentityError(f"{path} exists already; a key is never replaced: choose another file or move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = Identity(name, os.urandom(KEY_BYTES))
    create_ledger(ledger_path(path))
    text = (
        "# Identity of one member in secure aggregation. Keep this file secret and do not copy it: two machines with\n"
        "# one identity could answer the same round twice. Only the public key belongs in the roster.\n"
        f'name = "{name}"\n'
        f'public-key = "{format_key(identity.public)}"\n'
        f'private-key = "{format_key(identity.private)}"\n'
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    return identity


def read_identity(path: str | Path) -> Identity:
    """Read and check an identity.

    Raises
    ------
    IdentityError
        If the file is missing, damaged, or may be read by others than its owner.
    """
    source = TomlFile.read(path, IdentityError, "make one with create_identity")
    mode = stat.S_IMODE(source.path.stat().st_mode)
    if mode & 0o077:
        raise IdentityError(f"{path} has mode {mode:04o}, so others can read the key; run: chmod 600 {path}")
    source.check_keys(source.data, ("name", "public-key", "private-key"))
    name = source.take(source.data, "name", str)
    if not NAME.fullmatch(name):
        raise source.fail("name", f"name = {name!r} does not match {NAME.pattern}")
    try:
        private = parse_key(source.take(source.data, "private-key", str))
        public = parse_key(source.take(source.data, "public-key", str))
    except ValueError:
        # the value itself is a secret
        raise source.fail("private-key", "a key is 'ed25519:' and 32 bytes in base64; restore the file") from None
    identity = Identity(name, private)
    if identity.public != public:
        raise source.fail("public-key", "this public key does not belong to the private key; restore the file")
    return identity


def show_identity(identity: Identity) -> str:
    """What others may know: name, public key, and a fingerprint to read out on the telephone."""
    return f"{identity.name}\n{format_key(identity.public)}\nfingerprint {fingerprint(identity.public)}"


def ledger_path(identity_path: str | Path) -> Path:
    """The ledger that belongs to an identity file."""
    return Path(identity_path).with_suffix(".ledger")


def fingerprint(public: bytes) -> str:
    """80 bits of a digest of a public key, in groups of four hex digits."""
    digits = digest("fingerprint", public).hex()[:20]
    return " ".join(digits[start : start + 4] for start in range(0, 20, 4))


def format_key(key: bytes) -> str:
    """A key as text."""
    return _PREFIX + base64.b64encode(key).decode()


def parse_key(text: str) -> bytes:
    """Inverse of :func:`format_key`.

    Raises
    ------
    ValueError
        If it is not a key; the text does not say what it was.
    """
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not text.startswith(_PREFIX) or len(key) != KEY_BYTES:
        raise ValueError(f"a key is {_PREFIX!r} and {KEY_BYTES} bytes in base64")
    return key


def check_name(name: str, error: type[Exception]) -> None:
    """Raise ``error`` unless a member or federation can be called so."""
    if not NAME.fullmatch(name):
        raise error(f"name {name!r} does not match {NAME.pattern}; use letters, digits, '_', '.' and '-'")
