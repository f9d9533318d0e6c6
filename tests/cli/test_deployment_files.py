from __future__ import annotations

import datetime
import socket
import ssl
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from distro_fed.cli.deployment_files import (
    AUTHORITY,
    AUTHORITY_KEY,
    SERVER,
    SERVER_KEY,
    create_certificates,
    create_node_key,
    describe,
)
from distro_fed.errors import DeploymentError

NOW = datetime.datetime.now(datetime.UTC)


def handshake(folder: Path, authority: Path, name: str) -> None:
    """A TLS client that trusts ``authority`` connects to a server with the certificate in ``folder``."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / SERVER, folder / SERVER_KEY)
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()

    def serve() -> None:
        with suppress(OSError), server.wrap_socket(far, server_side=True):
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=name):
            pass
    finally:
        near.close()
        thread.join()


def test_a_client_that_trusts_the_authority_connects_under_every_name(tmp_path: Path) -> None:
    create_certificates(tmp_path, ["fed.example.org", "10.1.2.3"])
    for name in ("fed.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1"):
        handshake(tmp_path, tmp_path / AUTHORITY, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path, tmp_path / AUTHORITY, "other.example.org")


def test_another_authority_and_an_expired_certificate_are_refused(tmp_path: Path) -> None:
    create_certificates(tmp_path / "one", [])
    create_certificates(tmp_path / "two", [])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "one", tmp_path / "two" / AUTHORITY, "localhost")
    create_certificates(tmp_path / "one", [], days=1, start=NOW - datetime.timedelta(days=30))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(tmp_path / "one", tmp_path / "one" / AUTHORITY, "localhost")


def test_renewal_keeps_the_authority(tmp_path: Path) -> None:
    create_certificates(tmp_path, [])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    create_certificates(tmp_path, ["new.example.org"])
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == after.keys() == {AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY}
    assert {name for name in before if before[name] == after[name]} == {AUTHORITY, AUTHORITY_KEY}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / AUTHORITY).write_bytes(before[AUTHORITY])
    handshake(tmp_path, tmp_path / "old" / AUTHORITY, "new.example.org")


def test_private_files_are_private(tmp_path: Path) -> None:
    create_certificates(tmp_path / "certificates", [])
    create_node_key(tmp_path / "keys", "clinic")
    for path in (*tmp_path.glob("*/*.key"),):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_the_node_key_is_what_flower_reads(tmp_path: Path) -> None:
    public = create_node_key(tmp_path, "clinic")
    private = serialization.load_ssh_private_key((tmp_path / "clinic.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert serialization.load_ssh_public_key(public.read_bytes()) == private.public_key()


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    create_node_key(tmp_path, "clinic")
    before = (tmp_path / "clinic.key").read_bytes()
    with pytest.raises(DeploymentError, match="never replaced"):
        create_node_key(tmp_path, "clinic")
    assert (tmp_path / "clinic.key").read_bytes() == before


@pytest.mark.parametrize("name", ["", "../clinic", "a/b", ".hidden", "x" * 64, "two words"])
def test_a_node_name_is_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeploymentError, match="node name"):
        create_node_key(tmp_path / "keys", name)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("host", ["", "https://fed.example.org", "fed.example.org:8443", "a b", "-a.org", "ä.org"])
def test_a_host_is_a_name_or_an_address(tmp_path: Path, host: str) -> None:
    with pytest.raises(DeploymentError, match="neither a name nor an address"):
        create_certificates(tmp_path / "certificates", [host])
    assert not (tmp_path / "certificates").exists()


def test_half_an_authority_is_not_used(tmp_path: Path) -> None:
    create_certificates(tmp_path / "one", [])
    create_certificates(tmp_path / "two", [])
    (tmp_path / "one" / AUTHORITY_KEY).write_bytes((tmp_path / "two" / AUTHORITY_KEY).read_bytes())
    with pytest.raises(DeploymentError, match="is not the key of"):
        create_certificates(tmp_path / "one", [])
    (tmp_path / "one" / AUTHORITY_KEY).write_text("nonsense")
    with pytest.raises(DeploymentError, match="not a private key"):
        create_certificates(tmp_path / "one", [])
    (tmp_path / "one" / AUTHORITY_KEY).unlink()
    with pytest.raises(DeploymentError, match=r"ca\.key is missing beside ca\.crt"):
        create_certificates(tmp_path / "one", [])
    (tmp_path / "two" / AUTHORITY).write_text("nonsense")
    with pytest.raises(DeploymentError, match="not a certificate"):
        create_certificates(tmp_path / "two", [])


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    create_certificates(tmp_path, [], days=3650, start=NOW)
    with pytest.raises(DeploymentError, match="ask for fewer days"):
        create_certificates(tmp_path, [], days=3660, start=NOW)
    with pytest.raises(DeploymentError, match="0 days"):
        create_certificates(tmp_path, [], days=0)


def test_descriptions_are_for_comparison(tmp_path: Path) -> None:
    certificate = create_certificates(tmp_path, ["fed.example.org"], days=10)
    lines = describe(tmp_path / SERVER)
    assert any("fed.example.org" in line for line in lines)
    assert f"valid until {certificate.not_valid_after_utc:%Y-%m-%d}" in "\n".join(lines)
    assert lines[-1].startswith("SHA-256 ") and lines != describe(tmp_path / AUTHORITY)
    assert describe(create_node_key(tmp_path, "clinic"))[0] == "node key clinic"
    with pytest.raises(DeploymentError, match="neither a certificate"):
        describe(tmp_path / SERVER_KEY)


def test_the_authority_signs_nothing_but_servers(tmp_path: Path) -> None:
    create_certificates(tmp_path, [])
    authority = x509.load_pem_x509_certificate((tmp_path / AUTHORITY).read_bytes())
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value.ca and constraints.value.path_length == 0
