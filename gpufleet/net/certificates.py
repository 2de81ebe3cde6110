"""Make a team's own authority and the certificate of its scheduler.

Needs the `tls` extra: without it the import itself raises EXTRA_MISSING, so import this where it is used.

Clients and agents get `ca.pem` and trust nothing else. The authority's key stays in the scheduler's folder, so that a
certificate for further hosts, or a new one before the old expires, changes nothing at the clients.
"""

from __future__ import annotations

import inspect
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.tls import IDENTITY_SCHEME, OWN_NAME, read_certificate, read_key

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise GpufleetError(
        Reason.EXTRA_MISSING,
        "making certificates needs an optional part of the installation",
        next_step="Install it with: pip install 'gpufleet[tls]'",
    ) from None

AUTHORITY_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=730)
COMMON_NAME_CHARS_MAX = 64
CLOCK_TOLERANCE = timedelta(hours=1)
"""Certificates are valid from a little before they are made: the clocks of other machines may be behind."""


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """A program's own certificate and its key, both in PEM. It lives as long as the program, and in its memory only."""

    certificate: bytes
    key: bytes = field(repr=False)


class CertificateFiles:
    """Where the certificates of the authority and the server are, each with its private key.

    `ca_file` is what other machines need, the keys stay.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_file, self.ca_key_file = folder / "ca.pem", folder / "ca.key"
        self.cert_file, self.key_file = folder / "server.pem", folder / "server.key"


def make_certificates(folder: Path, hosts: Sequence[str]) -> CertificateFiles:
    """Make a server's certificate for these names and addresses, signed by the folder's authority, made if missing.

    The server's old certificate is replaced; an authority never is.
    """
    assert hosts
    files = CertificateFiles(folder)
    authority, signing_key = _authority_of(files)
    key = ec.generate_private_key(ec.SECP256R1())
    _write(files.key_file, _key_pem(key), 0o600)
    _write(files.cert_file, _pem(_server(key, hosts, authority, signing_key)), 0o644)
    return files


def _authority_of(files: CertificateFiles) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority of a folder with its key, made if missing."""
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not files.ca_file.exists():
        ca_key = ec.generate_private_key(ec.SECP256R1())
        _write(files.ca_key_file, _key_pem(ca_key), 0o600)
        _write(files.ca_file, _pem(_authority(ca_key)), 0o644)
    authority = x509.load_pem_x509_certificate(read_certificate(files.ca_file))
    signing_key = serialization.load_pem_private_key(read_key(files.ca_key_file), password=None)
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey), "the kind that this module makes"
    return authority, signing_key


def make_client_certificate(folder: Path, identity: str) -> Path:
    """A certificate with its key, in one file of mode 0600, for `node:gpu1` or the like; replaces an older one.

    The folder's authority signs it, and is made if missing.
    """
    files = CertificateFiles(folder)
    authority, signing_key = _authority_of(files)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(identity[:COMMON_NAME_CHARS_MAX]), authority.subject, key, SERVER_LIFETIME)
    uri = x509.UniformResourceIdentifier(f"{IDENTITY_SCHEME}{identity}")
    builder = _for_leaf(builder, [uri], ExtendedKeyUsageOID.CLIENT_AUTH)
    file = folder / f"{identity.replace(':', '-')}.pem"
    _write(file, _key_pem(key) + _pem(_signed(builder, key, signing_key)), 0o600)
    return file


def make_own_certificate(host: str) -> OwnCertificate:
    """A certificate that only itself has signed, for this host and OWN_NAME: for who is told to trust just this one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(OWN_NAME)
    builder = _for_hosts(_builder(name, name, key, AUTHORITY_LIFETIME), [OWN_NAME, host])
    return OwnCertificate(_pem(_signed(builder, key, key)), _key_pem(key))


def context_of(own: OwnCertificate) -> ssl.SSLContext:
    """What a server of asyncio needs to speak TLS with it.

    OpenSSL reads files only: for a moment there is one, with the key encrypted by what only this process knows.
    """
    password = os.urandom(32).hex().encode()
    key = serialization.load_pem_private_key(own.key, password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "certificate.pem"
        _write(file, encrypted + own.certificate, 0o600)
        context.load_cert_chain(file, password=password)
    return context


def expires(cert_file: Path) -> datetime:
    """When the certificate ends; `doctor` warns before."""
    return x509.load_pem_x509_certificate(read_certificate(cert_file)).not_valid_after_utc


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("gpufleet authority")
    builder = _builder(name, name, key, AUTHORITY_LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return _signed(builder, key, key)


def _server(
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    authority: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    builder = _builder(_name("gpufleet scheduler"), authority.subject, key, SERVER_LIFETIME)
    return _signed(_for_hosts(builder, hosts), key, ca_key)


def _for_hosts(builder: x509.CertificateBuilder, hosts: Sequence[str]) -> x509.CertificateBuilder:
    """Make it the certificate of a server with these names and addresses, and of nothing else."""
    return _for_leaf(builder, [_general_name(host) for host in hosts], ExtendedKeyUsageOID.SERVER_AUTH)


def _for_leaf(
    builder: x509.CertificateBuilder, names: Sequence[x509.GeneralName], use: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    usage = x509.ExtendedKeyUsage([use])
    return (
        builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(usage, critical=False)
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(now + lifetime)
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuers = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = builder.add_extension(own, critical=False).add_extension(issuers, critical=False)
    return builder.sign(ca_key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = inspect.signature(x509.KeyUsage).parameters
    flags: dict[str, Any] = dict.fromkeys(names, False) | allowed
    return x509.KeyUsage(**flags)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(file: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, and never open to others for a moment."""
    unfinished = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    unfinished.replace(file)
