"""Large files over HTTP: in pieces, cut and gone on with, and with as little memory of the gateway as small ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path

import pytest

from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.api.ingest_stage import BOUNDARY, FORM, form, part, send
from tests.gateway.asking import Answer, ask, connection
from tests.gateway.stage import Stage
from tests.gateway.test_dashboard import refused, token_for
from tests.gateway.test_memory import resident_bytes

LARGE_BYTES = 192 * 2**20
GROWTH_BYTES_MAX = 48 * 2**20
"""Of the gateway's memory, while as many bytes as these pass through it."""


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def put(stage: Stage, token: str, digest: str, data: bytes, **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(stage.gateway, f"/api/v1/files/{digest}", body=data, token=token, headers=sent, method="PUT")


def checksum(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


async def test_a_file_comes_in_pieces_with_checksums_and_goes_on_where_it_was_cut(stage: Stage) -> None:
    token = (await token_for(stage, "pieces")).secret
    data = bytes(range(256)) * 1_000
    digest, half = digest_of(data), len(data) // 2
    of_first, of_second = f"bytes 0-{half - 1}/{len(data)}", f"bytes {half}-{len(data) - 1}/{len(data)}"

    wrong = await put(stage, token, digest, data[:half], content_range=of_first, content_digest=checksum(b"other"))
    assert refused(wrong) == (400, "DIGEST_MISMATCH")
    missing = await ask(stage.gateway, f"/api/v1/files/{digest}", token=token, method="HEAD")
    assert (missing.status, missing.headers["upload-offset"]) == (404, "0"), "nothing of a wrong piece is kept"

    early = await put(stage, token, digest, data[half:], content_range=of_second)
    assert refused(early) == (400, "OFFSET_OUT_OF_RANGE")
    first = await put(stage, token, digest, data[:half], content_range=of_first, content_digest=checksum(data[:half]))
    assert (first.status, first.json, first.headers["upload-offset"]) == (202, {"stored_bytes": str(half)}, str(half))
    again = await put(stage, token, digest, data[:half], content_range=of_first)
    assert (again.status, again.headers["upload-offset"]) == (202, str(half))
    second = await put(stage, token, digest, data[half:], content_range=of_second)
    assert (second.status, second.json) == (200, {"stored_bytes": str(len(data))})
    whole = await ask(stage.gateway, f"/api/v1/files/{digest}", token=token)
    assert (whole.status, whole.content) == (200, data)
    assert whole.headers["content-disposition"] == "attachment"
    head = await ask(stage.gateway, f"/api/v1/files/{digest}", token=token, method="HEAD")
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", str(len(data)))
    # It is its owner's alone.
    other = (await token_for(stage, "another")).secret
    assert refused(await ask(stage.gateway, f"/api/v1/files/{digest}", token=other)) == (404, "FILE_NOT_UPLOADED")

    # Cut in the middle: what came is stored, and is told.
    cut = bytes(reversed(range(256))) * 20_000
    path = f"/api/v1/files/{digest_of(cut)}"
    async with asyncio.timeout(DEADLINE_SECONDS), connection(stage.gateway) as asking:
        said = f"Host: h\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(cut)}"
        asking.writer.write(f"PUT {path} HTTP/1.1\r\n{said}\r\n\r\n".encode() + cut[: len(cut) // 2])
        await asking.writer.drain()
        asking.writer.write_eof()

    stored = 0
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not stored:
            stored = int((await ask(stage.gateway, path, token=token, method="HEAD")).headers["upload-offset"])
    rest = f"bytes {stored}-{len(cut) - 1}/{len(cut)}"
    assert (await put(stage, token, digest_of(cut), cut[stored:], content_range=rest)).status == 200


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"content_range": "bytes */5"}, "content-range"),
        ({"content_range": "bytes 0-4/3"}, "content-range"),
        ({"content_range": "bytes 4-0/9"}, "content-range"),
        ({"content_range": "bytes 0-3/9"}, "content-range"),
        ({"content_range": f"bytes 0-4/{2**60}"}, "content-length"),
        ({"content_digest": "md5=:AAAA:"}, "content-digest"),
        ({"content_digest": "sha-256=:AAAA:"}, "content-digest"),
        ({"content_digest": "sha-256=AAAA"}, "content-digest"),
    ],
)
async def test_a_piece_that_says_it_wrongly_is_refused(stage: Stage, headers: dict[str, str], field: str) -> None:
    token = (await token_for(stage, "wrongly")).secret
    answer = await put(stage, token, digest_of(b"hello"), b"hello", **headers)
    assert (*refused(answer), answer.json["error"]["field"]) == (400, "INVALID_ARGUMENT", field)


async def test_other_bytes_than_were_said_are_kept_nowhere(stage: Stage) -> None:
    token = (await token_for(stage, "other-bytes")).secret
    assert refused(await put(stage, token, digest_of(b"hello"), b"hellO")) == (400, "DIGEST_MISMATCH")
    assert refused(await put(stage, token, "../../etc", b"x")) == (404, "PATH_UNKNOWN")
    assert refused(await put(stage, token, "A" * 64, b"x")) == (400, "INVALID_ARGUMENT")
    assert refused(await put(stage, "", digest_of(b"x"), b"x")) == (401, "TOKEN_MISSING")
    viewer = (await token_for(stage, "looks", "viewer")).secret
    assert refused(await put(stage, viewer, digest_of(b"x"), b"x")) == (403, "PERMISSION_DENIED")
    kept = [each for each in (stage.fleet.scheduler.data / "blobs" / "other-bytes").glob("*") if each.is_file()]
    assert not kept
    endless = (FORM, b"--" + BOUNDARY.encode() + b"\r\n")
    answer = await ask(
        stage.gateway, "/api/v1/ingest/file", body=endless[1], token=token, headers={"content-type": endless[0]}
    )
    assert refused(answer) == (400, "INVALID_ARGUMENT")
    for path in ("/nodes/n1/approve", "/files/missing"):
        other = await send(stage, path, token, part("file", b"x", "a"))
        assert refused(other) == (415, "CONTENT_TYPE_UNKNOWN"), "forms are taken where files are"


async def test_a_large_file_takes_no_more_memory_than_a_small_one(stage: Stage) -> None:
    """Twice: as the body of a PUT, and in a form, whose file is in a spool without a name until a job has it."""
    token = (await token_for(stage, "large")).secret
    gateway = stage.another_gateway("large")
    address = await gateway.address()
    assert gateway.process is not None
    block = bytes(range(256)) * 4_096
    sha = hashlib.sha256()
    for _ in range(LARGE_BYTES // len(block)):
        sha.update(block)
    await ask(address, f"/api/v1/files/{digest_of(block)}", body=block, token=token, method="PUT")
    before = resident_bytes(gateway.process.pid)
    begin = form([part("gpu", "true")])[: -len(BOUNDARY) - 6] + part("file", b"", "large.txt", "text/plain")[:-2]
    end = f"\r\n--{BOUNDARY}--\r\n".encode()
    for method, path, kind, first, last in (
        ("PUT", f"/api/v1/files/{sha.hexdigest()}", "application/octet-stream", b"", b""),
        ("POST", "/api/v1/ingest/file", FORM, begin, end),
    ):
        async with asyncio.timeout(DEADLINE_SECONDS), connection(address) as asking:
            length = len(first) + LARGE_BYTES + len(last)
            said = f"Host: h\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {length}"
            asking.writer.write(f"{method} {path} HTTP/1.1\r\n{said}\r\nConnection: close\r\n\r\n".encode() + first)
            grown = 0
            for _ in range(LARGE_BYTES // len(block)):
                asking.writer.write(block)
                await asking.writer.drain()
                grown = max(grown, resident_bytes(gateway.process.pid) - before)
            asking.writer.write(last)
            status, _ = await asking.head()
            assert status == (200 if method == "PUT" else 202)
        assert grown < GROWTH_BYTES_MAX, f"{method}: grown by {grown / 2**20:.0f} MiB"
    spool = Path(stage.folder / "large" / "spool")
    assert spool.is_dir() and not list(spool.iterdir()), "it had no name, and nothing of it is left"  # noqa: ASYNC240
    gateway.end()
