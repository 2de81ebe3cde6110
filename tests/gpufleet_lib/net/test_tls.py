"""TLS with certificates that are made here, through a real server; and the clear refusals of wrong files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address
from gpufleet.net.certificates import (
    SERVER_LIFETIME,
    CertificateFiles,
    expires,
    make_certificates,
    make_own_certificate,
)
from gpufleet.net.channel import Target, connect_async, server_options, token_of
from gpufleet.net.listening import listen
from gpufleet.net.status import from_rpc_error
from gpufleet.net.tls import check_protection, fingerprint, is_certificate, read_key, server_credentials


async def answer(request: bytes, context: Any) -> bytes:
    return (token_of(context.invocation_metadata()) or "").encode()


async def call_over_tls(credentials: grpc.ServerCredentials, **trust: Any) -> bytes:
    """The answer of a server with these credentials to a client that trusts this."""
    server = grpc.aio.server(options=server_options())
    handler = grpc.method_handlers_generic_handler("T", {"Ask": grpc.unary_unary_rpc_method_handler(answer)})
    server.add_generic_rpc_handlers((handler,))
    port = listen(server, Address("127.0.0.1", 0), credentials)
    await server.start()
    try:
        target = Target(address=Address("127.0.0.1", port), token="gf_x", **trust)
        async with connect_async(target) as channel:
            ask: Any = channel.unary_unary("/T/Ask")
            return bytes(await ask(b"", timeout=60))
    finally:
        await server.stop(None)


def served(files: CertificateFiles) -> grpc.ServerCredentials:
    return server_credentials(files.cert_file, files.key_file)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_certificates(tmp_path / "tls", ["gpu1.lab", "127.0.0.1", "::1"])


async def test_a_client_that_trusts_the_authority_speaks_tls_with_its_token(files: CertificateFiles) -> None:
    assert await call_over_tls(served(files), ca_file=files.ca_file) == b"gf_x"


async def test_a_client_that_trusts_another_authority_is_unreachable(files: CertificateFiles, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other", ["127.0.0.1"])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call_over_tls(served(files), ca_file=other.ca_file)
    assert from_rpc_error(caught.value).reason is Reason.SCHEDULER_UNREACHABLE


async def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, ["10.0.0.5"])
    with pytest.raises(grpc.aio.AioRpcError):
        await call_over_tls(served(files), ca_file=files.ca_file)


async def test_a_new_certificate_is_trusted_by_those_who_had_the_authority(files: CertificateFiles) -> None:
    authority, before = files.ca_file.read_bytes(), fingerprint(files.cert_file)
    make_certificates(files.folder, ["127.0.0.1"])
    assert files.ca_file.read_bytes() == authority
    assert fingerprint(files.cert_file) != before
    assert await call_over_tls(served(files), ca_file=files.ca_file) == b"gf_x"


async def test_a_certificate_that_a_program_made_for_itself_is_trusted_alone_and_by_its_own_name() -> None:
    own, other = make_own_certificate("10.0.0.5"), make_own_certificate("10.0.0.5")
    credentials = grpc.ssl_server_credentials([(own.key, own.certificate)])
    assert await call_over_tls(credentials, certificate=own.certificate) == b"gf_x"
    with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
        await call_over_tls(credentials, certificate=other.certificate)
    assert "key" not in repr(own)
    assert is_certificate(own.certificate.decode())
    for text in ("", "hello", own.key.decode(), 2 * own.certificate.decode(), own.certificate.decode() + " " * 8_000):
        assert not is_certificate(text)


def test_keys_are_of_their_owner_alone_and_certificates_are_for_all(files: CertificateFiles) -> None:
    modes = {each.name: each.stat().st_mode & 0o777 for each in files.folder.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}


def test_the_end_and_the_fingerprint_are_what_openssl_says(files: CertificateFiles) -> None:
    def openssl(*options: str) -> str:
        command = ["openssl", "x509", "-noout", "-in", str(files.cert_file), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    assert openssl("-fingerprint", "-sha256").partition("=")[2] == fingerprint(files.cert_file)
    ends = datetime.strptime(openssl("-enddate"), "notAfter=%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC)
    assert expires(files.cert_file) == ends
    assert abs(ends - datetime.now(UTC) - SERVER_LIFETIME).total_seconds() < 3600
    assert "DNS:gpu1.lab, IP Address:127.0.0.1" in openssl("-ext", "subjectAltName")


def refusal(files: Sequence[Path]) -> GpufleetError:
    with pytest.raises(GpufleetError) as caught:
        server_credentials(*files)
    return caught.value


def test_wrong_files_are_refused_by_name(files: CertificateFiles, tmp_path: Path) -> None:
    missing, text = tmp_path / "no.pem", tmp_path / "text"
    text.write_text("hello")
    other = make_certificates(tmp_path / "other", ["127.0.0.1"])
    assert refusal([missing, files.key_file]).reason is Reason.FILE_NOT_FOUND
    assert refusal([text, files.key_file]).message == f"{text} is no PEM file with a certificate"
    assert refusal([files.cert_file, files.cert_file]).message.endswith("with a private key")
    mixed = refusal([files.cert_file, other.key_file])
    assert mixed.reason is Reason.CONFIG_INVALID and "no certificate and its key" in mixed.message
    files.key_file.chmod(0o644)
    assert refusal([files.cert_file, files.key_file]).next_step.endswith(f"chmod 600 {files.key_file}")
    with pytest.raises(GpufleetError, match="private key"):
        read_key(files.key_file)


def test_listening_beyond_this_machine_needs_tls_or_an_explicit_word() -> None:
    check_protection("127.0.0.1", has_tls=False, is_insecure=False)
    check_protection("0.0.0.0", has_tls=True, is_insecure=False)
    check_protection("0.0.0.0", has_tls=False, is_insecure=True)
    with pytest.raises(GpufleetError, match=r"0\.0\.0\.0") as caught:
        check_protection("0.0.0.0", has_tls=False, is_insecure=False)
    assert caught.value.reason is Reason.TLS_REQUIRED


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["cryptography"] = None  # as if it were not installed
from gpufleet.errors import GpufleetError, as_lines
try:
    import gpufleet.net.certificates
except GpufleetError as error:
    print(error.reason.name, error.next_step)
"""
    run = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert run.stdout == "EXTRA_MISSING Install it with: pip install 'gpufleet[tls]'\n"
