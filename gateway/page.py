"""The page: what `make setup` builds from gateway/web into gateway/static, read once and served from memory."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

STATIC = Path(__file__).parent / "static"
"""Where the built page lies, in a checkout and in an install alike."""

INDEX = "index.html"

PAGES = {INDEX: "/", "dashboard.html": "/dashboard"}
"""What a person types, for each page; every other file is asked for by its own name."""

SECURITY_HEADERS = {
    # Nothing but what this gateway serves, no inline script or style, and in nobody's frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

HASHED = "public, max-age=31536000, immutable"
"""A file below assets/ has its content's hash in its name: it never changes."""

CHECKED = "no-cache"
"""Every other one is asked for again, and answered by 304 when it is the same."""

NOT_BUILT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>gpufleet</title></head><body>
<h1>The page is not built</h1>
<p>This gateway runs from a checkout whose page was not built yet. Run</p>
<pre>make setup</pre>
<p>there, and start the gateway again. Sessions at <code>/ws</code> work without it.</p>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page, also as it is sent to those who take gzip."""

    path: str
    content: bytes
    packed: bytes
    media_type: str
    tag: str


def routes(folder: Path = STATIC) -> list[BaseRoute]:
    """One route for each file of the built page; one that says what to do where there is none."""
    files = [_read(folder, path) for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix]
    if not any(file.path == INDEX for file in files):
        return [Route(path, _not_built) for path in PAGES.values()]
    return [Route(PAGES.get(file.path, f"/{file.path}"), partial(_serve, file)) for file in files]


def _read(folder: Path, path: Path) -> File:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return File(
        path=path.relative_to(folder).as_posix(),
        content=content,
        packed=gzip.compress(content, mtime=0),
        media_type="text/javascript" if path.suffix == ".js" else media_type,
        tag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    )


async def _serve(file: File, request: Request) -> Response:
    headers = SECURITY_HEADERS | {
        "Cache-Control": HASHED if file.path.startswith("assets/") else CHECKED,
        "ETag": file.tag,
        "Vary": "Accept-Encoding",
    }
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", "") or len(file.packed) >= len(file.content):
        return Response(file.content, media_type=file.media_type, headers=headers)
    return Response(file.packed, media_type=file.media_type, headers=headers | {"Content-Encoding": "gzip"})


async def _not_built(request: Request) -> Response:
    return HTMLResponse(NOT_BUILT, status_code=503, headers=SECURITY_HEADERS | {"Cache-Control": "no-store"})
