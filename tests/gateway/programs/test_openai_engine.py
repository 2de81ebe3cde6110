"""OpenAI's client, this gateway, scheduler and agent, and llama.cpp: all as they are, with a model of chance."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import scheduler_pb2, sessions_pb2

from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.programs import tiny_llama
from tests.gateway.stage import Stage

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

openai = pytest.importorskip("openai", reason="openai's client is not installed: make setup")
PAGE = Path(__file__).parents[3] / "docs" / "serve-a-program.md"
pytest.importorskip("xllamacpp", reason="the llama engine is not installed: make setup")

MESSAGES = [{"role": "user", "content": "Hello"}]
TOKENS = 8
PROGRAM = Path(tiny_llama.__file__)


def blocks_of_the_page() -> tuple[str, str]:
    """What the page's section says to type once a program is served: in a shell, and in Python."""
    section = PAGE.read_text().partition("## OpenAI's API\n")[2].partition("\n## ")[0]
    shell, python = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[-1] for kind in ("sh", "python"))
    return shell, python


async def typed(stage: Stage, token: str, *command: str, text: str = "") -> str:
    """What a command prints that a person types who has this token; `text` is its input."""
    said = {"TOKEN": token, "GPUCTL_TOKEN": token, "GPUCTL_SCHEDULER": stage.fleet.scheduler.address}
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        input=text.replace("localhost:7860", stage.gateway),
        env={**os.environ, **said, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=2 * DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def serve(admin: Client, name: str) -> None:
    """Serve the model, from no replica on."""
    shutil.copy(PROGRAM, admin.cwd)
    tiny_llama.write(str(admin.cwd / "tiny.gguf"))
    argv = [sys.executable, PROGRAM.name, "serve", "tiny.gguf", name, "$PORT"]
    model = sessions_pb2.Model(
        name=name,
        worker=admin.spec(sys.executable, "-P", "-m", "gpufleet.inference"),
        http=sessions_pb2.HttpService(argv=argv, ready_path="/health"),
        max_workers=1,
    )
    await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))


async def test_a_client_of_openais_chats_with_llama_cpp_and_its_tokens_are_counted(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    with long_lived("a node with its replicas"):
        await stage.fleet.add_node("n1")
    async with stage.fleet.client() as admin:
        made = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="ann", role=scheduler_pb2.ROLE_USER))
        await serve(admin, "chat")
        client: Any = openai.AsyncOpenAI(
            base_url=f"http://{stage.gateway}/v1", api_key=made.secret, timeout=DEADLINE_SECONDS, max_retries=10
        )
        async with client:
            assert [each.id async for each in await client.models.list()] == ["chat"]
            asked: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}
            asked["extra_body"] = {"cache_prompt": False}  # each time the same arithmetic
            first = await client.chat.completions.create(**asked)
            assert (first.model, first.usage.completion_tokens) == ("chat", TOKENS)
            again = await client.chat.completions.create(**asked)
            assert again.choices[0].message.content == first.choices[0].message.content

            chunks = [
                each
                async for each in await client.chat.completions.create(
                    **asked, stream=True, stream_options={"include_usage": True}
                )
            ]
            said = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
            assert said == first.choices[0].message.content and len(chunks) > 2
            assert chunks[-1].usage.total_tokens == again.usage.total_tokens
            async for _ in await client.chat.completions.create(**asked, stream=True):
                pass
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(**{**asked, "model": "other"})

        request = sessions_pb2.ListRequestUsageRequest(user="ann", model="chat")

        async def is_counted() -> bool:
            rows = (await admin.stub.ListRequestUsage(request)).rows
            return [row.request_count - row.failed_count for row in rows] == [4]

        await until("all four are counted", is_counted)
        gpuctl = (sys.executable, "-P", "-m", "gpufleet.cli")
        shown = await typed(stage, made.secret, *gpuctl, "usage", "--requests", "-o", "json")
        (row,) = json.loads(shown)["rows"]
        told = [row[name] for name in ("user", "model", "unknown_count", "prompt_tokens", "completion_tokens")]
        prompt = first.usage.prompt_tokens
        # The stream that was not asked for its tokens said none.
        assert told == ["ann", "chat", "1", str(3 * prompt), str(3 * TOKENS)]

        # What the page says to type does what it says.
        shell, python = blocks_of_the_page()
        printed = await typed(stage, made.secret, "bash", "-e", text=shell)
        models, end = json.JSONDecoder().raw_decode(printed)
        assert [each["id"] for each in models["data"]] == ["chat"]
        assert json.loads(printed[end:])["usage"]["total_tokens"] > prompt
        printed = await typed(stage, made.secret, sys.executable, "-", text=python)
        assert int(printed.split()[-1]) > prompt
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="chat"))
