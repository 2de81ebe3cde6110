"""What a job in a container has around it: a terminal, the folder of its files, a bound on its memory."""

from __future__ import annotations

import pytest
from gpufleet.v1 import job_pb2

from tests.containers.engine import EngineOfTests
from tests.e2e import files
from tests.e2e.client import Client
from tests.e2e.containers.test_running import FAILED, RUNNING, SUCCEEDED, in_container, none_is_left
from tests.e2e.typist import Typist

pytestmark = pytest.mark.nightly

MEMORY_BYTES = 64_000_000


async def test_a_terminal_is_one_in_it_also_and_what_is_typed_comes_by_keys(person: Client) -> None:
    script = "test -t 0 && test -t 1 && echo terminal; echo ready; read line; echo got $line; stty size"
    job = await person.submit("/bin/sh", "-c", script, input=job_pb2.INPUT_MODE_TERMINAL, **in_container())
    await person.wait(job, RUNNING)
    async with Typist(person, job) as typist:
        await typist.until("it is ready", lambda: b"ready" in typist.shown)
        await typist.type(b"words\n")
        await person.wait(job, SUCCEEDED)
    said = await person.stdout(job)
    assert said.startswith(b"terminal\r\nready\r\n")
    assert b"got words\r\n" in said


async def test_its_files_are_its_working_directory_and_its_account_may_write_there(person: Client) -> None:
    await files.upload(person, b"numbers\n")
    script = 'pwd; echo "$GPUFLEET_FILES"; cat in/set; echo mine > out && cat out; touch /etc/x 2> /dev/null; id -u'
    job = await person.run("/bin/sh", "-c", script, files=[files.file("in/set", b"numbers\n")], **in_container())
    assert job.state == SUCCEEDED, job
    said = (await person.stdout(job.id)).decode().splitlines()
    assert said[:4] == ["/run/gpufleet/files", "/run/gpufleet/files", "numbers", "mine"]


async def test_more_memory_than_it_reserved_ends_it_and_it_says_so(person: Client, engine: EngineOfTests) -> None:
    if not engine.ask("GET", "/v1.41/info").get("MemoryLimit"):
        pytest.skip("the engine has no memory control group here")
    job = await person.run("/bin/tail", "/dev/zero", memory_bytes=MEMORY_BYTES, **in_container())
    assert (job.state, job.exit_reason) == (FAILED, "OUT_OF_MEMORY"), job
    assert "limit 64MB" in job.exit_message
    assert any("OUT_OF_MEMORY" in sentence for sentence in await person.story(job.id))
    await none_is_left(engine, job.id)
