"""Jobs in real containers: what they print, how they end, as whom they run and what they see."""

from __future__ import annotations

import http.server
import json
import os
import threading
from typing import Any, ClassVar

import pytest
from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2

from tests.containers.engine import IMAGE, EngineOfTests
from tests.e2e.client import Client, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until
from tests.e2e.typist import Typist

RUNNING, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED
FAILED, CANCELLED = job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED
PATH = {"PATH": "/bin"}


def in_container(image: str = IMAGE, **more: Any) -> dict[str, Any]:
    """What a spec needs to run there."""
    return {"container": job_pb2.ContainerSettings(image=image, **more), "cwd": "", "env": PATH}


def containers_of(engine: EngineOfTests, job: int) -> list[str]:
    return [each["Id"] for each in engine.containers() if each["Labels"].get("gpufleet.job") == str(job)]


async def none_is_left(engine: EngineOfTests, job: int) -> None:
    """Nothing of the job's is known to the engine any more."""
    await until(f"nothing is left of job {job}", lambda: not containers_of(engine, job))


async def has_written(person: Client, job: int, text: bytes) -> None:
    async def has() -> bool:
        return text in await person.stdout(job, follow=False)

    await until(f"job {job} has written {text!r}", has)


async def test_a_job_in_a_container_prints_and_ends_as_a_process_does(person: Client, engine: EngineOfTests) -> None:
    job = await person.run("/bin/sh", "-c", "echo out; echo err >&2; exit 7", **in_container())
    assert job.state == FAILED
    assert job.attempts[-1].exit.code == 7, job
    assert sorted((await person.output(job.id)).values()) == [b"err\n", b"out\n"]
    await none_is_left(engine, job.id)


async def test_it_sees_its_image_and_nothing_else_of_the_node(container_fleet: Fleet, person: Client) -> None:
    script = "pwd; echo $FROM_IMAGE $GPUFLEET_JOB_ID ${CUDA_VISIBLE_DEVICES-none}; id -u; ls -d /root /home; true"
    job = await person.run("/bin/sh", "-c", script, **in_container())
    assert job.state == SUCCEEDED
    said = (await person.stdout(job.id)).decode()
    assert said == f"/work\nyes {job.id} none\n{os.geteuid()}\n"


async def test_it_has_no_capabilities_and_gains_none(person: Client) -> None:
    job = await person.run("/bin/sh", "-c", "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status", **in_container())
    said = (await person.stdout(job.id)).decode().split()
    assert said == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"], job


async def test_a_signal_reaches_its_command_and_what_ends_by_one_is_told_so(
    person: Client, engine: EngineOfTests
) -> None:
    script = "trap 'echo caught' USR1; echo ready; while true; do sleep 0.05; done"
    job = await person.submit("/bin/sh", "-c", script, **in_container())
    await has_written(person, job, b"ready")
    await person.stub.SignalJob(scheduler_pb2.SignalJobRequest(jobs=select(job), signal=10))
    await has_written(person, job, b"caught")
    await person.cancel(job)
    ended = await person.wait(job, CANCELLED)
    assert ended.attempts[-1].exit.signal == 15, ended
    await none_is_left(engine, job)


async def test_what_does_not_heed_sigterm_is_killed_and_all_that_it_wrote_is_there(
    person: Client, engine: EngineOfTests
) -> None:
    script = "trap 'echo heard' TERM; echo ready; while true; do sleep 0.05; done"
    job = await person.submit("/bin/sh", "-c", script, grace=1, **in_container())
    await has_written(person, job, b"ready")
    await person.cancel(job)
    ended = await person.wait(job, CANCELLED)
    assert ended.attempts[-1].exit.signal == 9, ended
    assert b"heard" in await person.stdout(job)
    await none_is_left(engine, job)


@pytest.mark.parametrize(
    ("argv", "code", "reason"),
    [
        (("/bin/nothing-here",), 127, "COMMAND_NOT_FOUND"),
        (("nvidia-smi",), 127, "COMMAND_NOT_FOUND"),
        (("/etc/not-a-program",), 126, "NOT_EXECUTABLE"),
    ],
)
async def test_a_command_that_the_image_lacks_ends_as_a_shell_says(
    person: Client, engine: EngineOfTests, argv: tuple[str, ...], code: int, reason: str
) -> None:
    job = await person.run(*argv, **in_container())
    assert (job.state, job.attempts[-1].exit.code, job.exit_reason) == (FAILED, code, reason), job
    await none_is_left(engine, job.id)


async def test_an_image_that_is_nowhere_ends_the_job_with_its_reason(person: Client) -> None:
    job = await person.run("/bin/true", **in_container("localhost/nothing:1"))
    assert job.state == FAILED
    assert job.exit_reason in ("IMAGE_NOT_FOUND", "IMAGE_PULL_FAILED"), job


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that has nothing; what it says of an image depends on its name."""

    said: ClassVar[dict[str, tuple[int, str]]] = {
        "missing": (404, "MANIFEST_UNKNOWN"),
        "private": (401, "UNAUTHORIZED"),
        "busy": (503, "UNAVAILABLE"),
    }

    def do_GET(self) -> None:
        name = self.path.split("/")[2]
        status, code = self.said.get(name, (200, ""))
        errors = [{"code": code, "message": code.replace("_", " ").lower()}] if code else []
        body = json.dumps({"errors": errors}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("missing", "IMAGE_NOT_FOUND", "there is no image"),
        ("private", "IMAGE_PULL_FAILED", "--image-secret"),
        ("busy", "IMAGE_PULL_FAILED", "cannot be pulled"),
    ],
)
async def test_what_a_registry_says_of_an_image_is_told_by_its_reason(
    person: Client, name: str, reason: str, says: str
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as registry:
        serving = threading.Thread(target=registry.serve_forever)
        serving.start()
        try:
            job = await person.run("/bin/true", **in_container(f"127.0.0.1:{registry.server_port}/{name}:1"))
        finally:
            registry.shutdown()
            serving.join()
    assert (job.state, job.exit_reason) == (FAILED, reason), job
    assert says in job.exit_message, job.exit_message


async def test_mounts_are_those_that_the_site_allows(container_fleet: Fleet, person: Client) -> None:
    folder = container_fleet.folder
    (folder / "data" / "set").write_text("numbers")
    (folder / "scratch" / "out").symlink_to("/etc")
    (folder / "scratch" / "mine.d").mkdir()
    (folder / "scratch").chmod(0o777)

    def mount(source: str, target: str = "/mnt") -> job_pb2.ContainerMount:
        return job_pb2.ContainerMount(source=source, target=target)

    script = "cat /a/set; echo; touch /a/x; echo mine > /b/mine"
    allowed = [mount(f"{folder}/data", "/a"), mount(f"{folder}/scratch", "/b")]
    job = await person.run("/bin/sh", "-c", script, **in_container(mounts=allowed))
    assert await person.stdout(job.id) == b"numbers\n", job
    assert b"Read-only" in (await person.output(job.id))[job.attempts[-1].number, 0, job_pb2.STREAM_STDERR]
    assert (folder / "scratch" / "mine").read_text() == "mine\n"
    # Below what users can write the engine is given the place where the agent holds what it checked.
    below = [mount(f"{folder}/scratch/mine.d", "/b")]
    job = await person.run("/bin/sh", "-c", "echo below > /b/file", **in_container(mounts=below))
    assert (folder / "scratch" / "mine.d" / "file").read_text() == "below\n", job
    for source in ("/etc", f"{folder}/scratch/out", str(folder), f"{folder}/agent-n1"):
        refused = await person.run("/bin/true", **in_container(mounts=[mount(source)]))
        assert refused.exit_reason == "MOUNT_REFUSED", refused
        assert "mounts = [" in refused.exit_message, refused.exit_message


async def test_what_is_typed_to_it_arrives_and_its_input_ends(person: Client) -> None:
    job = await person.submit("/bin/sh", "-c", "cat; echo over", input=job_pb2.INPUT_MODE_PIPE, **in_container())
    await person.wait(job, RUNNING)
    async with Typist(person, job) as typist:
        await typist.type(b"hello\n")
        await typist.end_input()
        await person.wait(job, SUCCEEDED)
    ended = await person.wait(job, SUCCEEDED)
    assert await person.stdout(ended.id) == b"hello\nover\n"


async def test_much_output_comes_whole_and_its_streams_apart(person: Client) -> None:
    script = "seq 1 200000; echo over >&2"
    job = await person.run("/bin/sh", "-c", script, **in_container())
    assert job.state == SUCCEEDED
    said = await person.stdout(job.id)
    assert said == b"".join(b"%d\n" % number for number in range(1, 200_001))


async def test_its_processes_are_counted_as_those_of_any_job(person: Client) -> None:
    script = "i=0; while test $i -lt 300000; do i=$((i+1)); done; echo ready; while true; do sleep 0.05; done"
    job = await person.submit("/bin/sh", "-c", script, **in_container())
    await has_written(person, job, b"ready")

    async def is_counted() -> bool:
        stats = await person.stub.GetJobStats(capacity_pb2.GetJobStatsRequest(job_id=job))
        return any(each.cpu_seconds > 0.05 and 0 < each.memory_mb.max < 64 for each in stats.processes)

    await until("its processor time and memory are told", is_counted)
    await person.cancel(job)
    ended = await person.wait(job, CANCELLED)
    assert ended.attempts[-1].cpu_seconds > 0.05
    assert 0 < ended.attempts[-1].memory_bytes_max < 64_000_000
