"""Who belongs to the federation: names and public keys, exchanged out of band and never taken from the server.

::

    federation = "hospitals-2026"

    [members.alpha]
    public-key = "ed25519:..."
    weight = 1200              # optional, for the weighting "roster"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from distro_fed.errors import RosterError
from distro_fed.files import write_atomically
from distro_fed.secure_aggregation.encoding import MAX_MEMBERS, digest
from distro_fed.secure_aggregation.identity import (
    NAME,
    Identity,
    check_name,
    fingerprint,
    format_key,
    parse_key,
)
from distro_fed.secure_aggregation.toml_file import TomlFile

#: largest public weight
MAX_WEIGHT = 2**24 - 1


@dataclass(frozen=True, slots=True)
class Member:
    """One line of the roster.

    Attributes
    ----------
    name : str
    public : bytes
        32-byte Ed25519 key.
    weight : int
        For the weighting ``roster``, at least 1.
    """

    name: str
    public: bytes
    weight: int = 1


@dataclass(frozen=True)
class Roster:
    """All members, ordered by name; a member's index is its place in this order.

    Attributes
    ----------
    federation : str
    members : tuple of Member
    """

    federation: str
    members: tuple[Member, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members, key=lambda member: member.name)))
        if len(self.members) > MAX_MEMBERS:
            raise RosterError(f"{len(self.members)} members; at most {MAX_MEMBERS} can take part in one federation")
        for what, values in (
            ("name", [member.name for member in self.members]),
            ("public key", [format_key(member.public) for member in self.members]),
        ):
            double = next((value for value in values if values.count(value) > 1), None)
            if double is not None:
                raise RosterError(f"{what} {double!r} appears twice in the roster; each member has its own")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over federation, names, keys and weights; part of every attempt's context."""
        fields: list[bytes | int | str] = [self.federation]
        for member in self.members:
            fields += [member.name, member.public, member.weight]
        return digest("roster", *fields)

    @property
    def everybody(self) -> tuple[int, ...]:
        """All indices."""
        return tuple(range(len(self.members)))

    def index(self, identity: Identity) -> int:
        """Place of a member.

        Raises
        ------
        RosterError
            If no member has its name and its key.
        """
        for index, member in enumerate(self.members):
            if (member.name, member.public) == (identity.name, identity.public):
                return index
        names = ", ".join(member.name for member in self.members) or "nobody"
        raise RosterError(
            f"{identity.name!r} with the key of fingerprint {fingerprint(identity.public)} is not in the roster of "
            f"{self.federation!r} ({names}); all members need the roster that has it"
        )

    def verify(self, index: int, signature: bytes, data: bytes) -> bool:
        """Whether member ``index`` signed ``data``."""
        if not 0 <= index < len(self.members):
            return False
        try:
            self._keys[index].verify(signature, data)
        except InvalidSignature:
            return False
        return True

    @cached_property
    def _keys(self) -> list[Ed25519PublicKey]:
        return [Ed25519PublicKey.from_public_bytes(member.public) for member in self.members]


def create_roster(path: str | Path, federation: str, members: Iterable[Member] = ()) -> Roster:
    """Write a new roster.

    Raises
    ------
    RosterError
        If the file exists, or a name cannot be used.
    """
    if Path(path).exists():
        raise RosterError(f"{path} exists already; add members to it, or choose another file")
    check_name(federation, RosterError)
    roster = Roster(federation, tuple(members))
    _write(path, roster)
    return roster


def add_member(path: str | Path, name: str, public_key: str, weight: int = 1) -> Roster:
    """Add a member to the file; comments in it are lost. All members need the new file.

    Parameters
    ----------
    public_key : str
        ``ed25519:`` and base64, as ``show_identity`` prints it.
    """
    roster = read_roster(path)
    check_name(name, RosterError)
    try:
        public = parse_key(public_key)
    except ValueError as error:
        raise RosterError(f"public key {public_key!r}: {error}") from None
    if not 1 <= weight <= MAX_WEIGHT:
        raise RosterError(f"weight {weight} is not in 1..{MAX_WEIGHT}")
    roster = Roster(roster.federation, (*roster.members, Member(name, public, weight)))
    _write(path, roster)
    return roster


def read_roster(path: str | Path) -> Roster:
    """Read and check a roster.

    Raises
    ------
    RosterError
        With file and line.
    """
    source = TomlFile.read(path, RosterError, "get it from another member, or make one with create_roster")
    source.check_keys(source.data, ("federation", "members"))
    federation = source.take(source.data, "federation", str)
    if not NAME.fullmatch(federation):
        raise source.fail("federation", f"federation = {federation!r} does not match {NAME.pattern}")
    members = list[Member]()
    for name, values in source.take(source.data, "members", dict, {}).items():
        table = f"members.{name}"
        if not NAME.fullmatch(name) or not isinstance(values, dict):
            raise source.fail("", f"{name!r} is not a member: write [members.NAME] with NAME as {NAME.pattern}", table)
        source.check_keys(values, ("public-key", "weight"), table)
        text = source.take(values, "public-key", str, table=table)
        try:
            public = parse_key(text)
        except ValueError as error:
            raise source.fail("public-key", f"public-key = {text!r}: {error}", table) from None
        weight = source.take(values, "weight", int, 1, table)
        if not 1 <= weight <= MAX_WEIGHT:
            raise source.fail("weight", f"weight = {weight} is not in 1..{MAX_WEIGHT}", table)
        for other in members:
            if other.public == public:
                raise source.fail("public-key", f"{name!r} has the same key as {other.name!r}", table)
        members.append(Member(name, public, weight))
    try:
        return Roster(federation, tuple(members))
    except RosterError as error:
        raise RosterError(f"{path}: {error}") from None


def show_roster(roster: Roster) -> str:
    """A line for each member, with the fingerprint to compare out of band, and the digest of all."""
    lines = [f"federation {roster.federation}, {len(roster.members)} members, digest {roster.digest.hex()[:16]}"]
    for member in roster.members:
        weight = f"  weight {member.weight}" if member.weight != 1 else ""
        lines.append(f"  {member.name}  {fingerprint(member.public)}{weight}")
    return "\n".join(lines)


def _write(path: str | Path, roster: Roster) -> None:
    parts = [
        "# Members of the federation. Every member keeps the same file and compares the fingerprints with the others\n"
        "# by another way than through the server.\n"
        f'federation = "{roster.federation}"\n'
    ]
    for member in roster.members:
        name = member.name if re.fullmatch(r"[A-Za-z0-9_-]+", member.name) else f'"{member.name}"'
        parts.append(f'\n[members.{name}]\npublic-key = "{format_key(member.public)}"\n')
        if member.weight != 1:
            parts.append(f"weight = {member.weight}\n")
    write_atomically(path, "".join(parts))
