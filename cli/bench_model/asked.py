"""What was typed, read and checked before anything is sent: items, the endpoint, and the picture's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from gpufleet.client.http import parse_url
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.settings import Settings
from gpufleet.net.addresses import is_loopback

from ..asking.items import NamedItem, items_of
from .targets import ITEMS_MAX, EndpointRequest

DATA_BYTES_MAX = 256 * 10**6


def items_to_ask(file: Path | None, texts: Sequence[str], values: Sequence[str], kind: str | None) -> list[NamedItem]:
    """The items that requests go round among, the first ITEMS_MAX of them. Raises as `items_of`."""
    items = list(islice(items_of([file] if file is not None else [], texts, values, kind), ITEMS_MAX))
    if not items:
        raise invalid("FILE", f"{file} holds nothing to ask about")
    return items


def check_picture(picture: Path | None) -> None:
    """Raises INVALID_ARGUMENT, or FILE_NOT_FOUND where its folder is missing: before minutes of measuring."""
    if picture is None:
        return
    if picture.suffix.lower() != ".svg":
        raise invalid("--picture", f"{picture} is no .svg", next_step="Write it as --picture out.svg.")
    if not picture.parent.is_dir():
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"--picture: there is no folder {picture.parent}")


def write_picture(picture: Path, text: str) -> None:
    """Write it. Raises FILE_NOT_FOUND where that cannot be done."""
    try:
        picture.write_text(text, encoding="utf-8")
    except OSError as problem:
        why = f"--picture: {picture} cannot be written: {problem.strerror}"
        raise GpufleetError(Reason.FILE_NOT_FOUND, why) from None


def endpoint_request(
    settings: Settings, url: str, data: str | None, headers: Sequence[str], *, sends_token: bool
) -> tuple[EndpointRequest, str]:
    """The request, and the URL for people. Raises INVALID_ARGUMENT, or TLS_REQUIRED for a token in the clear."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.fragment:
        raise invalid("URL", "what stands behind # is not sent", next_step="Leave it out.")
    try:
        origin = parse_url(f"{parts.scheme}://{parts.netloc}", ca_file=settings.config.settings.ca_file)
    except ValueError as problem:
        raise invalid("URL", str(problem), next_step="Write it as http://HOST:PORT/PATH.") from None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not (path.isascii() and path.isprintable() and " " not in path):
        raise invalid("URL", "its path holds what no URL may", next_step="Write it with % and two digits.")
    if sends_token:
        found = settings.token()
        if found is None:
            step = "Name yours: --token-file FILE, GPUCTL_TOKEN, or: gpuctl config context add"
            raise GpufleetError(Reason.TOKEN_MISSING, "--send-token: no token is named", next_step=step)
        if not origin.is_tls and not is_loopback(origin.host) and not settings.config.settings.insecure:
            why = f"the token would leave this machine without encryption, to {origin.url}"
            raise GpufleetError(
                Reason.TLS_REQUIRED, why, next_step="Give an https URL, or --insecure in a network you trust."
            )
        origin = replace(origin, token=found.token)
    return EndpointRequest(origin, path, tuple(map(_header, headers)), _body(data)), origin.url + path


def _header(text: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    is_fine = name.isascii() and name.replace("-", "").replace("_", "").isalnum() and value.isascii()
    if not colon or not is_fine or not (value.isprintable() and value):
        raise invalid("--header", f"{text[:80]!r} is not NAME: VALUE", next_step="Write it as -H 'Accept: text/plain'.")
    if name.lower() in ("host", "content-length", "transfer-encoding", "connection"):
        raise invalid("--header", f"{name} is what gpuctl says itself", next_step="Leave it out.")
    return name, value


def _body(data: str | None) -> bytes | None:
    if data is None or not data.startswith("@"):
        return None if data is None else data.encode()
    try:
        with Path(data[1:]).open("rb") as opened:
            content = opened.read(DATA_BYTES_MAX + 1)
    except OSError as problem:
        why = f"--data: {data[1:]} cannot be read: {problem.strerror}"
        raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step="Check its name.") from None
    if len(content) > DATA_BYTES_MAX:
        raise invalid("--data", f"{data[1:]} is larger than {DATA_BYTES_MAX:,} bytes")
    return content
