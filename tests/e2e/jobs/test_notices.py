"""Users are told of the course of their jobs by the node that runs them: commands, URLs, and killed agents."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client, select
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

WRITE = 'echo "$GPUFLEET_JOB_ID/$GPUFLEET_ATTEMPT $GPUFLEET_NOTICE $GPUFLEET_EXIT_CODE$GPUFLEET_REQUEUED" >> notices'
RUNNING, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED


def notices(folder: Path, job_id: int | None = None) -> list[str]:
    """What was told of a job, or of all whose notices are written there; tests share the folder."""
    file = folder / "notices"
    lines = [line.rstrip() for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if job_id is None or line.startswith(f"{job_id}/")]


async def test_a_command_is_told_of_start_and_end_in_the_jobs_folder(person: Client) -> None:
    job = await person.run("sh", "-c", "exit 3", notify=WRITE)
    await until("the end was told", lambda: len(notices(person.cwd, job.id)) == 2)
    assert notices(person.cwd, job.id) == [f"{job.id}/1 start", f"{job.id}/1 end 3"]


async def test_a_command_runs_in_the_folder_of_the_jobs_files_which_stays_until_its_end_is_told(
    person: Client, shared_fleet: Fleet
) -> None:
    words, told, go = b"as uploaded", person.cwd / "told", person.cwd / "go"
    await upload(person, words)
    end = f'[ "$GPUFLEET_NOTICE" = start ] || until [ -e {go} ]; do sleep 0.05; done'
    notify = f'{end}; echo "$GPUFLEET_NOTICE $(cat words $(ls left))" >> {told}'
    made = {"cwd": "", "files": [file("words", words)], "notify": notify}
    job = await person.run("sh", "-c", f"until [ -s {told} ]; do sleep 0.05; done; echo , made > left", **made)
    assert job.state == SUCCEEDED
    (folder,) = (shared_fleet.folder / "agent-n1" / "files" / "attempts").glob(f"{job.id}.1.0*")
    go.touch()
    await until("the end was told", lambda: len(told.read_text().splitlines()) == 2)
    assert told.read_text().splitlines() == ["start as uploaded", "end as uploaded, made"]
    await until("the folder is gone", lambda: not folder.exists())


async def test_a_url_is_told_in_json(person: Client) -> None:
    bodies: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        job = await person.run("no-such-command-anywhere", notify=f"http://127.0.0.1:{port}/hook")
        ok = await person.run("true", notify=f"http://127.0.0.1:{port}/hook")
        await until("both ends were told", lambda: len(bodies) == 3)
    by_job = {number: [body for body in bodies if body["job_id"] == number] for number in (job.id, ok.id)}
    [end] = by_job[job.id]
    assert (end["notice"], end["attempt"], end["exit_code"], end["reason"]) == ("end", 1, 127, "COMMAND_NOT_FOUND")
    assert [body["notice"] for body in by_job[ok.id]] == ["start", "end"]
    assert by_job[ok.id][1]["exit_code"] == 0


async def test_a_time_limit_is_told_before_it_ends_the_job(person: Client) -> None:
    # An agent that is held up over both moments tells the later one alone: they are three seconds apart.
    job_id = await person.submit("sleep", "1000", notify=WRITE, seconds=30)
    await person.wait(job_id, job_pb2.JOB_STATE_TIMED_OUT)
    await until("the end was told", lambda: len(notices(person.cwd, job_id)) >= 4)
    assert notices(person.cwd, job_id) == [f"{job_id}/1 {what}" for what in ("start", "time_80", "time_90", "end")]


async def test_each_attempt_is_told_of_and_a_requeued_one_says_so(person: Client) -> None:
    job_id = await person.submit("sh", "-c", '[ "$GPUFLEET_ATTEMPT" = 2 ] || exec sleep 1000', notify=WRITE)
    await person.wait(job_id, RUNNING)
    await person.stub.RequeueJob(scheduler_pb2.RequeueJobRequest(jobs=select(job_id)))
    await person.wait(job_id, SUCCEEDED)
    await until("all was told", lambda: len(notices(person.cwd, job_id)) == 4)
    told = notices(person.cwd, job_id)
    assert [line for line in told if "/1 " in line] == [f"{job_id}/1 start", f"{job_id}/1 end 1"]
    assert [line for line in told if "/2 " in line] == [f"{job_id}/2 start", f"{job_id}/2 end 0"]


async def test_a_notice_that_fails_harms_no_job_and_is_in_the_agents_log(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node()
    job = await admin.run("true", notify="echo oh no; exit 5")
    assert job.state == SUCCEEDED
    await until("the failure is logged", lambda: "'end'" in agent.log_text())
    assert "ended with code 5: 'oh no'" in agent.log_text()
    refused = await admin.run("true", notify="http://127.0.0.1:1/secret")
    assert refused.state == SUCCEEDED
    assert "secret" not in agent.log_text()


async def test_a_notice_that_fails_shows_on_the_job_to_its_owner_and_admins_alone(
    person: Client, shared_fleet: Fleet
) -> None:
    job = await person.run("true", notify="echo oh no; exit 5")
    failed = "was not delivered: it did not reach the command: it ended with code 5: 'oh no'."

    async def both_are_shown() -> bool:
        return len((await person.job(job.id)).warnings) == 2

    await until("both failures are shown", both_are_shown)
    shown = (await person.job(job.id)).warnings
    told = [(each.kind, each.sentence) for each in shown]
    assert told == [("NOTICE_FAILED", f"The notice '{notice}' {failed}") for notice in ("start", "end")]
    assert (await person.kinds(job.id)).count("NoticeNotDelivered") == 2
    made = await person.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="bob", role=scheduler_pb2.ROLE_USER))
    async with shared_fleet.client(made.secret) as bob:
        assert not (await bob.job(job.id)).warnings
        assert "NoticeNotDelivered" not in await bob.kinds(job.id)


async def test_an_agent_killed_between_two_notices_tells_the_rest_and_nothing_twice(
    fleet: Fleet, admin: Client
) -> None:
    agent = await fleet.add_node()
    command = "until [ -e go ]; do sleep 0.05; done"
    job_id = await admin.submit("sh", "-c", command, notify=WRITE)
    await admin.wait(job_id, RUNNING)
    await until("the start is told", lambda: "told 'start'" in agent.log_text())
    agent.kill()
    (admin.cwd / "go").touch()
    agent.spawn()
    await admin.wait(job_id, SUCCEEDED)
    await until("the end is told", lambda: len(notices(admin.cwd)) >= 2)
    assert notices(admin.cwd) == [f"{job_id}/1 start", f"{job_id}/1 end 0"]


async def test_an_agent_killed_in_the_middle_of_a_notice_tells_it_again(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node()
    wait = 'echo "$GPUFLEET_NOTICE" >> notices; until [ -e go ]; do sleep 0.05; done'
    job = await admin.run("true", notify=f'[ "$GPUFLEET_NOTICE" = start ] || {{ {wait}; }}')
    assert job.state == SUCCEEDED, "the end is stored while its notice is still being told"
    await until("the end is being told", lambda: len(notices(admin.cwd)) == 1)
    agent.kill()
    agent.spawn()
    await until("the end is told again", lambda: len(notices(admin.cwd)) == 2)
    (admin.cwd / "go").touch()
    folder = fleet.folder / "agent-n1" / "notices"
    await until("nothing is left to tell", lambda: not list(folder.iterdir()))
    assert notices(admin.cwd) == ["end", "end"]
