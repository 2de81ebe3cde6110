"""OpenAI's own client, as it is, against programs of this gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2

from gateway.proxy import upstream
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.proxy.stage import Call, Stage, program, stage

openai = pytest.importorskip("openai", reason="openai's client is not installed: make setup")

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.fixture(autouse=True)
def _connections_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's end waits for them."""
    monkeypatch.setattr(upstream, "KEPT_S_MAX", 0.01)


async def engine(call: Call) -> None:
    """A server of chats, completions, embeddings and responses, which counts as it likes."""
    asked = json.loads(await call.body())
    made: dict[str, Any] = {"id": "1", "created": 1, "model": asked["model"]}
    match call.head.target:
        case "/v1/chat/completions" if asked.get("stream"):
            await call.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for word in ("Hello ", call.head["gpufleet-user"]):
                choice = {"index": 0, "delta": {"content": word}}
                await _event(call, {**made, "object": "chat.completion.chunk", "choices": [choice]})
            if asked.get("stream_options", {}).get("include_usage"):
                await _event(call, {**made, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
            await call.chunk(b"data: [DONE]\n\n")
            await call.chunk(b"")
        case "/v1/chat/completions":
            message = {"role": "assistant", "content": f"Hello {call.head['gpufleet-user']}"}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            await _reply(call, {**made, "object": "chat.completion", "choices": [choice], "usage": USAGE})
        case "/v1/completions":
            choice = {"index": 0, "finish_reason": "stop", "text": asked["prompt"] + "!"}
            await _reply(call, {**made, "object": "text_completion", "choices": [choice], "usage": USAGE})
        case "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            usage = {"prompt_tokens": 3, "total_tokens": 3}
            await _reply(call, {"object": "list", "model": asked["model"], "data": data, "usage": usage})
        case "/v1/responses":
            part = {"type": "output_text", "text": "Hi", "annotations": []}
            output = [{"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]}]
            usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
            await _reply(call, {**made, "object": "response", "output": output, "usage": usage})
        case _:
            await call.reply(b'{"error": {"message": "no such path"}}', "404 Not Found", {"Content-Type": "text/plain"})


async def _reply(call: Call, said: object) -> None:
    await call.reply(json.dumps(said).encode(), headers={"Content-Type": "application/json"})


async def _event(call: Call, said: object) -> None:
    await call.chunk(f"data: {json.dumps(said)}\n\n".encode())


def client_of(at: Stage, key: str) -> Any:
    return openai.AsyncOpenAI(base_url=f"http://{at.address}/v1", api_key=key, timeout=DEADLINE_SECONDS, max_retries=0)


async def test_it_chats_completes_embeds_and_lists_with_a_token_as_its_key() -> None:
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica, access=sessions_pb2.MODEL_ACCESS_LOGIN)
        async with client_of(at, at.person("ann")) as client:
            assert [each.id async for each in await client.models.list()] == ["chat"]
            assert (await client.models.retrieve("chat")).owned_by == "bob"
            messages = [{"role": "user", "content": "Hello"}]
            answer = await client.chat.completions.create(model="chat", messages=messages)
            assert (answer.choices[0].message.content, answer.usage.total_tokens) == ("Hello ann", 5)
            words: list[str] = []
            usage: Any = None
            stream = await client.chat.completions.create(
                model="chat", messages=messages, stream=True, stream_options={"include_usage": True}
            )
            async for chunk in stream:
                words += [each.delta.content for each in chunk.choices]
                usage = chunk.usage or usage
            assert (words, usage.completion_tokens) == (["Hello ", "ann"], 2)
            assert (await client.completions.create(model="chat", prompt="So")).choices[0].text == "So!"
            embedded = await client.embeddings.create(model="chat", input="word", encoding_format="float")
            assert embedded.data[0].embedding == [0.5, 0.25]
            assert (await client.responses.create(model="chat", input="Hello")).output_text == "Hi"


async def test_it_raises_its_own_errors_with_their_codes() -> None:
    async with stage() as at, program("r1", engine) as replica:
        await at.serve("chat", replica, access=sessions_pb2.MODEL_ACCESS_LOGIN)
        async with client_of(at, at.person("ann")) as client:
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.completions.create(model="org/other", prompt="x")
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.NotFoundError) as of_the_program:
                await client.moderations.create(model="chat", input="x")
            assert "no such path" in str(of_the_program.value)
        async with client_of(at, "sk-none") as stranger:
            with pytest.raises(openai.AuthenticationError) as refused:
                await stranger.completions.create(model="chat", prompt="x")
            assert refused.value.code == "invalid_api_key"
