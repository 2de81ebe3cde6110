"""Whether the page answers: the gateway that this context names."""

from __future__ import annotations

from http import HTTPStatus
from http.client import HTTPException
from urllib.parse import urlsplit

from gpufleet.fleet.finding import Finding, failed, ok
from gpufleet.net.addresses import is_loopback

from ..local.folders import up_command
from ..local.gateway import status_of

WHAT = "page"


def check_page(url: str) -> Finding:
    """Ask the gateway how it is. One with TLS is asked whatever its certificate says: that is for browsers to judge."""
    at = urlsplit(url)
    host, has_tls = at.hostname or "", at.scheme == "https"
    fix = f"Start it again with: {up_command()}" if is_loopback(host) else f"Does the gateway run on {host}?"
    try:
        status = status_of(host, at.port or (443 if has_tls else 80), has_tls=has_tls)
    except (OSError, HTTPException) as problem:
        return failed(WHAT, f"{url} does not answer: {getattr(problem, 'strerror', None) or problem}", fix)
    if status == HTTPStatus.OK:
        return ok(WHAT, f"{url} answers, and hears the scheduler")
    return failed(WHAT, f"{url} answers with {status}: it does not hear the scheduler", fix)
