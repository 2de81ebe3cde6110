"""TLS between machines: load certificates and compare them by fingerprint. gpufleet/net/certificates.py makes them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import is_loopback

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    import grpc

CERTIFICATE_BYTES_MAX = 1_000_000

AUTHORITIES_BYTES_MAX = 16_000_000
"""A system's whole list of authorities has a few hundred kB."""

OWN_NAME = "worker.gpufleet"
"""The name in certificates that workers make for themselves: who trusts such a one trusts it and no name."""

OWN_CERTIFICATE_CHARS_MAX = 8_000


IDENTITY_SCHEME = "gpufleet:"
"""Before an identity in a certificate's URIs: gpufleet:node:gpu1."""

IDENTITY_KINDS = ("node", "gateway", "worker", "user", "job")
"""Whose a client's certificate may be, with a name behind a colon; that of jobs has none."""


def server_credentials(cert_file: Path, key_file: Path, client_ca_file: Path | None = None) -> grpc.ServerCredentials:
    """What a gRPC server needs to speak TLS; raises as `server_context` does.

    With `client_ca_file` it takes no connection without a client's certificate that one of these authorities signed.
    """
    import grpc

    server_context(cert_file, key_file)  # gRPC takes any bytes and then refuses every client
    pair = (read_key(key_file), read_certificate(cert_file))
    if client_ca_file is None:
        return grpc.ssl_server_credentials([pair])
    authority = read_authority(client_ca_file)
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=True)


def identities_in(names: Iterable[bytes]) -> frozenset[str]:
    """The identities among the names of a client's certificate: {"node:gpu1"}."""
    found = (name.decode("ascii", "replace") for name in names)
    return frozenset(name.removeprefix(IDENTITY_SCHEME) for name in found if name.startswith(IDENTITY_SCHEME))


def read_client_pair(file: Path) -> tuple[bytes, bytes]:
    """A client's private key and certificate, both in one file in PEM. Raises as `read_key` and `read_certificate`."""
    content = read_key(file)
    read_certificate(file)
    return content, content


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """What any other server needs to speak TLS.

    Raises FILE_NOT_FOUND for a file that cannot be read, CONFIG_INVALID for one that is no PEM, for a key that others
    can read and for a key of another certificate.
    """
    import ssl

    read_certificate(cert_file)
    read_key(key_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_file, key_file)
    except ssl.SSLError as problem:
        why = problem.reason or str(problem)
        raise _refused(f"{cert_file} and {key_file} are no certificate and its key: {why}") from None
    return context


def check_protection(host: str, *, has_tls: bool, is_insecure: bool) -> None:
    """Refuse to listen beyond this machine without encryption, unless told to; raises TLS_REQUIRED."""
    if not (is_loopback(host) or has_tls or is_insecure):
        raise GpufleetError(
            Reason.TLS_REQUIRED, f"listening on {host} without TLS would show tokens and output to the network"
        )


def read_certificate(file: Path) -> bytes:
    """A certificate in PEM, with its chain."""
    return _read(file, b"-----BEGIN CERTIFICATE-----", "certificate")


def read_authority(file: Path) -> bytes:
    """The certificates that are trusted, in PEM. Raises FILE_NOT_FOUND, or CONFIG_INVALID for what is none."""
    import ssl

    try:
        with file.open("rb") as opened:
            content = opened.read(AUTHORITIES_BYTES_MAX)
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"the CA file {file} cannot be read: {problem.strerror}") from None
    try:
        # gRPC takes any bytes and then trusts nobody; OpenSSL says now what is wrong.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"the CA file {file} is no PEM file with a certificate",
            next_step="Name the authority that signed the scheduler's certificate: ca.pem beside it.",
        ) from None
    return content


def read_key(file: Path) -> bytes:
    """A private key in PEM; refuses one that other accounts can read."""
    key = _read(file, b"PRIVATE KEY-----", "private key")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"other accounts can read the private key {file} (its mode is {mode:03o})",
            next_step=f"Take their right away with: chmod 600 {file}",
        )
    return key


def is_certificate(text: str) -> bool:
    """Whether this is one certificate in PEM, and no longer than those that programs make for themselves."""
    import ssl

    if len(text) > OWN_CERTIFICATE_CHARS_MAX or text.count("BEGIN CERTIFICATE") != 1:
        return False
    try:
        return bool(ssl.PEM_cert_to_DER_cert(text))
    except ValueError:
        return False


def fingerprint(cert_file: Path) -> str:
    """The SHA-256 of the first certificate, as browsers and openssl write it: `AB:CD:…`."""
    import hashlib
    import ssl

    end = "-----END CERTIFICATE-----"
    first, _, _ = read_certificate(cert_file).decode("ascii", "replace").partition(end)
    der = ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN CERTIFICATE") :] + end)
    digits = hashlib.sha256(der).hexdigest().upper()
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def _read(file: Path, mark: bytes, what: str) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(CERTIFICATE_BYTES_MAX)
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{file} cannot be read: {problem.strerror}") from None
    if mark not in content:
        raise _refused(f"{file} is no PEM file with a {what}")
    return content


def _refused(message: str) -> GpufleetError:
    return GpufleetError(
        Reason.CONFIG_INVALID, message, next_step="Check the paths; each file is PEM, the key's of mode 600."
    )
