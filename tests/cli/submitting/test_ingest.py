"""`ingest`: who takes a file is asked before anything is uploaded; a command's job has its id printed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from gpufleet.v1 import ingest_pb2, job_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.security.tokens import make_token
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, Fault
from tests.client.servers import MODEL, HttpRequest, doubled, read_request, says, send, serving
from tests.ports import kept_port

DIGEST = hashlib.sha256(b"hello").hexdigest()


@pytest.fixture(autouse=True)
def _file() -> None:
    Path("talk.mp3").write_bytes(b"hello")


def test_a_file_is_uploaded_and_the_jobs_id_printed_once_though_an_answer_is_lost(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.faults["Ingest"].append(Fault.LOST_ANSWER)
    done = gpuctl("ingest", "talk.mp3", "--gpu", "--content-type", "audio/mpeg", "--request-id", "r1")
    assert (done.code, done.text, done.err) == (0, "7\n", "")
    assert fake.blobs == {DIGEST: b"hello"}
    look, _, asked = fake.asked("Ingest")
    assert look.dry_run and not asked.dry_run and asked.request_id == "r1"
    assert (asked.file.path, asked.file.digest, asked.file.size_bytes) == ("talk.mp3", DIGEST, 5)
    assert asked.gpu and asked.content_type == "audio/mpeg"
    assert json.loads(gpuctl("ingest", "talk.mp3", "-o", "json").text)["job_id"] == "7"


def test_a_dry_run_says_what_would_take_it_and_uploads_nothing(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    done = gpuctl("ingest", "talk.mp3", "--dry-run")
    assert done.code == 0 and "matches 'audio/*'" in done.text
    assert "It would become a job, on a GPU, or else a CPU: transcribe ./talk.mp3" in done.text
    assert not fake.blobs and [each.dry_run for each in fake.asked("Ingest")] == [True]


def for_a_model(fake: FakeScheduler, **of_model: str) -> None:
    fake.ingested = ingest_pb2.IngestResponse(
        content_type="audio/mpeg", pattern="audio/*", gpu_mode=job_pb2.GPU_MODE_PREFERRED
    )
    fake.ingested.model.name = MODEL
    for name, value in of_model.items():
        setattr(fake.ingested.model, name, value)


async def test_a_model_is_asked_about_a_file_as_its_input_and_the_answer_printed(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_a_model(fake, input="x")
    async with serving(says(200, doubled([21])), prefix=f"/m/{MODEL}", datatype="BYTES") as server:
        monkeypatch.setenv("GPUCTL_GATEWAY", f"http://{server.address}")
        done = await asyncio.to_thread(gpuctl, "ingest", "talk.mp3", "--gpu")
    assert (done.code, done.text, done.err) == (0, "42\n", "")
    (asked,) = server.infers
    assert asked.body.endswith(b"\x05\x00\x00\x00hello")
    assert (asked.headers["gpufleet-gpu-mode"], asked.headers["gpufleet-content-type"]) == ("preferred", "audio/mpeg")
    assert not fake.blobs and [each.dry_run for each in fake.asked("Ingest")] == [True]


async def test_a_program_is_posted_the_file_and_its_answer_comes_as_it_is(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_a_model(fake, path="/transcribe?words=1")
    answers = iter(
        [
            (200, b"\x00 la la\n"),
            (500, b"no voice in it"),
            (
                503,
                json.dumps({"error": {"reason": "MODEL_DOWN", "message": "it is down", "next_step": "Wait."}}).encode(),
            ),
        ]
    )
    met: list[HttpRequest] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (request := await read_request(reader)) is not None:
            met.append(request)
            await send(writer, *next(answers))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as gateway:
        host, port = gateway.sockets[0].getsockname()
        monkeypatch.setenv("GPUCTL_GATEWAY", f"http://{host}:{port}")
        monkeypatch.setenv("GPUCTL_TOKEN", token := make_token())
        first, second, third = [await asyncio.to_thread(gpuctl, "ingest", "talk.mp3=song.mp3") for _ in range(3)]
        monkeypatch.setenv("GPUCTL_GATEWAY", f"http://{host}:{kept_port()}")
        nobody = await asyncio.to_thread(gpuctl, "ingest", "talk.mp3")
    assert (first.code, first.out, first.err) == (0, b"\x00 la la\n", "")
    assert second.code == 1 and not second.text and "no voice in it" in second.err and "status 500" in second.err
    assert third.code == 5 and "it is down" in third.err
    assert nobody.code == 5 and "no gateway answers at" in nobody.err
    assert (met[0].method, met[0].path, met[0].body) == ("POST", f"/m/{MODEL}/transcribe?words=1", b"hello")
    assert (met[0].headers["content-type"], met[0].headers["authorization"]) == ("audio/mpeg", f"Bearer {token}")
    assert not fake.blobs


def test_a_dry_run_names_the_model_and_a_file_that_is_not_here_cannot_be_sent(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    for_a_model(fake, input="image")
    dry = gpuctl("ingest", "talk.mp3", "--dry-run")
    assert (
        dry.code == 0 and f"The model {MODEL} would be asked, on a GPU, or else a CPU, as its input image." in dry.text
    )
    refused = gpuctl("ingest", f"sha256:{DIGEST}:5=talk.mp3")
    assert refused.code == 2 and "is not a file of this machine" in refused.err


def test_what_is_refused_names_what_was_typed_and_what_is_taken(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Ingest"].append(
        GpufleetError(Reason.CONTENT_TYPE_UNHANDLED, "nothing takes audio/mpeg; what is taken is text/*, image/*")
    )
    refused = gpuctl("ingest", "talk.mp3")
    assert refused.code == 4 and "what is taken is text/*, image/*" in refused.err and "[handlers]" in refused.err
    fake.faults["Ingest"].append(invalid("content_type", "'x' is not a content type"))
    assert "--content-type" in gpuctl("ingest", "talk.mp3", "--content-type", "x").err
    missing = gpuctl("ingest", "none.mp3")
    assert missing.code == 3 and "there is no file none.mp3" in missing.err
    Path("folder").mkdir()
    for name in "ab":
        (Path("folder") / name).write_text(name)
    assert gpuctl("ingest", "folder").code == 2
    assert not fake.blobs


def test_a_job_that_nobody_answered_for_is_not_made_twice(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.before["Ingest"] = lambda asked: None if asked.dry_run else fake.faults["Ingest"].append(Fault.HANG)
    done = gpuctl("ingest", "talk.mp3", "--connection-timeout", "200ms", "--request-id", "r2")
    assert done.code == 5 and "--request-id r2" in done.err
