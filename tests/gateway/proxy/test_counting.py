"""What requests came to: each is counted once, by who asked, with the tokens that its answer says."""

from __future__ import annotations

import json

import pytest
from gpufleet.v1 import sessions_pb2

from gateway.proxy import counting, upstream
from gateway.proxy.core import request_sums
from gateway.proxy.core.request_sums import EndedRequest, RequestSums
from gateway.proxy.core.token_counts import Tokens
from gpufleet.errors import GpufleetError, Reason
from scheduler.wire import request_counts
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Call, Stage, asked, program, stage

LOGIN = sessions_pb2.MODEL_ACCESS_LOGIN
CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 5, "completion_tokens": 7}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_S", "PAUSE_S_MIN", "PAUSE_S_MAX"):
        monkeypatch.setattr(counting, name, 0.01)
    monkeypatch.setattr(upstream, "KEPT_S_MAX", 0.01)  # a program's end waits for them


async def engine(call: Call) -> None:
    """Answers as the body's `do` says."""
    text = await call.body()
    match json.loads(text)["do"] if text else "page":
        case "answer":
            await call.reply(json.dumps({"usage": USAGE}).encode(), headers={"Content-Type": "application/json"})
        case "stream" | "leave" as do:
            await call.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            await call.chunk(f"data: {json.dumps({'usage': USAGE})}\n\n".encode())
            if do == "leave":
                await call.is_left()
                call.keeps = False
                return
            await call.chunk(b"")
        case "silent":
            await call.reply(b'{"choices": []}', headers={"Content-Type": "application/json"})
        case "hostile":
            said = {"usage": {"prompt_tokens": -5, "completion_tokens": 10**300}}
            await call.reply(json.dumps(said).encode(), headers={"Content-Type": "application/json"})
        case "refuse":
            await call.reply(b"{}", "400 Bad Request", {"Content-Type": "application/json"})
        case "break":
            call.keeps = False
        case _:
            await call.reply(b"page")


async def ask(at: Stage, do: str, token: str = "", *, path: str = CHAT, model: str = "chat") -> int:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    status, _, _ = await asked(at, path, "POST", json.dumps({"model": model, "do": do}).encode(), headers)
    return status


async def test_requests_and_tokens_are_counted_by_user_and_program_wherever_they_come_in() -> None:
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica)
        ann, bob = at.person("ann"), at.person("bob")
        for do in ("answer", "stream", "silent", "hostile"):
            assert await ask(at, do, ann) == 200
        assert await ask(at, "refuse", ann) == 400
        assert await ask(at, "break", ann) == 502
        assert await ask(at, "answer", bob, path=f"/m/chat{CHAT}") == 200
        assert await ask(at, "answer") == 200
        assert (await asked(at, "/m/chat/page"))[0] == 200
        told = at.scheduler
        await until("all are told", lambda: [told.count("chat", each) for each in ("ann", "bob", "")] == [6, 1, 2])

        def of(user: str) -> list[int]:
            fields = ("failed_count", "prompt_tokens", "completion_tokens", "unknown_count")
            return [told.count("chat", user, field) for field in fields]

        assert of("ann") == [2, 10, 14, 2]
        assert (of("bob"), of("")) == ([0, 5, 7, 0], [0, 5, 7, 0]), "a page says no tokens, and none are missed"
        assert all(row.duration.ToMicroseconds() > 0 for each in told.counted.values() for row in each.rows)
        sent = {call["accept-encoding"] for call in replica.calls if call.method == "POST"}
        assert sent == {"identity"}, "what is compressed cannot be read along"


async def test_a_client_that_goes_away_in_the_middle_is_counted_with_what_was_said_until_then() -> None:
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica)
        headers = {"Content-Type": "application/json"}
        async with at.asking(CHAT, "POST", headers, b'{"model": "chat", "do": "leave"}') as asking:
            status, told = await asking.head()
            assert (status, await anext(asking.chunks(told)))[0] == 200
        await until("it is told", lambda: at.scheduler.count("chat", "") == 1)
        assert at.scheduler.count("chat", "", "prompt_tokens") == 5
        assert at.scheduler.count("chat", "", "failed_count") == 0


async def test_who_is_refused_by_the_gateway_is_not_counted() -> None:
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica, access=LOGIN)
        assert await ask(at, "answer") == 401
        assert await ask(at, "answer", model="nobody") == 404
        assert await ask(at, "answer", at.person("ann")) == 200
        await until("hers is told", lambda: at.scheduler.count("chat", "ann") == 1)
        assert len(at.scheduler.counted) == 1


async def test_a_batch_whose_answer_was_lost_comes_again_as_it_was_and_is_one() -> None:
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica)
        at.scheduler.count_error = GpufleetError(Reason.HISTORY_UNAVAILABLE)
        assert await ask(at, "answer") == 200
        await until("it is told again", lambda: at.scheduler.calls["CountRequests"] >= 3)
        assert await ask(at, "answer") == 200
        at.scheduler.count_error = None
        await until("both are told", lambda: at.scheduler.count("chat", "") == 2)
        starts = {start for start, _ in at.scheduler.counted}
        assert (len(starts), [number for _, number in at.scheduler.counted]) == (1, [1, 2])


async def test_a_batch_that_is_refused_for_good_does_not_hold_up_the_next_one() -> None:
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica)
        at.scheduler.count_error = GpufleetError(Reason.INVALID_ARGUMENT)
        assert await ask(at, "answer") == 200
        await until("it is refused", lambda: at.scheduler.calls["CountRequests"] == 1)
        at.scheduler.count_error = None
        assert await ask(at, "answer") == 200
        await until("the next one is told", lambda: 2 in {number for _, number in at.scheduler.counted})


async def test_what_ended_last_is_told_before_a_gateway_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "GATHER_S", 3_600.0)
    monkeypatch.setattr(counting, "LAST_S_MAX", DEADLINE_SECONDS)
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica)
        assert await ask(at, "answer") == 200
        told = at.scheduler
        assert not told.counted
    assert told.count("chat", "") == 1


def test_while_the_scheduler_is_away_there_is_a_bound_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_sums, "KEYS_MAX", 3)
    monkeypatch.setattr(request_sums, "ROWS_MAX", 2)
    sums = RequestSums()
    assert sums.is_empty and sums.batch() is None
    request = EndedRequest(0.5, 200, tokens=Tokens(1, 2))
    assert [sums.add("m", f"u{number}", request) for number in range(5)] == [True, True, True, False, False]
    assert sums.add("m", "u1", request), "one who is known already"
    first = sums.batch()
    assert first is not None and [key for key, _ in first.rows] == [("m", "u0"), ("m", "u1")]
    sums.add("m", "u1", request)
    assert sums.batch() is first, "until it is stored"
    sums.stored(first)
    second = sums.batch()
    assert second is not None and second.sequence == 2
    assert {key: each.requests for key, each in second.rows} == {("m", "u2"): 1, ("m", ""): 2}
    sums.stored(second)
    third = sums.batch()
    assert third is not None and {key: each.prompt_tokens for key, each in third.rows} == {("m", "u1"): 1}
    sums.stored(third)
    assert sums.is_empty


def test_a_program_that_claims_more_tokens_than_the_scheduler_takes_spoils_no_batch() -> None:
    assert request_sums.TOKENS_SUM_MAX == request_counts.COUNT_MAX
    sums = RequestSums()
    claims = Tokens(prompt=request_sums.TOKENS_SUM_MAX - 1, completion=0)
    for tokens in (claims, Tokens(prompt=2, completion=5), Tokens(prompt=1, completion=7)):
        sums.add("chat", "ann", EndedRequest(1.0, 200, says_tokens=True, tokens=tokens))
    told = sums.batch()
    assert told is not None
    ((_, row),) = told.rows
    assert (row.requests, row.prompt_tokens, row.completion_tokens, row.unknown) == (3, 10**12, 7, 1)
