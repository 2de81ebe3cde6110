"""Files that come over HTTP: to a job of their handler's command, to a model, with a job, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import job_pb2

from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.gateway.api.ingest_stage import SETTINGS, ingest, part, send, serve_eyes
from tests.gateway.asking import Answer, ask
from tests.gateway.stage import Stage
from tests.gateway.test_dashboard import refused, token_for


@pytest.fixture(scope="module")
def stage(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "scheduler.toml").write_text(SETTINGS)
    stage = Stage(folder, "--config", str(folder / "scheduler.toml"))

    async def start() -> None:
        await stage.start()
        await stage.fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "16")
        await serve_eyes(stage)

    try:
        with long_lived("the gateway's programs, a node and its replicas"):
            asyncio.run(start())
        yield stage
    finally:
        asyncio.run(stage.end())


async def put(stage: Stage, token: str, data: bytes, **headers: str) -> Answer:
    """Upload a file, as curl -T does."""
    path = f"/api/v1/files/{digest_of(data)}"
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(stage.gateway, path, body=data, token=token, headers=sent, method="PUT")


PATH = {"PATH": "/usr/bin:/bin"}
OF_ANYTHING = '"application/*" = { command = ["cat", "{file}"]'


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def printed(stage: Stage, answer: Answer) -> str:
    """What the job of an answer wrote."""
    assert answer.status == 202, answer.content
    job_id = int(answer.json["job_id"])
    assert answer.headers["location"] == f"/api/v1/jobs/{job_id}"
    async with stage.fleet.client() as admin:
        job = await admin.wait(job_id)
        assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
        return (await admin.stdout(job_id)).decode()


async def test_a_file_becomes_a_job_of_what_takes_its_type(stage: Stage) -> None:
    token = (await token_for(stage, "ann")).secret
    wanted: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({}, "NEVER", "cpu\nla la"),
        ({"gpu": False}, "NEVER", "cpu\nla la"),
        ({"gpu": True}, "PREFERRED", "gpu\nla la"),
    )
    for said, mode, output in wanted:
        answer = await ingest(stage, token, "a song.mp3", b"la la", **said)
        assert (answer.json["content_type"], answer.json["pattern"]) == ("audio/mpeg", "audio/*")
        assert answer.json["gpu_mode"] == f"GPU_MODE_{mode}"
        assert await printed(stage, answer) == output
    # Routing says that texts are for CPUs, whoever would like to have a GPU for them.
    text = await ingest(stage, token, "-rf.bin", b"a text", "text/plain", gpu=True)
    assert text.json["gpu_mode"] == "GPU_MODE_NEVER" and text.json["job"]["spec"]["env"]["WHY"] == "a text"
    assert await printed(stage, text) == "a text"


async def test_a_model_is_asked_and_answers_as_it_does(stage: Stage) -> None:
    token = (await token_for(stage, "ann")).secret
    picture = bytes(range(256)) * 5_000
    asked: tuple[tuple[dict[str, Any], str], ...] = (({"gpu": True}, "eye"), ({}, "eye-cpu"))
    for said, by in asked:
        answer = await ingest(stage, token, "cat.png", picture, **said)
        assert answer.status == 200, answer.content
        seen = answer.json
        assert (seen["by"], seen["path"], seen["type"]) == (by, "/look", "image/png")
        assert (seen["size"], seen["sha256"]) == (len(picture), digest_of(picture))
        assert (seen["user"], seen["token"]) == ("ann", None), "nobody's token goes to a model"
        assert answer.headers["gpufleet-model"] == by
    tensor = (await ingest(stage, token, "cat.png", picture, "image/tensor", gpu=True)).json
    head = json.loads(tensor["head"])["inputs"][0]
    assert tensor["path"] == "/v2/models/eye/infer" and tensor["sha256"] == digest_of(
        len(picture).to_bytes(4, "little") + picture
    )
    assert (head["name"], head["shape"], head["datatype"]) == ("picture", [1], "BYTES")
    assert head["parameters"] == {"binary_data_size": len(picture) + 4}
    # The same by reference: what was uploaded before, named by its digest.
    await put(stage, token, picture)
    file = {"path": "cat.png", "digest": digest_of(picture), "size_bytes": len(picture)}
    named = await ask(stage.gateway, "/api/v1/ingest/file", {"file": file, "gpu": True}, token=token)
    assert (named.json["by"], named.json["sha256"]) == ("eye", digest_of(picture))
    await put(stage, token, b"some words")
    text = {"path": "t.txt", "digest": digest_of(b"some words"), "size_bytes": 10}
    stored = await ask(stage.gateway, "/api/v1/ingest/file", {"file": text}, token=token)
    assert await printed(stage, stored) == "some words"
    gone = {"file": file | {"digest": "0" * 64}, "gpu": True}
    assert refused(await ask(stage.gateway, "/api/v1/ingest/file", gone, token=token)) == (409, "FILE_NOT_UPLOADED")


async def test_gpuctl_asks_the_model_itself_and_prints_what_it_says(stage: Stage, tmp_path: Path) -> None:
    token = (await token_for(stage, "ann")).secret
    (tmp_path / "look.png").write_bytes(b"a picture" * 1_000)
    variables = {
        "GPUCTL_SCHEDULER": stage.fleet.scheduler.address,
        "GPUCTL_TOKEN": token,
        "GPUCTL_GATEWAY": f"http://{stage.gateway}",
    }
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-m", "gpufleet.cli", "ingest", "look.png", "--gpu"],
        env=clean_environment(tmp_path, variables),
        cwd=tmp_path,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["path"], said["type"], said["user"]) == ("/look", "image/png", "ann")
    assert said["sha256"] == digest_of(b"a picture" * 1_000) and said["token"] is None


async def test_what_nothing_takes_is_refused_with_what_is_taken(stage: Stage) -> None:
    token = (await token_for(stage, "ann")).secret
    answer = await ingest(stage, token, "what.is.this", b"?")
    assert refused(answer) == (409, "CONTENT_TYPE_UNHANDLED")
    assert "application/octet-stream" in answer.json["error"]["message"]
    assert "application/x-new, audio/*, audio/needy, image/*" in answer.json["error"]["message"]
    assert refused(await ingest(stage, token, "a", b"?", "x/unserved")) == (404, "MODEL_NOT_FOUND")
    wrong = await ingest(stage, token, "a", b"?", content_type="audio")
    assert (*refused(wrong), wrong.json["error"]["field"]) == (400, "INVALID_ARGUMENT", "content_type")
    settings = stage.folder / "scheduler.toml"
    settings.write_text(settings.read_text().replace('"application/x-new" = { command = ["true"]', OF_ANYTHING))
    stage.fleet.scheduler.signal(signal.SIGHUP)
    await until("the new handler is known", lambda: "handlers" in stage.fleet.scheduler.log_text())
    assert await printed(stage, await ingest(stage, token, "what.is.this", b"a thing")) == "a thing"

    look = await ingest(stage, token, "a song.mp3", b"la", dry_run=True, gpu=True)
    assert look.status == 200 and look.json["job_id"] == "0" and look.json["job"]["spec"]["argv"][-1] == "./a song.mp3"
    viewer = (await token_for(stage, "looks", "viewer")).secret
    assert refused(await ingest(stage, viewer, "a.txt", b"?")) == (403, "PERMISSION_DENIED")
    assert refused(await ingest(stage, "", "a.txt", b"?")) == (401, "TOKEN_MISSING")


async def test_a_job_comes_with_its_files_in_one_request_and_once_by_its_key(stage: Stage) -> None:
    token = (await token_for(stage, "ann")).secret
    spec: dict[str, Any] = {"argv": ["sh", "-c", "cat a.txt data/b.txt; echo $GPUFLEET_GPU_MODE"], "env": PATH}
    files = [part("file", "one ", "a.txt", "text/plain"), part("more", b"two ", "data/b.txt")]
    said = part("spec", json.dumps(spec | {"devices": [{"count": 1}]}))
    for gpu, mode in ((None, ""), ("true", "never"), ("false", "never")):
        fields = [] if gpu is None else [part("gpu", gpu)]
        answers = [await send(stage, "/jobs", token, *files, said, *fields, key=f"of {gpu}") for _ in range(2)]
        first, second = (int(each.json["first_job_id"]) for each in answers)
        assert first == second, "the same key makes no second job"
        async with stage.fleet.client() as admin:
            await admin.wait(first)
            assert (await admin.stdout(first)).decode() == f"one two {mode}\n"
    # Over JSON it is a field of the request, for each spec that says no mode itself.
    both = {"specs": [spec | {"content_type": "audio/mpeg", "cwd": "/"}], "gpu": True, "dry_run": True}
    chosen = await ask(stage.gateway, "/api/v1/jobs", both, token=token)
    assert chosen.json["job"]["gpu_choice"]["mode"] == "GPU_MODE_PREFERRED"
    look = await send(stage, "/jobs", token, part("file", "new", "n"), said, part("dry_run", "true"))
    assert look.json["notes"] == ["1 of its files are not uploaded yet"]
    assert refused(await send(stage, "/jobs", token, *files))[1] == "INVALID_ARGUMENT"


async def test_a_busy_gpu_keeps_no_file_for_a_cpu_waiting_and_who_needs_one_gets_it_after_all(stage: Stage) -> None:
    token = (await token_for(stage, "ann")).secret
    async with stage.fleet.client() as admin:
        assert (await ingest(stage, token, "cat.png", b"a cat", gpu=True)).json["by"] == "eye", (
            "it holds a GPU from now on"
        )
        holder = await admin.submit("sleep", "600", gpus=1, name="holds the other GPU")
        await admin.wait(holder, job_pb2.JOB_STATE_RUNNING)
        waits = await ingest(stage, token, "long.mp3", b"la", gpu=True)
        needy = await ingest(stage, token, "needs.mp3", b"la", "audio/needy", gpu=True)
        assert await printed(stage, await ingest(stage, token, "short.mp3", b"la")) == "cpu\nla", "at once"
        assert await printed(stage, await ingest(stage, token, "later.mp3", b"la", gpu=True)) == "cpu\nla", "fell back"

        async def needs_one() -> bool:
            job = await admin.job(int(needy.json["job_id"]))
            return job.attempt_count == 1 and job.state == job_pb2.JOB_STATE_QUEUED

        await until("the needy job has failed without a GPU, and waits for one", needs_one)
        status = (await ask(stage.gateway, "/api/v1/status/workers", token=token)).json
        (node,) = status["nodes"]
        assert (node["node"], node["gpu_count"], node["gpus_held"], node["state"]) == ("n1", 2, 2, "NODE_STATE_READY")
        assert str(holder) in [each["job_id"] for each in node["jobs"]] and node["last_contact_time"]
        assert status["cpu_queue"]["waiting_count"] == "0"
        line = status["gpu_queue"]["first"]
        assert {each["job_id"] for each in line} == {waits.json["job_id"], needy.json["job_id"]}
        assert status["gpu_queue"]["waiting_count"] == "2" and [each["gpu_count"] for each in line] == [1, 1]
        models = {each["model"]: each for each in status["models"]}
        assert (models["eye"]["gpu_count"], models["eye"]["cpu_model"], models["eye-cpu"]["gpu_count"]) == (
            *(1, "eye-cpu"),
            0,
        )
        assert models["eye-cpu"]["workers"][0]["last_contact_time"]

        await admin.cancel(holder)
        assert await printed(stage, waits) == "gpu\nla"
        assert await printed(stage, needy) == "on a GPU\n"
