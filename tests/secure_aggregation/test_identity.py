from __future__ import annotations

import stat
from pathlib import Path

import pytest

from distro_fed.errors import IdentityError, LedgerError
from distro_fed.secure_aggregation.identity import (
    create_identity,
    fingerprint,
    format_key,
    ledger_path,
    parse_key,
    read_identity,
    show_identity,
)
from distro_fed.secure_aggregation.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secrets" / "identity.toml"


def test_created_and_read_back(path: Path) -> None:
    made = create_identity(path, "hospital-a")
    assert read_identity(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(made.sign(b"x")) == 64
    assert Ledger(ledger_path(path)).entries() == []


def test_every_identity_is_another(tmp_path: Path) -> None:
    assert create_identity(tmp_path / "a.toml", "a").private != create_identity(tmp_path / "b.toml", "a").private


def test_a_key_is_never_replaced(path: Path) -> None:
    create_identity(path, "a")
    before = path.read_text()
    with pytest.raises(IdentityError, match="never replaced"):
        create_identity(path, "a")
    assert path.read_text() == before


def test_a_ledger_without_its_identity_stops_a_new_one(path: Path) -> None:
    create_identity(path, "a")
    path.unlink()
    with pytest.raises(LedgerError, match="exists already"):
        create_identity(path, "a")
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_others_must_not_read_it(path: Path, mode: int) -> None:
    create_identity(path, "a")
    path.chmod(mode)
    with pytest.raises(IdentityError, match=f"{mode:04o}.*chmod 600"):
        read_identity(path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"identity\.toml is not there"):
        read_identity(tmp_path / "identity.toml")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('name = "a"', 'name = "a b"', "line 3: name = 'a b'"),
        ('name = "a"', 'nane = "a"', "line 3: unknown key 'nane'; did you mean 'name'"),
        ('name = "a"', "", "'name' is missing"),
        ('name = "a"', "name = 1", "line 3: name = 1 must be a string"),
        ("private-key", "private-key = 'x'\n#", "line 5: a key is"),
        ('public-key = "ed25519:', 'public-key = "ed25519:AAAA', "line 5: a key is"),
        ('name = "a"', 'name = "a', "line 3"),
    ],
)
def test_errors_name_file_and_line(path: Path, old: str, new: str, text: str) -> None:
    create_identity(path, "a")
    secret = path.read_text().split("private-key = ")[1].strip().strip('"')
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(IdentityError) as caught:
        read_identity(path)
    assert str(path) in str(caught.value)
    assert text in str(caught.value)
    assert secret.removeprefix("ed25519:") not in str(caught.value)


def test_keys_that_do_not_belong_together(path: Path, tmp_path: Path) -> None:
    create_identity(path, "a")
    other = create_identity(tmp_path / "other.toml", "b")
    own = read_identity(path)
    path.write_text(path.read_text().replace(format_key(own.public), format_key(other.public)))
    with pytest.raises(IdentityError, match="line 4: this public key does not belong"):
        read_identity(path)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a\n", "ä", "x" * 65, 'a"b'])
def test_names(path: Path, name: str) -> None:
    with pytest.raises(IdentityError, match="name"):
        create_identity(path, name)


def test_what_is_shown_holds_no_secret(path: Path) -> None:
    made = create_identity(path, "a")
    for shown in (show_identity(made), repr(made), str(made)):
        assert format_key(made.private) not in shown
        assert repr(made.private) not in shown
        assert made.private.hex() not in shown
    assert format_key(made.public) in show_identity(made)
    assert fingerprint(made.public) in show_identity(made)
    assert len(fingerprint(made.public)) == 24


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 43 + "=", "ed25519:" + "!" * 44])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(ValueError, match="32 bytes in base64"):
        parse_key(text)
