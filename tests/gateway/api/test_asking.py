"""Who may ask the API for what, what it says of requests that are wrong, and how its streams end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2
from starlette.applications import Starlette
from starlette.routing import Router

from gateway.api.serving import Api
from gateway.api.uploads import Uploads
from gateway.dashboard.guard import AT_ONCE_BYTES_MAX, BODY_BYTES_MAX, on_a_thread_if_long
from gateway.dashboard.serving import Dashboard
from gateway.dashboard.streams import Events
from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target
from gpufleet.security.tokens import make_token
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.asking import Answer, ask, connection
from tests.gateway.stage import Stage
from tests.gateway.test_dashboard import logged_in, refused, revoke, token_for

SLEEPS: dict[str, Any] = {
    "specs": [{"argv": ["sleep", "600"], "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}, "is_held": True}]
}


async def asked(stage: Stage, method: str, path: str, said: object = None, **given: Any) -> Answer:
    return await ask(stage.gateway, f"/api/v1{path}", said, method=method, **given)


async def test_only_who_has_a_token_is_answered_and_only_what_its_role_may(stage: Stage) -> None:
    for headers in ({}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer"}, {"authorization": "Bearer  "}):
        nobody = await asked(stage, "GET", "/jobs", headers=headers)
        assert refused(nobody) == (401, "TOKEN_MISSING") and nobody.headers["www-authenticate"].startswith("Bearer")
    assert refused(await asked(stage, "GET", "/jobs", token="hunter2")) == (401, "TOKEN_INVALID")
    assert refused(await asked(stage, "GET", "/jobs", token=make_token())) == (401, "TOKEN_INVALID")
    assert (await asked(stage, "GET", "/openapi.json")).status == 200
    viewer = (await token_for(stage, "looks", "viewer")).secret
    assert (await asked(stage, "GET", "/jobs", token=viewer)).status == 200
    assert refused(await asked(stage, "POST", "/jobs", SLEEPS, token=viewer)) == (403, "PERMISSION_DENIED")
    user = (await token_for(stage, "ann")).secret
    assert refused(await asked(stage, "GET", "/tokens", token=user)) == (403, "PERMISSION_DENIED")
    # The gateway's own token may do what gateways may, and is lent to nobody.
    own = stage.fleet.scheduler.token("gateway")
    assert refused(await asked(stage, "GET", "/jobs", token=own)) == (403, "PERMISSION_DENIED")
    gone = await token_for(stage, "gone")
    await revoke(stage, gone)
    assert refused(await asked(stage, "GET", "/jobs", token=gone.secret)) == (401, "TOKEN_REVOKED")


async def test_somebody_elses_job_can_be_seen_and_not_changed(stage: Stage) -> None:
    ann, bob = [(await token_for(stage, name)).secret for name in ("ann", "bob")]
    job = (await asked(stage, "POST", "/jobs", SLEEPS, token=ann)).json["first_job_id"]
    assert (await asked(stage, "GET", f"/jobs/{job}", token=bob)).json["job"]["user"] == "ann"
    for method, path, said in (
        ("POST", "cancel", None),
        ("POST", "requeue", {}),
        ("POST", "signal", {"signal": 15}),
        ("PATCH", "", {"is_held": False}),
    ):
        answer = await asked(stage, method, f"/jobs/{job}/{path}".rstrip("/"), said, token=bob)
        assert refused(answer) == (403, "NOT_YOUR_JOB"), (method, path)
    changed = await asked(stage, "PATCH", f"/jobs/{job}", {"name": "mine"}, token=ann)
    assert changed.json["changes"][0]["changed"]
    cancelled = await asked(stage, "POST", f"/jobs/{job}/cancel", token=ann)
    assert cancelled.json["changes"][0]["state"] == "JOB_STATE_CANCELLED"


async def test_a_login_of_the_dashboard_does_for_its_own_pages_but_not_for_tokens(stage: Stage) -> None:
    cookie = (await logged_in(stage, stage.fleet.scheduler.token("admin"))).cookie
    own = {"origin": f"http://{stage.gateway}", "sec-fetch-site": "same-origin"}
    assert (await asked(stage, "GET", "/jobs", cookie=cookie, headers=own)).status == 200
    for method, path, said in (("GET", "/tokens", None), ("POST", "/tokens", {"user": "x"}), ("PATCH", "/server", {})):
        answer = await asked(stage, method, path, said, cookie=cookie, headers=own)
        assert refused(answer) == (401, "TOKEN_MISSING"), path
    origins = ({"origin": origin} for origin in ("http://evil.example", "null", "http://[x"))
    for headers in (*origins, {"sec-fetch-site": "cross-site"}):
        for method, path in (("GET", "/jobs"), ("POST", "/jobs/cancel"), ("DELETE", "/nodes/n1")):
            answer = await asked(stage, method, path, cookie=cookie, headers=headers)
            assert refused(answer) == (403, "PERMISSION_DENIED"), (path, headers)
            assert not [name for name in answer.headers if name.startswith("access-control")]
    # What a form can send without leave: no type of its own, or a plain one.
    assert refused(await asked(stage, "POST", "/jobs/cancel", cookie=cookie)) == (415, "CONTENT_TYPE_UNKNOWN")
    plain = {"content-type": "text/plain"}
    assert refused(await asked(stage, "POST", "/jobs/cancel", {}, cookie=cookie, headers=plain))[0] == 415


async def test_paths_and_methods_that_there_are_not_are_refused_with_what_there_is(stage: Stage) -> None:
    token = (await token_for(stage, "lost", "viewer")).secret
    for path in ("", "/", "/job", "/jobs/", "/jobs/1/", "/nodes/a%2Fb", "/jobs/1/output/x", "/x/../jobs", "/%00"):
        assert refused(await asked(stage, "GET", path, token=token)) == (404, "PATH_UNKNOWN"), path
    allowed = {
        "/jobs": "GET, HEAD, PATCH, POST",
        "/jobs/1/output": "GET",
        "/jobs/cancel": "POST",
        "/openapi.json": "GET, HEAD",
        "/login": "GET, HEAD, POST",
        "/login/provider": "POST",
        "/login/callback": "GET, HEAD",
        "/rpc/Queue": "POST",
        "/programs/x/enter": "POST",
    }
    for path, verbs in allowed.items():
        for method in ("DELETE", "OPTIONS", "TRACE", "BREW"):
            answer = await asked(stage, method, path, token=token)
            assert refused(answer) == (405, "VERB_UNKNOWN") and answer.headers["allow"] == verbs, (method, path)
    assert refused(await asked(stage, "PATCH", "/nodes/%00", {}, token=stage.fleet.scheduler.token("admin")))[0] in (
        400,
        404,
    )
    head = await asked(stage, "HEAD", "/jobs", token=token)
    assert (head.status, head.content, head.headers["content-type"]) == (200, b"", "application/json")


async def test_wrong_requests_name_the_field_and_change_nothing(stage: Stage) -> None:
    token = (await token_for(stage, "clumsy")).secret

    async def wrong(method: str, path: str, said: object = None, **given: Any) -> tuple[int, str, str]:
        answer = await asked(stage, method, path, said, token=token, **given)
        return (*refused(answer), answer.json["error"]["field"])

    assert await wrong("GET", "/jobs?page_size=1&page_size=2") == (400, "INVALID_ARGUMENT", "page_size")
    assert (await asked(stage, "GET", "/jobs?user=%00", token=token)).json["jobs"] == []
    assert await wrong("GET", f"/jobs/{10**40}") == (400, "INVALID_ARGUMENT", "job_id")
    assert await wrong("GET", "/jobs/%F0%9F%92%A9") == (400, "INVALID_ARGUMENT", "job_id")
    assert await wrong("GET", "/jobs/41.3") == (400, "INVALID_ARGUMENT", "job_id")
    assert await wrong("GET", "/jobs?%ff=1") == (400, "INVALID_ARGUMENT", "\ufffd")
    assert await wrong("GET", "/jobs", {}) == (400, "INVALID_ARGUMENT", "body")
    assert await wrong("POST", "/jobs", {"\ud800": 1}) == (400, "INVALID_ARGUMENT", "?")
    assert await wrong("POST", "/jobs", SLEEPS | {"specs": [{"argv": ["true"], "cwd": "here"}]}) == (
        *(400, "INVALID_ARGUMENT"),
        "specs[0].cwd",
    )
    framed = {"transfer-encoding": "chunked", "content-type": "application/json"}
    assert await wrong("POST", "/jobs", body=b"0\r\n\r\n", headers=framed) == (
        *(400, "INVALID_ARGUMENT"),
        "transfer-encoding",
    )
    for body in (b"{", b"[" * 100_000, b"\xff", b'{"specs": [], "specs": []}', b"{" * 999_999):
        assert await wrong("POST", "/jobs", body=body) == (400, "INVALID_ARGUMENT", "body")
    # Found while it is read: to look for it among all names took minutes, for everybody.
    many = b",".join(b'"%x":0' % number for number in range(100_000))
    assert await wrong("POST", "/jobs", body=b"{%b,%b}" % (many, b'"1869f":0')) == (400, "INVALID_ARGUMENT", "body")
    assert await wrong("POST", "/jobs", body=b" " * (BODY_BYTES_MAX + 1)) == (413, "MESSAGE_TOO_LARGE", "")
    plain = {"content-type": "application/x-www-form-urlencoded"}
    assert await wrong("POST", "/jobs", body=b"a=b", headers=plain) == (415, "CONTENT_TYPE_UNKNOWN", "content-type")
    key = {"idempotency-key": "x" * 129}
    assert await wrong("POST", "/jobs", SLEEPS, headers=key) == (400, "INVALID_ARGUMENT", "idempotency-key")
    assert await wrong("GET", "/jobs", headers={"idempotency-key": "x"}) == (400, "INVALID_ARGUMENT", "idempotency-key")
    assert (await asked(stage, "GET", "/jobs?user=clumsy", token=token)).json["jobs"] == []


async def test_what_is_long_is_read_beside_the_loop() -> None:
    here = threading.current_thread()
    assert await on_a_thread_if_long(AT_ONCE_BYTES_MAX, threading.current_thread) is here
    assert await on_a_thread_if_long(AT_ONCE_BYTES_MAX + 1, threading.current_thread) is not here


async def test_a_long_request_is_answered_as_a_short_one(stage: Stage) -> None:
    token = (await token_for(stage, "long")).secret
    spec = SLEEPS["specs"][0] | {"argv": ["sleep", "600", "x" * AT_ONCE_BYTES_MAX]}
    assert (await asked(stage, "POST", "/jobs", {"specs": [spec], "dry_run": True}, token=token)).status == 200
    wrong = {"specs": [spec | {"nme": "x"}]}
    for path in ("/jobs", "/rpc/Submit"):
        answer = await asked(stage, "POST", path, wrong, token=token)
        assert answer.json["error"]["field"] == "specs[0].nme", path
        # Of who is not known nothing long is read.
        assert refused(await asked(stage, "POST", path, wrong, token=make_token())) == (401, "TOKEN_INVALID")


async def test_the_same_key_submits_once(stage: Stage) -> None:
    token = (await token_for(stage, "again")).secret
    key = {"idempotency-key": "nightly 7"}
    first, second = [await asked(stage, "POST", "/jobs", SLEEPS, token=token, headers=key) for _ in range(2)]
    assert first.status == second.status == 200 and first.json["first_job_id"] == second.json["first_job_id"]
    other = await asked(stage, "POST", "/jobs", SLEEPS | {"count": 2}, token=token, headers=key)
    assert refused(other) == (409, "REQUEST_ID_REUSED")
    assert len((await asked(stage, "GET", "/jobs?user=again", token=token)).json["jobs"]) == 1


async def test_a_body_that_was_refused_unread_is_no_next_request(stage: Stage) -> None:
    """Else what follows in it would be answered as another request, of somebody who shares the connection."""
    inside = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {10 * len(inside)}\r\n\r\n".encode()
    async with asyncio.timeout(DEADLINE_SECONDS), connection(stage.gateway) as asking:
        asking.writer.write(head + inside)
        status, headers = await asking.head()
        assert (status, headers["connection"]) == (401, "close")
        body = await asking._reader.read()
        assert json.loads(body)["error"]["reason"] == "TOKEN_MISSING", "and nothing behind it"


async def test_a_connection_goes_on_after_a_refusal(stage: Stage) -> None:
    token = (await token_for(stage, "goes-on")).secret
    common = f"Host: {stage.gateway}\r\nAuthorization: Bearer {token}\r\n"
    wrong = f"POST /api/v1/jobs HTTP/1.1\r\n{common}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    async with asyncio.timeout(DEADLINE_SECONDS), connection(stage.gateway) as asking:
        asking.writer.write(wrong.encode() + b'{"no": 1}' + f"GET /api/v1/server HTTP/1.1\r\n{common}\r\n".encode())
        for expected in (400, 200):
            status, headers = await asking.head()
            assert status == expected
            await asking._reader.readexactly(int(headers["content-length"]))


class Reader:
    """An ASGI client that can go away in the middle of an answer."""

    def __init__(self, app: Starlette, path: str, query: str, token: str) -> None:
        self.gone = asyncio.Event()
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"x"), (b"authorization", f"Bearer {token}".encode())],
            "client": ("127.0.0.1", 1),
            "server": ("x", 80),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send), name="a reader")

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.told.put_nowait(message)

    async def chunk(self) -> bytes:
        while not (body := (await self.told.get()).get("body", b"")):
            pass
        return bytes(body)


@asynccontextmanager
async def reading(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Dashboard, Callable[..., Reader], list[Any]]]:
    """The API in this process, a reader of its paths, and the calls of the scheduler that its streams made."""
    calls: list[Any] = []
    begin = Events.begin

    async def noted(events: Events) -> None:
        calls.append(events._call)
        await begin(events)

    monkeypatch.setattr(Events, "begin", noted)
    dashboard = Dashboard(Target(address=parse_address(stage.fleet.scheduler.address)), make_token())
    uploads = Uploads(dashboard, lambda: stage.folder, lambda: 0)
    app = Starlette(routes=Api(dashboard, uploads, Router()).routes())
    token = stage.fleet.scheduler.token("admin")
    async with asyncio.timeout(DEADLINE_SECONDS), dashboard.running():
        yield dashboard, lambda path, query="": Reader(app, f"/api/v1{path}", query, token), calls


async def test_a_stream_whose_reader_goes_is_ended_at_the_scheduler_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.fleet.client() as admin:
        job = await admin.submit("sh", "-c", "echo hi; sleep 600")
        await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
        async with reading(stage, monkeypatch) as (dashboard, reader, calls):
            output = reader(f"/jobs/{job}/output", "follow=true")
            assert await output.chunk() == b"hi\n"
            watch = reader("/watch")
            assert json.loads(await watch.chunk())["event"].startswith("WATCH_EVENT")
            assert dashboard._streams._open.total() == 2
            for each in (output, watch):
                each.gone.set()
                await each.task
            assert [call.cancelled() for call in calls] == [True, True]
            assert not dashboard._streams._open
        await admin.cancel(job)


async def test_what_breaks_off_is_never_taken_for_the_whole(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage.fleet.client() as admin:
        job = await admin.submit("sh", "-c", "echo hi; sleep 600")
        await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
        async with reading(stage, monkeypatch) as (dashboard, reader, _):
            readers = [reader(f"/jobs/{job}/output", "follow=true"), reader("/watch")]
            for each in readers:
                await each.chunk()
            dashboard.leave()
            for each in readers:
                await each.task
                left = [each.told.get_nowait() for _ in range(each.told.qsize())]
                assert all(message["more_body"] for message in left), "an end that was none"
        await admin.cancel(job)


async def test_a_stream_that_is_refused_says_so_before_it_begins_or_in_its_last_line(stage: Stage) -> None:
    made = await token_for(stage, "watching")
    token = made.secret
    assert refused(await asked(stage, "GET", "/jobs/987654/output", token=token)) == (404, "JOB_NOT_FOUND")
    assert refused(await asked(stage, "GET", "/logs/scheduler", token=token)) == (403, "PERMISSION_DENIED")
    admin = stage.fleet.scheduler.token("admin")
    unknown = await asked(stage, "GET", "/logs/gateway", token=admin)
    assert (*refused(unknown), unknown.json["error"]["field"]) == (400, "INVALID_ARGUMENT", "program.program")
    wrong = await asked(stage, "POST", "/capacity", {"wait": "soon"}, token=token)
    assert (*refused(wrong), wrong.json["error"]["field"]) == (400, "INVALID_ARGUMENT", "wait")
    headers = {"Authorization": f"Bearer {token}"}
    async with asyncio.timeout(DEADLINE_SECONDS), connection(stage.gateway) as asking:
        await asking.send("GET", "/api/v1/watch", stage.gateway, headers, b"")
        status, told = await asking.head()
        assert (status, told["content-type"]) == (200, "application/x-ndjson")
        chunks = asking.chunks(told)
        lines = [await anext(chunks)]
        await revoke(stage, made)
        lines += [each async for each in chunks]
    assert json.loads(b"".join(lines).splitlines()[-1])["error"]["reason"] == "TOKEN_REVOKED"


async def test_the_audit_says_from_where_somebody_asked_and_by_which_gateway(stage: Stage) -> None:
    ann = (await token_for(stage, "ann")).secret
    admin = stage.fleet.scheduler.token("admin")
    # A proxy on the gateway's own machine is believed; a person who says so to the scheduler is not.
    headers = {"authorization": f"Bearer {ann}", "x-forwarded-for": "203.0.113.7"}
    sent = await asked(stage, "POST", "/jobs", SLEEPS, headers=headers)
    assert sent.status == 200
    job = int(sent.json["first_job_id"])
    lying = (("gpufleet-client-address", "203.0.113.9"), ("gpufleet-passed-on-by", f"Bearer {ann}"))
    async with stage.fleet.client() as client:
        request = scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(job_ids=[job]))
        await client.stub.Cancel(request, metadata=lying, timeout=DEADLINE_SECONDS)

    async def entries() -> dict[str, Any]:
        said = await asked(stage, "GET", f"/audit?target=job:{job}", token=admin)
        return {each["action"]: each for each in said.json["entries"]}

    async def are_written() -> bool:
        return {"Submit", "Cancel"} <= (await entries()).keys()

    await until("both calls are written down", are_written)
    found = await entries()
    assert (found["Submit"]["user"], found["Submit"]["peer"]) == ("ann", "203.0.113.7")
    assert found["Submit"]["passed_on_by"]
    assert found["Cancel"]["peer"] == "127.0.0.1" and not found["Cancel"]["passed_on_by"]
