"""The dashboard's side of the gateway, against a real scheduler: logins, calls, streams, and whom it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from gpufleet.v1 import scheduler_pb2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.dashboard.bounds import (
    CALLS_AT_ONCE,
    CALLS_PER_SECOND,
    KNOWN_MAX,
    STREAMS_PER_PERSON_MAX,
    WAITING_PER_ADDRESS_MAX,
    WRONG_FORGOTTEN_S,
    WRONG_FREE,
    WRONG_S_MAX,
    Guesses,
    Rates,
    Streams,
)
from gateway.dashboard.calls import CALLS, STREAMS
from gateway.dashboard.guard import BODY_BYTES_MAX, STATUS_OF
from gateway.dashboard.login import LOGIN_SECONDS, Seals
from gateway.dashboard.streams import POLICY, SAID_AT_ONCE
from gpufleet.errors import Code, GpufleetError, Reason
from gpufleet.security.tokens import make_token
from scheduler.api.roles import ROLES_OF
from scheduler.state.access import Role
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.asking import Answer, ask, is_sign_of_life, stream
from tests.gateway.stage import Stage

ROLES = {
    "admin": scheduler_pb2.ROLE_ADMIN,
    "user": scheduler_pb2.ROLE_USER,
    "viewer": scheduler_pb2.ROLE_VIEWER,
}


async def token_for(stage: Stage, user: str, role: str = "user") -> scheduler_pb2.CreateTokenResponse:
    async with stage.fleet.client() as admin:
        request = scheduler_pb2.CreateTokenRequest(user=user, role=ROLES[role])
        made: scheduler_pb2.CreateTokenResponse = await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)
        return made


async def revoke(stage: Stage, made: scheduler_pb2.CreateTokenResponse) -> None:
    async with stage.fleet.client() as admin:
        await admin.stub.RevokeToken(scheduler_pb2.RevokeTokenRequest(id=made.token.id), timeout=DEADLINE_SECONDS)


async def logged_in(stage: Stage, token: str) -> Answer:
    return await ask(stage.gateway, "/api/v1/login", {"token": token})


def refused(answer: Answer) -> tuple[int, str]:
    error = answer.json["error"]
    assert error["message"] and error["next_step"]
    return answer.status, error["reason"]


@pytest.mark.parametrize("role", ROLES)
async def test_who_logs_in_is_told_who_they_are_and_the_cookie_hides_the_token(stage: Stage, role: str) -> None:
    made = await token_for(stage, f"ann-{role}", role)
    answer = await logged_in(stage, f"  {made.secret}\n")
    assert (answer.status, answer.json["user"], answer.json["role"]) == (200, f"ann-{role}", role)
    said = answer.headers["set-cookie"]
    assert "HttpOnly" in said and "SameSite=strict" in said.replace("Strict", "strict") and made.secret not in said
    assert answer.headers["cache-control"] == "no-store"
    me = await ask(stage.gateway, "/api/v1/me", cookie=answer.cookie)
    assert me.json == answer.json
    out = await ask(stage.gateway, "/api/v1/logout", {}, cookie=answer.cookie)
    assert out.cookie.partition("=")[2] in ("", '""')


async def test_any_gateway_with_the_same_token_knows_a_login(stage: Stage) -> None:
    cookie = (await logged_in(stage, (await token_for(stage, "roaming")).secret)).cookie
    side = stage.another_gateway("dashboard-too")
    me = await ask(await side.address(), "/api/v1/me", cookie=cookie)
    assert (me.status, me.json["user"]) == (200, "roaming")
    assert side.end() == 0


async def test_what_is_no_persons_token_is_refused_with_the_reason(stage: Stage) -> None:
    wrong = {
        "": (401, "TOKEN_MISSING"),
        "hunter2": (401, "TOKEN_INVALID"),
        make_token(): (401, "TOKEN_INVALID"),
        stage.fleet.scheduler.token("gateway"): (403, "PERMISSION_DENIED"),
    }
    for token, expected in wrong.items():
        answer = await logged_in(stage, token)
        assert refused(answer) == expected
        assert not answer.cookie and (not token or token not in answer.content.decode())
    assert refused(await ask(stage.gateway, "/api/v1/login", {"token": 7})) == (401, "TOKEN_MISSING")


async def test_without_a_login_nothing_is_told(stage: Stage) -> None:
    seals = Seals("another gateway's token")
    foreign = f"{seals.cookie}={seals.seal(make_token())}"
    for cookie in ("", foreign, "gpufleet_login_0=x"):
        assert refused(await ask(stage.gateway, "/api/v1/me", cookie=cookie)) == (401, "TOKEN_MISSING")
        assert refused(await ask(stage.gateway, "/api/v1/rpc/Queue", {}, cookie=cookie)) == (401, "TOKEN_MISSING")
        assert refused(await ask(stage.gateway, "/api/v1/stream/Watch", cookie=cookie)) == (401, "TOKEN_MISSING")
    # This gateway's own token opens sessions for strangers, and is never lent to them.
    own = Seals(stage.fleet.scheduler.token("gateway"))
    cut = f"{own.cookie}={own.seal(make_token())[:-8]}"
    assert refused(await ask(stage.gateway, "/api/v1/me", cookie=cut)) == (401, "TOKEN_MISSING")


async def test_a_revoked_token_ends_the_login_and_its_streams(stage: Stage) -> None:
    made = await token_for(stage, "gone")
    cookie = (await logged_in(stage, made.secret)).cookie
    async with stream(stage.gateway, "Watch", {"skip_snapshot": True}, made.secret) as events:
        assert (await events.next())[1]["event"] == "WATCH_EVENT_SYNCED"
        await revoke(stage, made)
        kind, told = await events.next()
        assert (kind, told["reason"]) == ("error", "TOKEN_REVOKED")
        assert await events.next() == ("closed", None)
    assert refused(await ask(stage.gateway, "/api/v1/rpc/Queue", {}, cookie=cookie)) == (401, "TOKEN_REVOKED")
    assert refused(await ask(stage.gateway, "/api/v1/stream/Watch", cookie=cookie)) == (401, "TOKEN_REVOKED")
    assert refused(await logged_in(stage, made.secret)) == (401, "TOKEN_REVOKED")


async def test_calls_are_made_with_the_persons_own_rights(stage: Stage) -> None:
    tokens = {role: (await token_for(stage, f"{role}-1", role)).secret for role in ROLES}
    cookies = {role: (await logged_in(stage, token)).cookie for role, token in tokens.items()}
    spec = {"argv": ["true"], "cwd": "/", "is_held": True, "name": "from-a-page"}
    submit = {"specs": [spec], "request_id": "dash-1"}
    assert refused(await ask(stage.gateway, "/api/v1/rpc/Submit", submit, cookie=cookies["viewer"]))[0] == 403
    submitted = await ask(stage.gateway, "/api/v1/rpc/Submit", submit, cookie=cookies["user"])
    assert submitted.status == 200, submitted.content
    job = submitted.json["job"]
    assert (job["user"], job["state"], job["spec"]["name"]) == ("user-1", "JOB_STATE_HELD", "from-a-page")
    seen = await ask(stage.gateway, "/api/v1/rpc/GetJob", {"job_id": job["id"]}, cookie=cookies["viewer"])
    assert seen.json["job"] == job
    other = (await token_for(stage, "someone")).secret
    cancel = {"jobs": {"job_ids": [job["id"]]}, "reason": "from the dashboard"}
    denied = await ask(stage.gateway, "/api/v1/rpc/Cancel", cancel, token=other)
    assert refused(denied) == (403, "NOT_YOUR_JOB")
    done = await ask(stage.gateway, "/api/v1/rpc/Cancel", cancel, cookie=cookies["user"])
    assert done.json["changes"][0]["state"] == "JOB_STATE_CANCELLED"
    drain = {"node": "n1", "is_draining": True}
    assert refused(await ask(stage.gateway, "/api/v1/rpc/UpdateNode", drain, cookie=cookies["user"]))[0] == 403
    assert refused(await ask(stage.gateway, "/api/v1/rpc/UpdateNode", drain, cookie=cookies["admin"]))[0] == 404


async def test_bad_requests_name_the_field_and_change_nothing(stage: Stage) -> None:
    token = (await token_for(stage, "clumsy")).secret

    async def said(method: str, request: object) -> tuple[int, str, str]:
        answer = await ask(stage.gateway, f"/api/v1/rpc/{method}", request, token=token)
        return (*refused(answer), answer.json["error"]["field"])

    assert await said("Queue", {"nonsense": 1}) == (400, "INVALID_ARGUMENT", "nonsense")
    assert await said("Queue", {"page_size": "many"}) == (400, "INVALID_ARGUMENT", "page_size")
    assert await said("Queue", [1]) == (400, "INVALID_ARGUMENT", "body")
    assert await said("Queue", {"page_size": -1}) == (400, "INVALID_ARGUMENT", "page_size")
    assert await said("CreateToken", {}) == (501, "METHOD_UNKNOWN", "")
    assert await said("__class__", {}) == (501, "METHOD_UNKNOWN", "")
    assert await said("Submit", {"specs": [{"argv": ["true"], "cwd": "here"}]}) == (
        *(400, "INVALID_ARGUMENT"),
        "specs[0].cwd",
    )
    for body in (b"{", b"[" * 100_000, b"\xff"):
        answer = await ask(stage.gateway, "/api/v1/rpc/Queue", body=body, token=token)
        assert refused(answer) == (400, "INVALID_ARGUMENT")
    long = await ask(stage.gateway, "/api/v1/rpc/Queue", body=b" " * (BODY_BYTES_MAX + 1), token=token)
    assert refused(long) == (413, "MESSAGE_TOO_LARGE")
    path = "/api/v1/stream/Watch?request=" + quote(json.dumps({"user": "x" * 9_000}))
    assert refused(await ask(stage.gateway, path, token=token)) == (400, "INVALID_ARGUMENT")


async def test_pages_from_elsewhere_are_refused_whatever_cookie_they_bring(stage: Stage) -> None:
    cookie = (await logged_in(stage, (await token_for(stage, "tricked")).secret)).cookie
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://{stage.gateway.rpartition(':')[0]}:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        for path, said in (("rpc/Queue", {}), ("logout", {}), ("stream/Watch", None), ("me", None)):
            answer = await ask(stage.gateway, f"/api/v1/{path}", said, cookie=cookie, headers=headers)
            assert refused(answer) == (403, "PERMISSION_DENIED"), (path, headers)
    form = await ask(stage.gateway, "/api/v1/rpc/Queue", {}, cookie=cookie, headers={"content-type": "text/plain"})
    assert refused(form) == (415, "CONTENT_TYPE_UNKNOWN")
    own = {"origin": f"http://{stage.gateway}", "sec-fetch-site": "same-origin"}
    assert (await ask(stage.gateway, "/api/v1/rpc/Queue", {}, cookie=cookie, headers=own)).status == 200


async def test_a_stream_tells_changes_as_they_come_and_its_end(stage: Stage) -> None:
    token = (await token_for(stage, "watching")).secret
    async with stream(stage.gateway, "Watch", {"user": "watching"}, token) as events:
        while (await events.next())[1]["event"] != "WATCH_EVENT_SYNCED":
            pass
        async with stage.fleet.client(token) as person:
            job = await person.submit("true", is_held=True)
            kind, told = await events.next()
            assert (kind, told["job"]["id"], told["job"]["state"]) == ("message", str(job), "JOB_STATE_HELD")
            await person.stub.Cancel(scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(job_ids=[job])))
        assert (await events.next())[1]["job"]["state"] == "JOB_STATE_CANCELLED"
    async with stream(stage.gateway, "StreamOutput", {"job_id": job, "follow": True}, token) as events:
        told = [await events.next()]
        while told[-1][0] == "message":
            told.append(await events.next())
        assert told[-2][1]["is_end"] and told[-1] == ("end", {})


async def test_a_stream_that_is_refused_says_so_before_it_begins(stage: Stage) -> None:
    token = (await token_for(stage, "asking")).secret
    path = "/api/v1/stream/StreamOutput?request=" + quote('{"job_id": 987654}')
    assert refused(await ask(stage.gateway, path, token=token)) == (404, "JOB_NOT_FOUND")
    unknown = await ask(stage.gateway, "/api/v1/stream/AttachJob", token=token)
    assert refused(unknown) == (501, "METHOD_UNKNOWN")


async def test_one_person_has_so_many_streams_and_each_that_ends_makes_room(stage: Stage) -> None:
    token = (await token_for(stage, "tabs")).secret
    opened = [stream(stage.gateway, "Watch", {"skip_snapshot": True}, token) for _ in range(STREAMS_PER_PERSON_MAX)]
    for each in opened:
        await each.__aenter__()
    path = "/api/v1/stream/Watch"
    refusal = await ask(stage.gateway, path, token=token)
    assert refused(refusal) == (429, "TOO_MANY_STREAMS")
    other = (await token_for(stage, "another")).secret
    async with stream(stage.gateway, "Watch", {"skip_snapshot": True}, other) as events:
        assert (await events.next())[0] == "message"
    for each in opened:
        await each.__aexit__(None, None, None)

    cookie = (await logged_in(stage, token)).cookie

    async def has_room() -> bool:
        async with page(stage, cookie) as socket:
            await socket.send(json.dumps({"stream": 1, "method": "Watch", "request": {"skip_snapshot": True}}))
            return "message" in await told(socket)

    await until("there is room for one more", has_room)


@asynccontextmanager
async def page(stage: Stage, cookie: str, origin: str | None = None) -> AsyncIterator[ClientConnection]:
    """The socket that a page opens for its streams."""
    url = f"ws://{stage.gateway}/api/v1/streams"
    headers = {"Cookie": cookie}
    async with connect(url, additional_headers=headers, origin=origin, proxy=None) as socket:  # type: ignore[arg-type]
        yield socket


async def told(socket: ClientConnection) -> dict[str, Any]:
    """The next news of any stream."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while is_sign_of_life((news := json.loads(await socket.recv())).get("message")):
            pass
        return dict(news)


async def test_a_page_has_all_its_streams_on_one_socket_and_each_ends_by_itself(stage: Stage) -> None:
    token = (await token_for(stage, "windows")).secret
    cookie = (await logged_in(stage, token)).cookie
    watch = {"method": "Watch", "request": {"user": "windows", "skip_snapshot": True}}
    async with page(stage, cookie, f"http://{stage.gateway}") as socket, stage.fleet.client(token) as person:
        for number in (1, 2):
            await socket.send(json.dumps({"stream": number, **watch}))
            synced = await told(socket)
            assert (synced["stream"], synced["message"]["event"]) == (number, "WATCH_EVENT_SYNCED")
        job = await person.submit("true", is_held=True)
        both = [await told(socket), await told(socket)]
        assert {each["stream"] for each in both} == {1, 2}
        assert {each["message"]["job"]["id"] for each in both} == {str(job)}
        await socket.send(json.dumps({"stream": 1, "end": True}))
        # What is refused is told of its own stream, and the other ones go on.
        await socket.send(json.dumps({"stream": 3, "method": "StreamOutput", "request": {"job_id": 987654}}))
        await socket.send(json.dumps({"stream": 4, "method": "Cancel", "request": {}}))
        await socket.send(json.dumps({"stream": 5, "method": "Watch", "request": {"nonsense": 1}}))
        refusals = [await told(socket) for _ in range(3)]
        assert {each["stream"]: each["error"]["reason"] for each in refusals} == {
            3: "JOB_NOT_FOUND",
            4: "METHOD_UNKNOWN",
            5: "INVALID_ARGUMENT",
        }
        await person.stub.Cancel(scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(job_ids=[job])))
        ended = await told(socket)
        assert (ended["stream"], ended["message"]["job"]["state"]) == (2, "JOB_STATE_CANCELLED")
        output = {"method": "StreamOutput", "request": {"job_id": job, "follow": True}}
        await socket.send(json.dumps({"stream": 1, **output}))
        while "end" not in (last := await told(socket)):
            assert last["stream"] == 1
        assert last == {"stream": 1, "end": {}}


async def test_a_socket_is_for_this_gateways_own_pages_and_for_who_is_logged_in(stage: Stage) -> None:
    made = await token_for(stage, "leaving")
    cookie = (await logged_in(stage, made.secret)).cookie
    with pytest.raises(InvalidStatus, match="403"):
        async with page(stage, cookie, "http://evil.example"):
            pass
    async with page(stage, "") as socket:
        assert (await told(socket))["error"]["reason"] == "TOKEN_MISSING"
        await socket.wait_closed()
        assert socket.close_code == POLICY
    async with page(stage, cookie) as socket:
        await socket.send(json.dumps({"stream": 1, "method": "Watch", "request": {"skip_snapshot": True}}))
        assert "message" in await told(socket)
        await revoke(stage, made)
        assert (await told(socket))["error"]["reason"] == "TOKEN_REVOKED"
    async with page(stage, cookie) as socket:
        assert (await told(socket))["error"]["reason"] == "TOKEN_REVOKED"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["{"], "INVALID_ARGUMENT"),
        ([b"\x00"], "INVALID_ARGUMENT"),
        (['{"stream": "x"}'], "INVALID_ARGUMENT"),
        (['{"stream": true}'], "INVALID_ARGUMENT"),
        (['{"stream": 1, "method": "Watch"}'] * 2, "INVALID_ARGUMENT"),
        ([f'{{"stream": {number}, "end": true}}' for number in range(2 * SAID_AT_ONCE)], "QUOTA_EXCEEDED"),
    ],
)
async def test_a_page_that_means_ill_ends_its_own_socket(stage: Stage, said: list[str | bytes], reason: str) -> None:
    cookie = (await logged_in(stage, (await token_for(stage, "hostile")).secret)).cookie
    async with page(stage, cookie) as socket:
        with suppress(ConnectionClosed):
            for each in said:
                await socket.send(each)
        last: dict[str, Any] = {}
        with suppress(ConnectionClosed):
            while True:
                last = await told(socket)
        assert last["error"]["reason"] == reason
        assert socket.close_code == POLICY
    assert (await ask(stage.gateway, "/api/v1/me", cookie=cookie)).status == 200


@pytest.fixture
async def own_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage of the test's own: its programs are stopped."""
    stage = Stage(tmp_path / "stage")
    try:
        await stage.start()
        yield stage
    finally:
        await stage.end()


async def test_a_login_outlives_the_scheduler_and_the_gateway(own_stage: Stage) -> None:
    stage = own_stage
    token = stage.fleet.scheduler.token("admin")
    cookie = (await logged_in(stage, token)).cookie
    async with stream(stage.gateway, "Watch", {"skip_snapshot": True}, token) as events:
        assert (await events.next())[0] == "message"
        await stage.fleet.scheduler.stop()
        kind, told = await events.next()
        assert (kind, told["reason"]) in (("error", "SCHEDULER_STOPPING"), ("error", "SCHEDULER_UNREACHABLE"))
    away = await ask(stage.gateway, "/api/v1/rpc/Queue", {}, cookie=cookie)
    assert refused(away) == (503, "SCHEDULER_UNREACHABLE")
    assert refused(await ask(stage.gateway, "/api/v1/stream/Watch", cookie=cookie)) == (503, "SCHEDULER_UNREACHABLE")
    await stage.fleet.scheduler.start()

    async def is_back() -> bool:
        await asyncio.sleep(2 / CALLS_PER_SECOND)
        return (await ask(stage.gateway, "/api/v1/me", cookie=cookie)).status == 200

    await until("the scheduler answers again", is_back)
    async with stream(stage.gateway, "Watch", {"skip_snapshot": True}, token) as events:
        assert (await events.next())[0] == "message"
        # A gateway that leaves ends its streams at once, without an end: their pages go elsewhere.
        assert stage.sides[0].end() == 0
        assert await events.next() == ("closed", None)
    side = stage.another_gateway("gateway-again")
    await side.address()
    me = await ask(await side.address(), "/api/v1/me", cookie=cookie)
    assert (me.status, me.json["role"]) == (200, "admin")


def test_only_calls_of_people_are_passed_on() -> None:
    for name in (*CALLS, *STREAMS):
        assert ROLES_OF[f"Scheduler/{name}"] & {Role.USER, Role.ADMIN}, name
    assert not {"CreateToken", "RevokeToken", "ListTokens", "UpdateServer", "OpenSession", "ConnectWorker"} & set(CALLS)


def test_every_code_has_a_status() -> None:
    assert set(STATUS_OF) == set(Code) - {code for code in Code if code.name == "OK"}


def test_a_login_ends_after_a_week_and_is_renewed_by_whoever_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    seals, token = Seals("a gateway's token"), make_token()
    sealed = seals.seal(token)
    now_s = time.time()
    assert seals.token_in(sealed) == token
    assert not seals.is_old(sealed, now_s + 3_600) and seals.is_old(sealed, now_s + 2 * 86_400)
    assert token not in sealed and seals.seal(token) != sealed
    monkeypatch.setattr("cryptography.fernet.time.time", lambda: now_s + LOGIN_SECONDS + 10)
    assert seals.token_in(sealed) is None


def test_calls_come_at_a_rate_after_a_few_at_once_and_nobody_is_remembered_for_ever() -> None:
    rates = Rates()
    for _ in range(CALLS_AT_ONCE):
        rates.take("ann", 0.0)
    with pytest.raises(GpufleetError) as problem:
        rates.take("ann", 0.0)
    assert problem.value.reason is Reason.QUOTA_EXCEEDED
    assert 0 < (problem.value.retry_after_s or 0) <= 1 / CALLS_PER_SECOND
    rates.take("bob", 0.0)
    rates.take("ann", 1 / CALLS_PER_SECOND + 0.001)
    for number in range(KNOWN_MAX + 5):
        rates.take(f"person {number}", 2.0)
    assert len(rates._buckets) == KNOWN_MAX


def test_streams_are_counted_by_person() -> None:
    streams = Streams()
    for _ in range(STREAMS_PER_PERSON_MAX):
        streams.open("ann")
    with pytest.raises(GpufleetError, match="streams of one person"):
        streams.open("ann")
    streams.open("bob")
    streams.closed("ann")
    streams.open("ann")


def test_who_guesses_waits_longer_each_time_and_who_knows_does_not() -> None:
    guesses = Guesses()
    pauses = []
    for number in range(20):
        guesses.check("10.0.0.1")
        pauses.append(guesses.wrong("10.0.0.1", float(number)))
        guesses.answered("10.0.0.1")
    assert pauses[:WRONG_FREE] == [0.0] * WRONG_FREE
    assert pauses[WRONG_FREE:] == sorted(pauses[WRONG_FREE:]) and pauses[-1] == WRONG_S_MAX
    assert guesses.wrong("10.0.0.2", 20.0) == 0.0
    # All at once is no way around it.
    for _ in range(WAITING_PER_ADDRESS_MAX):
        guesses.check("10.0.0.1")
        guesses.wrong("10.0.0.1", 21.0)
    with pytest.raises(GpufleetError, match="too many wrong tokens"):
        guesses.check("10.0.0.1")
    for _ in range(WAITING_PER_ADDRESS_MAX):
        guesses.answered("10.0.0.1")
    guesses.check("10.0.0.1")
    assert guesses.wrong("10.0.0.1", 21.0 + WRONG_FORGOTTEN_S + 1) == 0.0
    for number in range(KNOWN_MAX + 5):
        guesses.wrong(f"address {number}", 700.0)
    assert len(guesses._guessers) == KNOWN_MAX


async def test_the_fourth_wrong_token_is_answered_later_while_a_right_one_gets_in(own_stage: Stage) -> None:
    stage = own_stage
    for _ in range(WRONG_FREE):
        assert refused(await logged_in(stage, make_token())) == (401, "TOKEN_INVALID")
    guessing = asyncio.create_task(logged_in(stage, make_token()))
    assert (await logged_in(stage, stage.fleet.scheduler.token("admin"))).status == 200
    assert refused(await guessing) == (401, "TOKEN_INVALID")
