from __future__ import annotations

from pathlib import Path

import pytest

from distro_fed.errors import RosterError
from distro_fed.secure_aggregation.identity import Identity, fingerprint, format_key
from distro_fed.secure_aggregation.roster import (
    Member,
    Roster,
    add_member,
    create_roster,
    read_roster,
    show_roster,
)
from tests.secure_aggregation.members import identity, roster


def key(index: int) -> str:
    return format_key(identity(index).public)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "roster.toml"
    create_roster(path, "hospitals")
    add_member(path, "zeta", key(0))
    add_member(path, "alpha.north", key(1), weight=12)
    return path


def test_created_extended_and_read_back(path: Path) -> None:
    read = read_roster(path)
    assert [member.name for member in read.members] == ["alpha.north", "zeta"]
    assert read.members[0] == Member("alpha.north", identity(1).public, 12)
    assert read == Roster("hospitals", (Member("zeta", identity(0).public), read.members[0]))
    assert read.everybody == (0, 1)


def test_the_order_in_the_file_does_not_matter(path: Path) -> None:
    before = read_roster(path).digest
    head, first, second = path.read_text().split("\n[")
    path.write_text(f"{head}\n[{second}\n[{first}\n# a comment\n")
    assert read_roster(path).digest == before


def test_everything_is_in_the_digest() -> None:
    members = roster(3).members
    digests = {
        roster(3).digest,
        roster(4).digest,
        Roster("other", members).digest,
        Roster("federation", (*members[:2], Member(members[2].name, members[2].public, 99))).digest,
        Roster("federation", (*members[:2], Member("x", members[2].public, members[2].weight))).digest,
        Roster("federation", (*members[:2], Member(members[2].name, bytes(32), members[2].weight))).digest,
    }
    assert len(digests) == 6


def test_index(path: Path) -> None:
    read = read_roster(path)
    assert read.index(Identity("zeta", identity(0).private)) == 1
    with pytest.raises(RosterError, match=r"'zeta' with the key .*\(alpha\.north, zeta\)"):
        read.index(Identity("zeta", identity(2).private))
    with pytest.raises(RosterError, match="'eta'"):
        read.index(Identity("eta", identity(0).private))


def test_signatures() -> None:
    members, signature = roster(3), identity(1).sign(b"data")
    assert members.verify(1, signature, b"data")
    assert not members.verify(0, signature, b"data")
    assert not members.verify(1, signature, b"dato")
    assert not members.verify(3, signature, b"data")
    assert not members.verify(-1, signature, b"data")
    assert not members.verify(1, signature[:-1], b"data")
    assert not members.verify(1, b"", b"data")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("federation =", "federatoin =", "line 3: unknown key 'federatoin'; did you mean 'federation'"),
        ('"hospitals"', "5", "line 3: federation = 5 must be a string"),
        ('"hospitals"', '"a b"', "line 3: federation = 'a b'"),
        ("weight = 12", "weight = 0", "line 7: weight = 0"),
        ("weight = 12", "weight = true", "line 7: weight = True must be an integer"),
        ("weight = 12", "wait = 12", "line 7: unknown key 'wait'; did you mean 'weight'"),
        ("[members.zeta]", '[members."z z"]', "line 9: 'z z' is not a member"),
        (key(0), key(1), "line 10: 'zeta' has the same key as 'alpha.north'"),
        (key(0), "ed25519:AAAA", "line 10: public-key = 'ed25519:AAAA'"),
        (f'public-key = "{key(0)}"', "", "line 9: 'public-key' is missing in [members.zeta]"),
        ("[members.zeta]", "[members.zeta", "at line 9"),
        ("[members.zeta]", '[members."alpha.north"]', "line 9"),
    ],
)
def test_errors_name_file_and_line(path: Path, old: str, new: str, text: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(RosterError) as caught:
        read_roster(path)
    assert str(path) in str(caught.value)
    assert text in str(caught.value)


def test_missing_and_binary(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="not there"):
        read_roster(tmp_path / "roster.toml")
    (tmp_path / "roster.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RosterError, match="cannot be read"):
        read_roster(tmp_path / "roster.toml")


def test_adding_what_cannot_be(path: Path) -> None:
    before = path.read_text()
    for name, text, weight in (
        ("zeta", key(2), 1),
        ("new", key(0), 1),
        ("new", "ed25519:x", 1),
        ("new", key(2), 0),
        ("a b", key(2), 1),
    ):
        with pytest.raises(RosterError):
            add_member(path, name, text, weight)
    with pytest.raises(RosterError, match="exists already"):
        create_roster(path, "hospitals")
    assert path.read_text() == before


def test_256_members_are_too_many() -> None:
    members = tuple(Member(f"m{i}", i.to_bytes(32, "big")) for i in range(256))
    assert len(Roster("f", members[:255]).members) == 255
    with pytest.raises(RosterError, match="at most 255"):
        Roster("f", members)


def test_what_is_shown_can_be_compared_by_telephone(path: Path) -> None:
    shown = show_roster(read_roster(path))
    assert fingerprint(identity(0).public) in shown
    assert "alpha.north" in shown
    assert "weight 12" in shown
    assert read_roster(path).digest.hex()[:16] in shown
