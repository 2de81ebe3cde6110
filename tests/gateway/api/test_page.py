"""Each curl line of docs/http-api.md does what the page says, and gpuctl prints the same JSON."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from gateway.api.table import ROWS
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.gateway.asking import ask
from tests.gateway.stage import Stage
from tests.gateway.test_dashboard import token_for
from tests.gateway.test_served import gpuctl

PAGE = Path(__file__).parents[3] / "docs" / "http-api.md"


@dataclass(frozen=True)
class Line:
    """A command of the page, and the status that the comment above it names."""

    text: str
    status: int

    @property
    def is_left(self) -> bool:
        """Whether it goes before the answer is whole."""
        return " -m " in self.text


def lines_of_the_page() -> list[Line]:
    found: list[Line] = []
    statuses: list[int] = []
    for text in PAGE.read_text().splitlines():
        if text.startswith("# "):
            statuses = [int(each) for each in re.findall(r"answers (\d{3})", text)]
        elif text.startswith("curl "):
            found.append(Line(text, statuses[0] if statuses else 200))
            statuses = statuses[1:]
    return found


def test_the_page_shows_each_call() -> None:
    text = "\n".join(line.text for line in lines_of_the_page())
    missing = {row.rpc for row in ROWS}
    for row in ROWS:
        path = re.sub(r"\\{\w+\\}", r"[\\w.]+", re.escape(row.path.removeprefix("/api/v1")))
        if re.search(rf"\$API{path}(\?|\"|$)", text, re.MULTILINE):
            missing.discard(row.rpc)
    assert not missing, "the page has no line for these"


async def curl(stage: Stage, line: Line, text: str) -> str:
    """What it answers."""
    token = stage.fleet.scheduler.token("admin")
    variables = {
        "API": f"http://{stage.gateway}/api/v1",
        "AUTH": f"Authorization: Bearer {token}",
        "JSON": "Content-Type: application/json",
    }
    assert shutil.which("curl"), "this page is about curl: apt install curl"
    words = "curl -f " if line.is_left else r"curl -w '\n%{http_code}' "
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", "exec " + re.sub(r" -m \d+ ", " ", text).replace("curl ", words, 1)),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=clean_environment(stage.folder, variables),
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        if line.is_left:
            return await left(process)
        out, err = await process.communicate()
    body, _, status = out.decode().rpartition("\n")
    assert process.returncode == 0, (text, err.decode())
    assert int(status) == line.status, (text, body)
    return body


async def left(process: asyncio.subprocess.Process) -> str:
    """What a stream without an end says first, until its full picture is complete."""
    assert process.stdout is not None
    told = ""
    try:
        while "SYNCED" not in told and '"is_whole":true' not in told and '"workers"' not in told:
            line = await process.stdout.readline()
            assert line, told
            told += line.decode()
    finally:
        process.terminate()
        await process.communicate()
    return told


async def has_said_hello(stage: Stage, job: str, attempt: int) -> None:
    # A token of its own: what is asked too often, while a node is slow, is not asked in the name of the page.
    token = (await token_for(stage, f"waits-{attempt}", "viewer")).secret

    async def has() -> bool:
        answer = await ask(stage.gateway, f"/api/v1/jobs/{job}/output?attempt={attempt}", token=token)
        return answer.content == b"hello\n"

    await until(f"attempt {attempt} of job {job} has said hello", has)


async def test_every_line_of_the_page_does_what_it_says(stage: Stage) -> None:
    (token,) = [each for each in (await tokens(stage)) if each["user"] == "revoked"]
    assert token["id"]
    answers: dict[str, str] = {}
    job = ""
    for line in lines_of_the_page():
        text = line.text.replace("3f9a01bc", token["id"])
        if job:
            text = re.sub(r"/jobs/1\b", f"/jobs/{job}", text).replace('"job_id": 1}', f'"job_id": {job}}}')
        told = await curl(stage, line, text)
        answers.setdefault(line.text.rpartition(" ")[2].strip('"').removeprefix("$API"), told)
        if "first try" in text:
            first = json.loads(told)["first_job_id"]
            assert job in ("", first), "the same key made a second job"
            job = first
            await has_said_hello(stage, job, 1)
        elif line.status >= 400:
            error = json.loads(told)["error"]
            assert error["reason"] and error["message"] and error["next_step"]
        elif "requeue" in text:
            await has_said_hello(stage, job, 2)
    assert json.loads(answers["/openapi.json"])["openapi"] == "3.1.0"
    assert answers["/jobs/1/output?follow=true"] == "hello\nhello\n", "of both attempts"
    pieces = [json.loads(each) for each in answers["/jobs/1/output/pieces?follow=true"].split("\n") if each]
    assert pieces[-1]["is_end"] and pieces[-1]["job"]["state"] == "JOB_STATE_CANCELLED"
    assert json.loads(answers["/jobs/1"])["job"]["id"] == job
    assert "WATCH_EVENT_SYNCED" in answers["/watch?include_nodes=true"]
    assert answers["/logs/scheduler?tail_lines=5"].count("\n") == 5
    assert json.loads(answers["/tokens/3f9a01bc"])["token"]["is_revoked"]
    assert json.loads(answers["/jobs?stats=JOB_STATE_RUNNING"])["error"]["field"] == "stats"


async def tokens(stage: Stage) -> list[dict[str, Any]]:
    async with stage.fleet.client() as admin:
        request = scheduler_pb2.CreateTokenRequest(user="revoked", role=scheduler_pb2.ROLE_VIEWER)
        await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)
    answer = await ask(stage.gateway, "/api/v1/tokens", token=stage.fleet.scheduler.token("admin"))
    listed: list[dict[str, Any]] = answer.json["tokens"]
    return listed


async def test_gpuctl_prints_the_same_json(stage: Stage) -> None:
    async with stage.fleet.client() as admin:
        job = await admin.submit("sh", "-c", "echo done", name="compared")
        await admin.wait(job, job_pb2.JOB_STATE_SUCCEEDED)
    token = stage.fleet.scheduler.token("admin")
    for words, path, part in (
        (("job", str(job)), f"/jobs/{job}", "job"),
        (("story", str(job)), f"/jobs/{job}/story?page_size=1000", ""),
        (("token", "list"), "/tokens?page_size=1000", ""),
        (("estimate", "model.json"), "", ""),
    ):
        if words[0] == "estimate":
            config = {"model": {"id_or_path": "llama-3-70b"}, "parameters": {"tp": 4}}
            (stage.folder / "model.json").write_text(json.dumps(config))
            said = {"config_json": json.dumps(config)}
            answer = await ask(stage.gateway, "/api/v1/estimate", said, token=token)
        else:
            answer = await ask(stage.gateway, f"/api/v1{path}", token=token)
        printed = await gpuctl(stage, *words, "-o", "json")
        assert printed.code == 0, printed.err
        told = answer.json[part] if part else answer.json
        assert json.loads(printed.out) == told, words
    refused = await gpuctl(stage, "job", "4000000", "-o", "json")
    error = json.loads(refused.err)["error"]
    del error["exit_code"]
    assert (await ask(stage.gateway, "/api/v1/jobs/4000000", token=token)).json["error"] == error
