"""Programs under /v1, by the name in a request's body: which one answers, who may, and refusals that clients read."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2

from gateway.proxy import held_bodies, upstream, watching
from gateway.proxy.lane import Lane
from gpufleet.security.tokens import make_token
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Call, Stage, asked, program, stage

LOGIN, OPEN = sessions_pb2.MODEL_ACCESS_LOGIN, sessions_pb2.MODEL_ACCESS_OPEN
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def _connections_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's end waits for them."""
    monkeypatch.setattr(upstream, "KEPT_S_MAX", 0.01)


async def echoes(call: Call) -> None:
    body = await call.body()
    told = {name: call.head[name] for name in ("gpufleet-user", "authorization", "x-forwarded-prefix")}
    said = {"target": call.head.target, "body": body.decode("latin-1"), **told}
    await call.reply(json.dumps(said).encode(), headers=JSON)


async def ask(
    at: Stage, body: bytes | object, *, path: str = CHAT, token: str = "", **headers: str
) -> tuple[int, dict[str, str], Any]:
    """A POST of JSON."""
    given = {**JSON, **({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, told, answer = await asked(at, path, "POST", content, given)
    return status, told, json.loads(answer)


def refusal(answer: Any) -> tuple[str, str | None]:
    """The code and the field of an error of OpenAI's shape."""
    assert set(answer) == {"error"} and set(answer["error"]) == {"message", "type", "param", "code"}, answer
    assert answer["error"]["message"] and answer["error"]["type"]
    return answer["error"]["code"], answer["error"]["param"]


async def test_the_body_says_which_program_answers_and_comes_to_it_unchanged() -> None:
    async with stage() as at, program("r1", echoes) as one, program("r2", echoes) as two:
        await at.serve("one", one)
        await at.serve("two", two)
        for name, path in (("one", CHAT), ("two", "/v1/embeddings?a=%2F"), ("two", "/v1/own/thing")):
            text = f' {{"messages": [{{"model": "one"}}],  "model" : "{name}" }} '
            status, _, said = await ask(at, text.encode(), path=path, Cookie="gpufleet_x=1")
            assert (status, said["target"], said["body"]) == (200, path, text)
            assert (said["x-forwarded-prefix"], said["gpufleet-user"]) == (f"/m/{name}", "")
        assert (len(one.calls), len(two.calls)) == (1, 2)


async def test_a_body_in_chunks_and_a_long_one_pass_as_they_are() -> None:
    async with stage() as at, program("r1", echoes) as replica:
        await at.serve("chat", replica)
        parts = [b'{"mod', b'el": "ch', b'at"}']
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in parts) + b"0\r\n\r\n"
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {at.address}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        data = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(data) as (reader, _):
            answer = await reader.read()
        assert b" 200 " in answer and b'{\\"model\\": \\"chat\\"}' in answer
        long = {"messages": ["x" * 1_000_000], "model": "chat"}
        _, _, said = await ask(at, long)
        assert json.loads(said["body"]) == long


async def test_a_form_with_a_file_goes_to_the_program_that_its_field_names() -> None:
    async with stage() as at, program("r1", echoes) as replica:
        await at.serve("whisper", replica)
        field = '--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        file = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
        sent = (field + file).encode()
        path = "/v1/audio/transcriptions"
        status, _, said = await ask(at, sent, path=path, **{"Content-Type": "multipart/form-data; boundary=b"})
        assert (status, said["body"]) == (200, sent.decode())


async def test_what_a_program_streams_comes_as_it_is_written() -> None:
    goes_on = asyncio.Event()

    async def streams(call: Call) -> None:
        await call.body()
        await call.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await call.chunk(b'data: {"n": 1}\n\n')
        await goes_on.wait()
        await call.chunk(b"data: [DONE]\n\n")
        await call.chunk(b"")

    async with stage() as at, program("r1", streams) as replica:
        await at.serve("chat", replica)
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            at.asking(CHAT, "POST", JSON, b'{"model": "chat", "stream": true}') as asking,
        ):
            status, headers = await asking.head()
            chunks = asking.chunks(headers)
            assert (status, await anext(chunks)) == (200, b'data: {"n": 1}\n\n')
            goes_on.set()
            assert [each async for each in chunks] == [b"data: [DONE]\n\n"]


async def test_a_program_is_for_people_and_an_open_one_for_everybody() -> None:
    async with stage() as at, program("r1", echoes) as replica:
        await at.serve("closed", replica, access=LOGIN)
        await at.serve("open", replica)
        ann = at.person("ann")
        status, _, said = await ask(at, {"model": "closed"}, token=ann)
        assert (status, said["gpufleet-user"], said["authorization"]) == (200, "ann", "")
        _, _, said = await ask(at, {"model": "open"}, token="sk-own")
        assert (said["gpufleet-user"], said["authorization"]) == ("", "Bearer sk-own"), "the program's own key"
        for token in ("", "sk-own", "gf_cut", make_token()):
            status, _, said = await ask(at, {"model": "closed"}, token=token)
            assert (status, refusal(said)) == (401, ("invalid_api_key", None)), token
        cookie = at.cookie(ann)
        assert (await ask(at, {"model": "closed"}, Cookie=cookie))[0] == 200
        assert (await ask(at, {"model": "closed"}, Cookie=cookie, Origin="https://elsewhere"))[0] == 401
        assert len(replica.calls) == 3


async def test_a_model_that_does_not_exist_is_told_so() -> None:
    async with stage() as at:
        at.scheduler.models["class"] = sessions_pb2.WatchWorkersResponse()
        for name in ("nobody", "../closed", "a/b", "", " ", "class", "%2e", "\u0000", "\ud800", "x" * 64):
            status, _, said = await ask(at, {"model": name})
            assert (status, refusal(said)) == (404, ("model_not_found", "model")), name


WRONG: list[tuple[bytes, dict[str, str], int, str, str | None]] = [
    (b"{}", {}, 400, "model_missing", "model"),
    (b"", {}, 400, "invalid_json", None),
    (b'{"model": "chat"', {}, 400, "invalid_json", None),
    (b'{"model": "chat", "model": "other"}', {}, 400, "model_ambiguous", "model"),
    (b'{"model": ["chat"]}', {}, 400, "model_invalid", "model"),
    (b'{"model": "chat"}', {"Content-Type": "text/plain"}, 415, "unsupported_content_type", None),
    (b'{"model": "chat"}', {"Content-Type": ""}, 415, "unsupported_content_type", None),
    (
        gzip.compress(b'{"model": "chat"}', mtime=0),
        {"Content-Encoding": "gzip"},
        415,
        "unsupported_content_encoding",
        None,
    ),
    (b'{"model": "chat"}', {"Content-Type": "multipart/form-data"}, 400, "invalid_form", None),
]


async def test_a_request_that_names_no_program_is_refused_and_says_why() -> None:
    async with stage() as at, program("r1", echoes) as replica:
        await at.serve("chat", replica)
        for body, headers, status, code, param in WRONG:
            found, _, said = await ask(at, body, **headers)
            assert (found, refusal(said)) == (status, (code, param)), (body, headers)
        assert not replica.calls


async def test_bodies_that_are_held_have_bounds_each_by_caller_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_bodies, "BODY_BYTES_MAX", 1_000)
    monkeypatch.setattr(held_bodies, "CALLER_BYTES_MAX", 1_500)
    monkeypatch.setattr(held_bodies, "IN_ALL_BYTES_MAX", 2_000)
    kept = held_bodies.HeldBodies()
    monkeypatch.setattr("gateway.proxy.openai.HeldBodies", lambda: kept)
    async with stage() as at, program("r1", echoes) as replica:
        await at.serve("chat", replica)
        ann, bob, cid = at.person("ann"), at.person("bob"), at.person("cid")
        status, _, said = await ask(at, {"model": "chat", "x": "x" * 1_000})
        assert (status, refusal(said)) == (413, ("message_too_large", None))
        assert "/m/MODEL/v1/" in said["error"]["message"]

        def held(token: str) -> Any:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
            return at.raw(f"{head}Authorization: Bearer {token}\r\n\r\n".encode() + b" " * 900)

        async def check_refused(token: str, status: int, code: str) -> None:
            found, headers, said = await ask(at, {"model": "chat", "x": "x" * 700}, token=token)
            assert (found, refusal(said)[0], headers["retry-after"]) == (status, code, "2")

        # Not asked before it is held: else the other one would be refused.
        async with held(ann):
            await until("hers is held", lambda: kept.in_all == 900)
            await check_refused(ann, 429, "quota_exceeded")
            assert (await ask(at, {"model": "chat", "x": "x" * 700}, token=bob))[0] == 200, "what was sent is let go"
            async with held(bob):
                await until("his is held, too", lambda: kept.in_all == 1_800)
                await check_refused(cid, 429, "too_many_streams")

        async def is_taken() -> bool:
            return (await ask(at, {"model": "chat", "x": "x" * 700}, token=ann))[0] == 200

        await until("who has gone holds nothing", is_taken)


async def test_a_body_that_is_still_looked_through_counts_as_held_though_its_client_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, begun, goes_on = held_bodies.HeldBodies(), threading.Event(), threading.Event()

    def looks(body: bytes, content_type: str) -> str:
        begun.set()
        assert goes_on.wait(DEADLINE_SECONDS)
        return "nobody"

    monkeypatch.setattr("gateway.proxy.openai.HeldBodies", lambda: kept)
    monkeypatch.setattr("gateway.proxy.openai.named_in", looks)
    monkeypatch.setattr("gateway.proxy.openai.AT_ONCE_BYTES_MAX", 10)
    left = asyncio.Event()
    lost = Lane.connection_lost

    def notes(lane: Lane, exc: Exception | None) -> None:
        lost(lane, exc)
        left.set()

    monkeypatch.setattr(Lane, "connection_lost", notes)
    async with stage() as at:
        try:
            async with at.asking(CHAT, "POST", JSON, b'{"model": "chat"}'):
                await until("it is looked through", begun.is_set)
            await asyncio.wait_for(left.wait(), DEADLINE_SECONDS)
            for _ in range(10):  # turns of the loop in which it would be let go of
                await asyncio.sleep(0)
            assert kept.in_all == 17
        finally:
            goes_on.set()
        await until("it is let go of", lambda: kept.in_all == 0)


async def test_replicas_that_fail_or_are_not_there_are_told_in_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(call: Call) -> None:
        await call.body()
        call.keeps = False

    monkeypatch.setattr("gateway.proxy.serving.WAIT_S_MAX", 0.01)
    async with stage() as at, program("r1", breaks) as replica:
        await at.serve("broken", replica)
        status, _, said = await ask(at, {"model": "broken"})
        assert (status, refusal(said)) == (502, ("replica_failed", None))
        await at.serve("asleep")
        status, headers, said = await ask(at, {"model": "asleep"})
        assert (status, refusal(said), headers["retry-after"]) == (503, ("worker_not_ready", None), "1")


async def test_a_request_whose_replica_takes_no_connection_goes_with_its_body_to_another_one() -> None:
    async with stage() as at, program("r1", echoes) as one, program("r2", echoes) as two:
        gone, one.port = one.port, 1
        assert gone
        await at.serve("chat", one, two)
        for number in range(2):
            status, _, said = await ask(at, {"model": "chat", "n": number})
            assert (status, json.loads(said["body"])["n"]) == (200, number)


async def test_models_are_listed_for_who_may_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LISTED_S", 3_600.0)
    async with stage() as at, program("r1", echoes) as replica:
        at.scheduler.models["class"] = sessions_pb2.WatchWorkersResponse()
        ann = at.person("ann")
        for name in ("closed", "closed2", "hidden"):
            await at.serve(name, replica, access=LOGIN)

        async def listed(token: str = "", path: str = "/v1/models") -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            status, _, body = await asked(at, path, headers=headers)
            return status, json.loads(body)

        status, said = await listed()
        assert (status, refusal(said)[0]) == (401, "invalid_api_key")
        status, said = await listed(ann)
        assert (status, said["object"]) == (200, "list")
        assert [each["id"] for each in said["data"]] == ["closed", "closed2", "hidden"], "over all pages, no class"
        assert {(each["object"], each["owned_by"]) for each in said["data"]} == {("model", "bob")}
        assert await listed(ann, "/v1/models/hidden") == (200, said["data"][2])
        for path in ("/v1/models/nobody", "/v1/models/class", "/v1/models/a/b", "/v1/models/..", "/v1/models/"):
            status, said = await listed(ann, path)
            assert (status, refusal(said)) == (404, ("model_not_found", "model")), path
        assert at.scheduler.calls["ListModels"] == 2, "one list of two pages, for all who ask"


async def test_strangers_see_the_open_models_and_a_wrong_token_is_told() -> None:
    async with stage() as at, program("r1", echoes) as replica:
        await at.serve("closed", replica, access=LOGIN)
        await at.serve("open", replica, access=OPEN)
        for headers in ({}, {"Authorization": "Bearer sk-own"}):
            status, _, body = await asked(at, "/v1/models", headers=headers)
            told = {"id": "open", "object": "model", "created": 0, "owned_by": "gpufleet"}
            assert (status, json.loads(body)["data"]) == (200, [told])
        assert (await asked(at, "/v1/models/closed"))[0] == 404
        status, _, body = await asked(at, "/v1/models", headers={"Authorization": f"Bearer {make_token()}"})
        assert (status, refusal(json.loads(body))[0]) == (401, "invalid_api_key")


async def test_what_has_no_body_to_name_a_program_goes_by_its_address() -> None:
    async with stage() as at:
        for method in ("GET", "DELETE", "PUT", "OPTIONS"):
            status, _, body = await asked(at, "/v1/responses/r1", method)
            assert (status, refusal(json.loads(body))[0]) == (404, "unknown_url"), method
            assert "/m/MODEL/v1/" in body.decode()
        handshake = [
            "GET /v1/realtime?model=chat HTTP/1.1",
            f"Host: {at.address}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ]
        sent = "\r\n".join([*handshake, "", ""]).encode()
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(sent) as (reader, _):
            assert b" 404 " in await reader.readline()
