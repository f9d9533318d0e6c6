"""Certificates and keys of a deployment, in the formats that Flower's own commands take.

One authority (``ca.crt``, ``ca.key``) signs the certificate of the SuperLink (``server.crt``, ``server.key``).
SuperNodes trust the authority, so a new server certificate changes nothing for them. Each SuperNode has an ECDSA key in
OpenSSH format (``NAME.key``, ``NAME.pub``). Private files have mode 0600.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from distro_fed.errors import DeploymentError
from distro_fed.files import write_atomically

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVER, SERVER_KEY = "server.crt", "server.key"
#: the SuperLink's own processes reach it under these
LOOPBACK = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650
SERVER_DAYS = 365

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HOST = re.compile(r"(?=.{1,253}$)(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)(\.[A-Za-z0-9-]{1,63})*")
_FORMAT = serialization.PrivateFormat
_NONE = serialization.NoEncryption()


def create_certificates(
    folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS, start: datetime.datetime | None = None
) -> x509.Certificate:
    """Make the SuperLink's certificate, and the authority that signs it if there is none yet.

    Parameters
    ----------
    folder : Path
        Of the four files; made with mode 0700 if it is not there. An authority that lies there is kept, the server's
        files are replaced.
    hosts : sequence of str
        Names and addresses under which SuperNodes reach the SuperLink; those of this machine itself are added.
    days : int
        Days that the certificate is valid.
    start : datetime, optional
        When that begins; by default now, less an hour for clocks that differ.

    Returns
    -------
    x509.Certificate
        The server's.

    Raises
    ------
    DeploymentError
        A host is no host, ``days`` is not positive, or the authority cannot be used.
    """
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    if days < 1:
        raise DeploymentError(f"a certificate for {days} days is never valid: give 1 or more")
    start = start or datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    start = start.replace(microsecond=0)  # certificates count seconds
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / AUTHORITY).exists() and not (folder / AUTHORITY_KEY).exists():
        _create_authority(folder, start)
    authority, authority_key = _read_authority(folder)
    end = start + datetime.timedelta(days=days)
    if end > authority.not_valid_after_utc:
        raise DeploymentError(
            f"{folder / AUTHORITY} ends on {authority.not_valid_after_utc:%Y-%m-%d}, before the certificate would on "
            f"{end:%Y-%m-%d}: ask for fewer days, or move {AUTHORITY} and {AUTHORITY_KEY} away for a new authority, "
            f"whose {AUTHORITY} every organisation needs"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _certificate(_subject("SuperLink"), authority.subject, key.public_key(), start, end)
    for extension, critical in (
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(authority_key, hashes.SHA256())
    _write_private(folder / SERVER_KEY, key.private_bytes(serialization.Encoding.PEM, _FORMAT.PKCS8, _NONE))
    write_atomically(folder / SERVER, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate


def create_node_key(folder: Path, name: str) -> Path:
    """Make the key by which the SuperLink knows a SuperNode; returns the file of the public key.

    Raises
    ------
    DeploymentError
        The name is not usable, or there is a key already: it is never replaced.
    """
    if not _NAME.fullmatch(name):
        raise DeploymentError(f"node name {name!r}: use letters, digits, '_', '.' and '-', at most 63")
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    if private.exists():
        raise DeploymentError(f"{private} exists already; a key is never replaced: choose another name or move it away")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(private, key.private_bytes(serialization.Encoding.PEM, _FORMAT.OpenSSH, _NONE))
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomically(public, text + f" {name}\n".encode())
    return public


def describe(path: Path) -> list[str]:
    """Lines about a certificate or public key for a person: whom it is for, how long it is valid, fingerprint.

    Raises
    ------
    DeploymentError
        The file is neither.
    """
    data = path.read_bytes()
    if data.startswith(b"-----BEGIN CERTIFICATE-----"):
        certificate = _certificate_of(path, data)
        lines = [certificate.subject.rfc4514_string()]
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            lines.append(f"for {', '.join(str(name.value) for name in names)}")
        except x509.ExtensionNotFound:
            pass
        lines.append(f"valid until {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        return [*lines, f"SHA-256 {_groups(certificate.fingerprint(hashes.SHA256()))}"]
    try:
        digest = serialization.ssh_key_fingerprint(serialization.load_ssh_public_key(data), hashes.SHA256())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeploymentError(f"{path} is neither a certificate nor a node's public key (*.crt, *.pub)") from error
    # as ssh-keygen -l prints it
    return [f"node key {path.stem}", f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"]


def _create_authority(folder: Path, start: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _subject("SuperLink authority")
    end = start + datetime.timedelta(days=AUTHORITY_DAYS)
    certificate = (
        _certificate(subject, subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA384())
    )
    _write_private(folder / AUTHORITY_KEY, key.private_bytes(serialization.Encoding.PEM, _FORMAT.PKCS8, _NONE))
    write_atomically(folder / AUTHORITY, certificate.public_bytes(serialization.Encoding.PEM))


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    crt, key_file = folder / AUTHORITY, folder / AUTHORITY_KEY
    for path, other in ((crt, key_file), (key_file, crt)):
        if not path.exists():
            raise DeploymentError(f"{path} is missing beside {other.name}: restore it, or move the other away too")
    certificate = _certificate_of(crt, crt.read_bytes())
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeploymentError(f"{key_file} is not a private key in PEM without password: restore it") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise DeploymentError(f"{key_file} is not the key of {crt}: restore the pair")
    return certificate, key


def _certificate_of(path: Path, data: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise DeploymentError(f"{path} is not a certificate in PEM: restore it") from error


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    start: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "distro_fed"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _key_usage(**usages: bool) -> x509.KeyUsage:
    nothing: dict[str, Any] = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        False,
    )  # fmt: skip
    return x509.KeyUsage(**nothing | usages)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise DeploymentError(f"host {host!r} is neither a name nor an address; leave out scheme and port")
    return x509.DNSName(host)


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that nobody else may read, at no moment: it gets its name when it is complete."""
    beside = path.with_name(f".{path.name}.part")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)


def _groups(digest: bytes) -> str:
    digits = digest.hex()
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
