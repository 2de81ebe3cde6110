"""How the page is served: what may be kept, what it may load, and what is said where it was not built."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from gateway import page

SCRIPT = b"console.log(1);" * 100


@pytest.fixture
def built(tmp_path: Path) -> Starlette:
    """A built page of three files."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(b"<!doctype html>")
    (tmp_path / "built-from").write_bytes(b"a hash, not part of the page")
    (tmp_path / "assets" / "index-1a2b.js").write_bytes(SCRIPT)
    return Starlette(routes=page.routes(tmp_path))


class Answer:
    """What an app answered."""

    def __init__(self, messages: list[Message]) -> None:
        self.status: int = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body: bytes = b"".join(message.get("body", b"") for message in messages[1:])


async def get(app: Starlette, path: str, **headers: str) -> Answer:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    said = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": said, "query_string": b"", "root_path": ""}
    await app(scope, receive, send)
    return Answer(sent)


async def test_the_page_is_asked_for_again_and_its_hashed_files_never(built: Starlette) -> None:
    index = await get(built, "/")
    assert (index.status, index.body, index.headers["cache-control"]) == (200, b"<!doctype html>", "no-cache")
    assert index.headers["content-type"].startswith("text/html")
    same = await get(built, "/", if_none_match=index.headers["etag"])
    assert (same.status, same.body) == (304, b"")
    script = await get(built, "/assets/index-1a2b.js")
    assert (script.status, script.body) == (200, SCRIPT)
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"].startswith("text/javascript")


async def test_who_takes_gzip_gets_it(built: Starlette) -> None:
    script = await get(built, "/assets/index-1a2b.js", accept_encoding="gzip, br")
    assert (script.headers["content-encoding"], script.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(script.body) == SCRIPT


async def test_the_page_may_load_nothing_from_elsewhere(built: Starlette) -> None:
    for path in ("/", "/assets/index-1a2b.js"):
        headers = (await get(built, path)).headers
        policy = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/built-from", "/assets/", "/assets/../index.html", "/index.html/..", "/etc/passwd"])
async def test_nothing_else_is_served(built: Starlette, path: str) -> None:
    assert (await get(built, path)).status == 404


async def test_a_page_that_was_not_built_says_what_to_do(tmp_path: Path) -> None:
    answer = await get(Starlette(routes=page.routes(tmp_path)), "/")
    assert (answer.status, answer.headers["cache-control"]) == (503, "no-store")
    assert b"make setup" in answer.body
