"""TLS: whether both sides agree on it, and how long the certificate is good for."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpufleet.net.addresses import Address, is_loopback
from gpufleet.net.channel import Target
from gpufleet.net.tls import read_authority
from gpufleet.text.units import format_duration

from .finding import Finding, Verdict, failed, ok, warning

CONNECT_S_MAX = 5.0

RENEWED_BEFORE = timedelta(days=30)
"""A certificate that ends sooner is to be made anew."""

NOT_YET_VALID, EXPIRED, OTHER_NAME, OTHER_ADDRESS = 9, 10, 62, 64
"""X509_V_ERR_… of OpenSSL."""


def check_tls(target: Target) -> Finding:
    """Whether both sides agree on encryption, and the certificate is good. Raises for a CA file that is none."""
    if not target.uses_tls:
        if _speaks_tls(target.address):
            return failed(
                "TLS", "the scheduler wants TLS, and this speaks without", "Name its authority: --ca-file FILE"
            )
        return ok("TLS", "none" + (", on this machine only" if is_loopback(target.address.host) else ": --insecure"))
    if target.ca_file is not None:
        read_authority(target.ca_file)
    try:
        version, ends = _handshake(target.address, ssl.create_default_context(cafile=_ca(target)))
    except ssl.SSLCertVerificationError as problem:
        return judge_untrusted(target.address, problem.verify_code, problem.verify_message)
    except TimeoutError:
        return failed("TLS", f"{target.address} says nothing within {CONNECT_S_MAX:g} s", silence_fix(target.address))
    except (ssl.SSLError, ConnectionError):
        return failed(
            "TLS",
            "the scheduler does not speak TLS",
            f"On {target.address.host}: gpuctl config certificate {target.address.host}, and start the scheduler as it "
            "says; or trust the network: --insecure",
        )
    except OSError as problem:
        return failed("TLS", f"no handshake: {problem}", silence_fix(target.address))
    return judge_end(target.address, version, ends, datetime.now(UTC))


def tls_trouble(target: Target) -> Finding | None:
    """What is wrong with TLS where a connection came to nothing; None where that is not the reason.

    Of several addresses the first with such a fault is told. Takes CONNECT_S_MAX twice at most for each, where
    somebody takes connections and says nothing.
    """
    for address in target.addresses:
        if (found := _tls_trouble(replace(target, address=address, others=()))) is not None:
            return found
    return None


def _tls_trouble(target: Target) -> Finding | None:
    try:
        socket.create_connection((target.address.host, target.address.port), CONNECT_S_MAX).close()
        found = check_tls(target)
    except OSError:
        return None
    return found if found.verdict is Verdict.FAILED and found.fix != silence_fix(target.address) else None


def judge_untrusted(address: Address, code: int, message: str) -> Finding:
    """A certificate that is not believed: by OpenSSL's number and words for why."""
    sentence = f"the certificate is not trusted: {message}"
    make = f"On {address.host}: gpuctl config certificate {address.host}, and start the scheduler again"
    if code in (NOT_YET_VALID, EXPIRED):
        return failed("TLS", sentence, f"Is the clock right on both machines? See: date. If it is: {make}")
    if code in (OTHER_NAME, OTHER_ADDRESS):
        return failed("TLS", sentence, f"{make}; or name the scheduler as its certificate does")
    fix = "Name the authority that signed it: --ca-file FILE; it is ca.pem beside the scheduler's certificate"
    return failed("TLS", sentence, fix)


def judge_end(address: Address, version: str, ends: datetime | None, now: datetime) -> Finding:
    """A good certificate: for how long yet."""
    if ends is not None and ends - now < RENEWED_BEFORE:
        return warning(
            "TLS",
            f"{version}, and the certificate ends in {format_duration(ends - now)}",
            f"On {address.host}: gpuctl config certificate {address.host}, and start the scheduler again; "
            "the authority stays, so nobody has to copy anything",
        )
    return ok("TLS", f"{version}, certificate is good")


def silence_fix(address: Address) -> str:
    """What to do where connections are taken and nothing comes back."""
    return f"On {address.host}: is the scheduler stopped, or its disk hung? Or has another program this port?"


def _ca(target: Target) -> str | None:
    return str(target.ca_file) if target.ca_file is not None else None


def _handshake(address: Address, context: ssl.SSLContext) -> tuple[str, datetime | None]:
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((address.host, address.port), CONNECT_S_MAX) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as wrapped,
    ):
        ends = (wrapped.getpeercert() or {}).get("notAfter")
        ends_at = datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC) if isinstance(ends, str) else None
        return wrapped.version() or "TLS", ends_at


def _speaks_tls(address: Address) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _handshake(address, context)
    except OSError:
        return False
    return True
