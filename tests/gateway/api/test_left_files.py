"""Files that jobs left, at their paths: for who may read them, in parts, and of no use to whoever wrote them ill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from gateway.api.byte_ranges import NotSatisfiable, part_wanted
from gateway.api.media_types import BYTES, TEXT, disposition_of, media_type_of
from tests.e2e.jobs.test_results import stored
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.asking import Answer, ask, connection
from tests.gateway.stage import Stage
from tests.gateway.test_dashboard import logged_in, refused, token_for

PAGE = "<script>fetch('/api/v1/tokens')</script>"
NAMES = (
    *("a?b#c%2e d.html", 'x"; filename="evil.txt', "..%2f..%2fetc", "https:%5C%5Cevil"),
    *("\N{GREEK SMALL LETTER ALPHA} \N{CHECK MARK}.txt", "--", "a;b&c=d"),
)


async def left(stage: Stage, token: str, script: str, *chosen: str) -> int:
    """A job that has left what its script wrote."""
    async with stage.fleet.client(token) as person:
        job = await person.submit("/bin/sh", "-c", script, cwd="", results=chosen or ["**"])
        await person.wait(job)
        await stored(person, job)
        return job


async def had(stage: Stage, token: str, job: int, path: str, method: str = "GET", **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    where = f"/api/v1/jobs/{job}/files/{quote(path)}"
    return await ask(stage.gateway, where, token=token, headers=sent, method=method)


async def test_a_file_is_had_at_its_path_whole_and_in_part(stage: Stage) -> None:
    token = (await token_for(stage, "leaves")).secret
    job = await left(stage, token, "mkdir out; printf 0123456789 >out/log.txt; : >empty")
    listed = (await ask(stage.gateway, f"/api/v1/jobs/{job}/files", token=token)).json
    [rank] = listed["ranks"]
    assert [each["path"] for each in rank["files"]] == ["empty", "out/log.txt"]
    assert rank["store_time"] < rank["drop_time"]

    whole = await had(stage, token, job, "out/log.txt")
    assert (whole.status, whole.content, whole.headers["content-length"]) == (200, b"0123456789", "10")
    assert (whole.headers["content-type"], whole.headers["accept-ranges"]) == (TEXT, "bytes")
    tag = whole.headers["etag"]
    head = await had(stage, token, job, "out/log.txt", "HEAD")
    assert (head.status, head.content, head.headers["content-length"], head.headers["etag"]) == (200, b"", "10", tag)

    for wanted, said, content in (
        ("bytes=2-4", "bytes 2-4/10", b"234"),
        ("bytes=7-", "bytes 7-9/10", b"789"),
        ("bytes=-2", "bytes 8-9/10", b"89"),
        ("bytes=0-4000", "bytes 0-9/10", b"0123456789"),
    ):
        part = await had(stage, token, job, "out/log.txt", range=wanted, if_range=tag)
        assert (part.status, part.headers["content-range"], part.content) == (206, said, content)
        assert part.headers["content-length"] == str(len(content))
    beyond = await had(stage, token, job, "out/log.txt", range="bytes=10-")
    assert (*refused(beyond), beyond.headers["content-range"]) == (416, "OFFSET_OUT_OF_RANGE", "bytes */10")
    another = await had(stage, token, job, "out/log.txt", range="bytes=2-4", if_range='"of another attempt"')
    assert (another.status, another.content) == (200, b"0123456789")
    same = await had(stage, token, job, "out/log.txt", if_none_match=tag)
    assert (same.status, same.content) == (304, b"")
    empty = await had(stage, token, job, "empty")
    assert (empty.status, empty.content, empty.headers["content-length"]) == (200, b"", "0")
    assert (await had(stage, token, job, "empty", range="bytes=0-")).status == 416


async def test_nothing_of_a_hostile_file_runs_in_the_gateways_name(stage: Stage) -> None:
    token = (await token_for(stage, "hostile")).secret
    kinds = ("page.html", "x.xhtml", "p.svg", "s.js", "m.mjs", "w.wasm", "st.css", "f.xml", "a.png", "noending")
    writes = "; ".join(f'printf %s "{PAGE}" >{name}' for name in kinds)
    job = await left(stage, token, writes)
    for name in kinds:
        answer = await had(stage, token, job, name)
        assert (answer.status, answer.content) == (200, PAGE.encode()), name
        headers = answer.headers
        is_picture = name == "a.png"
        assert headers["content-type"] == ("image/png" if is_picture else BYTES), name
        assert headers["content-disposition"].partition(";")[0] == ("inline" if is_picture else "attachment")
        assert headers["content-security-policy"].startswith("sandbox;"), "no script, and an origin of its own"
        assert "allow-" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_file_is_found_whatever_it_is_called(stage: Stage) -> None:
    token = (await token_for(stage, "names")).secret
    async with stage.fleet.client(token) as person:
        script = 'for each; do printf %s "$each" >"$each"; done'
        job = await person.submit("/bin/sh", "-c", script, "sh", *NAMES, cwd="", results=["*"])
        await person.wait(job)
        listed = await stored(person, job)
    assert {each.path for each in listed.files} == set(NAMES)
    for name in NAMES:
        answer = await had(stage, token, job, name)
        assert (answer.status, answer.content) == (200, name.encode())
        _, said = answer.headers["content-disposition"].split("; ")
        assert said == f"filename*=UTF-8''{quote(name, safe='')}", "nothing of a name ends the header"
    for path in ("", "..", "../1", "%00", "/etc/passwd", "x" * 5_000):
        assert refused(await had(stage, token, job, path)) == (404, "FILE_NOT_FOUND"), path


async def test_what_is_asked_wrongly_is_refused_with_its_field(stage: Stage) -> None:
    token = (await token_for(stage, "wrongly")).secret
    job = await left(stage, token, ": >a")
    for path, field in (
        (f"{job}/files/a?rank=-1", "rank"),
        (f"{job}/files/a?rank=x", "rank"),
        (f"{job}/files/a?rank=1", "rank"),
        (f"{job}/files/a?depth=1", "depth"),
        ("x/files/a", "job_id"),
        ("0/files/a", "job_id"),
        (f"{2**63}/files/a", "job_id"),
    ):
        answer = await ask(stage.gateway, f"/api/v1/jobs/{path}", token=token)
        assert (*refused(answer), answer.json["error"]["field"]) == (400, "INVALID_ARGUMENT", field), path
    assert refused(await had(stage, token, 4_000_000, "a")) == (404, "JOB_NOT_FOUND")
    post = await ask(stage.gateway, f"/api/v1/jobs/{job}/files/a", {}, token=token)
    assert (*refused(post), post.headers["allow"]) == (405, "VERB_UNKNOWN", "GET, HEAD")


def settings_file(folder: Path) -> str:
    """Where jobs' output and files are their owners' alone."""
    file = folder / "scheduler.toml"
    file.write_text('[privacy]\noutput = "owner"\n')
    return str(file)


@asynccontextmanager
async def running(own: Stage) -> AsyncIterator[Stage]:
    try:
        await own.start()
        await own.fleet.add_node("n1")
        yield own
    finally:
        await own.end()


async def test_a_file_is_for_who_reads_what_the_job_writes_and_for_nobody_elses_page(tmp_path: Path) -> None:
    async with running(Stage(tmp_path, "--config", settings_file(tmp_path))) as stage:
        ann, bob = [(await token_for(stage, each)).secret for each in ("ann", "bob")]
        admin = (await token_for(stage, "root", "admin")).secret
        job = await left(stage, ann, "echo secret >a.txt")
        assert refused(await had(stage, bob, job, "a.txt")) == (403, "OUTPUT_PRIVATE")
        assert refused(await had(stage, bob, job, "a.txt", "GET", range="bytes=0-1")) == (403, "OUTPUT_PRIVATE")
        assert (await had(stage, admin, job, "a.txt")).content == b"secret\n"
        assert refused(await had(stage, "", job, "a.txt")) == (401, "TOKEN_MISSING")
        assert refused(await had(stage, f"gf_{'A' * 43}", job, "a.txt")) == (401, "TOKEN_INVALID")
        cookie = (await logged_in(stage, ann)).cookie
        path = f"/api/v1/jobs/{job}/files/a.txt"
        own = await ask(stage.gateway, path, cookie=cookie, headers={"Sec-Fetch-Site": "same-origin"})
        assert own.content == b"secret\n"
        for site in ("cross-site", "same-site"):
            other = await ask(stage.gateway, path, cookie=cookie, headers={"Sec-Fetch-Site": site})
            assert refused(other) == (403, "PERMISSION_DENIED")


async def test_a_file_that_breaks_off_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    async with running(Stage(tmp_path)) as stage:
        token = (await token_for(stage, "ann")).secret
        job = await left(stage, token, "head -c 80000000 /dev/zero >large.bin")
        async with asyncio.timeout(DEADLINE_SECONDS), connection(stage.gateway) as asking:
            path = f"/api/v1/jobs/{job}/files/large.bin"
            await asking.send("GET", path, stage.gateway, {"Authorization": f"Bearer {token}"}, b"")
            status, headers = await asking.head()
            assert (status, headers["content-length"]) == (200, "80000000")
            stage.fleet.scheduler.kill()
            came = sum([len(chunk) async for chunk in asking.chunks(headers)])
        assert came < 80_000_000
        await stage.fleet.scheduler.start()
        answers: list[Answer] = []

        async def is_back() -> bool:
            answers.append(await had(stage, token, job, "large.bin", range="bytes=79999999-"))
            return answers[-1].status == 206

        await until("the gateway hears the scheduler again", is_back)
        assert answers[-1].content == b"\0"


@pytest.mark.parametrize(
    ("said", "size", "part"),
    [
        (None, 10, None),
        ("bytes=0-0", 10, (0, 1)),
        ("bytes=9-9", 10, (9, 1)),
        ("bytes=0-", 10, (0, 10)),
        ("bytes=-3", 10, (7, 3)),
        ("bytes=-30", 10, (0, 10)),
        # What is not understood is left out of account (RFC 9110, 14.2).
        ("bytes=4-3", 10, None),
        ("bytes=0-1,3-4", 10, None),
        ("items=0-1", 10, None),
        ("bytes=-", 10, None),
        ("bytes=0-" + "9" * 30, 10, None),
    ],
)
def test_a_part_is_read_as_rfc_9110_has_it(said: str | None, size: int, part: tuple[int, int] | None) -> None:
    assert part_wanted(said, size) == part


@pytest.mark.parametrize(("said", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)])
def test_a_part_of_which_nothing_is_there_is_none(said: str, size: int) -> None:
    with pytest.raises(NotSatisfiable):
        part_wanted(said, size)


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("out/loss.PNG", "image/png"),
        ("a.jpeg", "image/jpeg"),
        ("b.webp", "image/webp"),
        ("train.log", TEXT),
        ("read me.md", TEXT),
        ("run.py", TEXT),
        ("metrics.json", "application/json"),
        ("table.csv", "text/csv"),
        ("clip.mp4", "video/mp4"),
        ("out.tar.gz", "application/gzip"),
        ("p.svgz", "application/gzip"),
        ("model.pt", BYTES),
        ("data:text/html,<b>", BYTES),
        ("a.html", BYTES),
        ("a.htm", BYTES),
        ("a.png.html", BYTES),
        ("a.svg", BYTES),
    ],
)
def test_the_type_of_a_file_is_what_its_name_says_where_nothing_runs_of_it(path: str, media_type: str) -> None:
    assert media_type_of(path) == media_type
    shows = media_type in (TEXT, "image/png", "image/jpeg", "image/webp")
    assert disposition_of(path).startswith("inline" if shows else "attachment")
