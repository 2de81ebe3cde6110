"""The programs themselves: refused agents, taken ports, reloads, their logs, and how they leave."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2, node_agent_pb2_grpc, node_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, dial, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import AgentProcess, SchedulerProcess, until

pytestmark = pytest.mark.by_exec


async def program_log(client: Client, program: str, node: str = "", tail_lines: int = 1000) -> str:
    request = scheduler_pb2.StreamOutputRequest(
        program=scheduler_pb2.ProgramSelector(program=program, node=node), tail_lines=tail_lines
    )
    return b"".join([message.data async for message in client.stub.StreamOutput(request)]).decode()


async def test_a_second_agent_under_a_name_is_refused_while_the_first_is_heard(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1")
    second = AgentProcess(fleet.scheduler, fleet.folder / "second", "n1", ["--virtual-gpus", "1"])
    fleet.agents["second"] = second
    second.spawn()
    await until("the second agent is refused", lambda: "NODE_ID_TAKEN" in second.log_text())
    assert "--node-id" in second.log_text()
    second.must_run()
    assert (await admin.run("true", gpus=2)).attempts[-1].ranks[0].node == "n1"


async def test_the_name_is_free_again_once_the_first_agent_has_left(fleet: Fleet, admin: Client) -> None:
    first = await fleet.add_node("n1")
    await first.stop()

    async def is_gone() -> bool:
        return not (await admin.node("n1")).is_connected

    await until("the node is not connected", is_gone)
    second = AgentProcess(fleet.scheduler, fleet.folder / "second", "n1", ["--virtual-gpus", "1"])
    fleet.agents["second"] = second
    second.spawn()

    async def is_taken_over() -> bool:
        node = await admin.node("n1")
        return node.is_connected and len(node.devices) == 1

    await until("the second agent has the name", is_taken_over)
    assert (await admin.run("true", gpus=1)).exit.code == 0


async def test_an_agent_of_another_version_is_refused_with_both_versions(fleet: Fleet) -> None:
    async with dial(fleet.scheduler.address, fleet.scheduler.token("agent")) as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        request = node_agent_pb2.RegisterRequest(
            node="n9",
            agent_id="a",
            incarnation=1,
            boot_id="b",
            protocol_version=99,
            info=node_pb2.NodeInfo(cpus=1, agent_version="9.9.9"),
        )
        error = await refusal(stub.Register(request))
        del stub
    assert error.reason is Reason.AGENT_VERSION_UNSUPPORTED
    assert "99" in error.message and "9.9.9" in error.message


async def test_an_agent_with_a_wrong_token_says_so_and_goes_on_trying(fleet: Fleet) -> None:
    agent = AgentProcess(fleet.scheduler, fleet.folder / "wrong", "n1", ["--virtual-gpus", "1"])
    gateway = fleet.scheduler.data / "gateway.token"
    agent.flags[agent.flags.index("--token-file") + 1] = str(gateway)
    fleet.agents["n1"] = agent
    agent.spawn()
    await until("it is refused", lambda: "PERMISSION_DENIED" in agent.log_text())
    agent.must_run()


async def test_a_taken_port_names_its_holder_and_the_flag(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        other = SchedulerProcess(fleet.folder / "other")
        other.spawn("--port", str(port))
        assert await other.ended() == 1
    said = other.log_text()
    assert f"port {port} is taken by" in said and "--port" in said
    assert Path(sys.executable).name in said or "pytest" in said
    assert "Traceback" not in said


async def test_a_second_scheduler_on_the_same_data_is_refused(fleet: Fleet) -> None:
    other = SchedulerProcess(fleet.scheduler.data)
    other.log = fleet.folder / "other.log"
    other.spawn("--port", "0")
    assert await other.ended() == 1
    assert f"pid {fleet.scheduler.pid}" in other.log_text()
    assert "Traceback" not in other.log_text()
    fleet.scheduler.must_run()


async def test_wrong_settings_are_refused_by_name(fleet: Fleet) -> None:
    for flags, named in (
        (("--port", "70000"), "--port"),
        (("--port", "0", "--host", "0.0.0.0"), "host"),
        (("--port", "0", "--store", "mysql://somewhere"), "store"),
    ):
        other = SchedulerProcess(fleet.folder / "other")
        other.spawn(*flags)
        assert await other.ended() == 1
        assert named in other.log_text(), other.log_text()
        assert "Traceback" not in other.log_text(), other.log_text()
        other.log.unlink()


async def test_a_data_folder_that_cannot_be_used_is_refused_by_name(fleet: Fleet) -> None:
    (fleet.folder / "file").touch()
    for data in (fleet.folder / "file", fleet.folder / "file" / "below", Path("/proc/nowhere")):
        scheduler = SchedulerProcess(data)
        scheduler.log = fleet.folder / "scheduler-elsewhere.log"
        agent = AgentProcess(fleet.scheduler, data, "n1", [])
        agent.log = fleet.folder / "agent-elsewhere.log"
        for program in (scheduler, agent):
            program.spawn()
            assert await program.ended() == 1
            said = program.log_text()
            assert f"the data folder {data} cannot be used" in said and "--data" in said, said
            assert "Traceback" not in said
            program.log.unlink()


async def test_an_output_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "output").write_text("in the way")
    scheduler = SchedulerProcess(tmp_path / "data")
    scheduler.log = tmp_path / "scheduler.log"
    scheduler.spawn()
    assert await scheduler.ended() == 1
    said = scheduler.log_text()
    assert f"the stored output cannot be used: {tmp_path}/data/output: Not a directory" in said, said
    assert "a folder that this account can write" in said and "--data DIR" in said and "Traceback" not in said


async def test_sighup_reloads_what_can_be_reloaded_and_names_what_waits(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("[limits]\nqueue_jobs_max = 5\n")
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as admin:
        request = scheduler_pb2.SubmitRequest(specs=[admin.spec("true")], count=6)
        error = await refusal(admin.stub.Submit(request))
        assert error.reason is Reason.QUEUE_FULL
        settings.write_text("port = 1\n[limits]\nqueue_jobs_max = 6\n[log]\nlevel = 'debug'\n")
        fleet.scheduler.signal(signal.SIGHUP)
        await until("it was reloaded", lambda: "queue_jobs_max" in fleet.scheduler.log_text())
        assert (await admin.stub.Submit(request)).count == 6
        info = await admin.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        assert info.log_level == "debug"
        settings.write_text("[limits]\nqueue_jobs_max = 'many'\n")
        fleet.scheduler.signal(signal.SIGHUP)
        await until("the wrong file is told", lambda: "the settings were not reloaded" in fleet.scheduler.log_text())
        fleet.scheduler.must_run()
        shown = {each.name: each for each in info.settings}
        assert shown["limits.queue_jobs_max"].value == "6"
        assert "scheduler.toml" in shown["limits.queue_jobs_max"].origin


async def test_how_devices_are_chosen_and_how_much_output_is_kept_reload(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("[output]\nattempt_bytes_max = '3MB'\nhead_bytes_max = '1MB'\n")
    write = ("head", "-c", "2500000", "/dev/zero")
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--virtual-gpus", "2")
        await fleet.add_node("n2", "--virtual-gpus", "4")
        whole = await admin.run(*write)
        assert await admin.stdout(whole.id) == bytes(2_500_000)
        settings.write_text(
            "[output]\nattempt_bytes_max = '1MB'\nhead_bytes_max = '500kB'\n[placement]\nnode_order = 'idle'\n"
        )
        fleet.scheduler.signal(signal.SIGHUP)
        await until("it was reloaded", lambda: "node_order" in fleet.scheduler.log_text())
        cut = await admin.run(*write)
        gaps = [each.gap for each in await admin.messages(cut.id) if each.HasField("gap")]
        assert [gap.from_offset for gap in gaps] == [500_000]
        sleepers = [await admin.submit("sleep", "600", gpus=1) for _ in range(3)]
        jobs = [await admin.wait(each, job_pb2.JOB_STATE_RUNNING) for each in sleepers]
        assert [job.attempts[-1].ranks[0].node for job in jobs] == ["n1", "n2", "n2"], "tightly, n1 would be filled"
        await admin.cancel(*sleepers)
        for each in sleepers:
            await admin.wait(each)


async def test_a_message_beyond_the_limit_that_is_set_is_refused(tmp_path: Path) -> None:
    environment = {"GPUCTL_SCHEDULER_LIMITS_MESSAGE_BYTES_MAX": "4MB"}
    async with Fleet(tmp_path / "fleet", environment=environment) as fleet, fleet.client() as admin:
        longer = [admin.spec("true", env={f"V{number}": "x" * 100_000}) for number in range(41)]
        error = await refusal(admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=longer)))
        assert error.reason is Reason.MESSAGE_TOO_LARGE
        assert (await admin.submit_specs(longer[:30])).count == 30
        # What is sent has a bound of its own, which every client takes: the answer may be longer than a request.
        assert len((await admin.queue(page_size=30)).jobs) == 30


async def test_a_node_that_joins_is_logged_with_its_address_and_every_gpu(person: Client) -> None:
    (joined,) = [line for line in (await program_log(person, "scheduler")).splitlines() if "node registered" in line]
    gpus = ", ".join(f"{index}: gpufleet virtual GPU (16,000 MB)" for index in range(2))
    assert f'node=n1 address=127.0.0.1 gpus="{gpus}"' in joined
    own = await program_log(person, "agent", "n1")
    assert "connected to 127.0.0.1:" in own and "GPU 1: gpufleet virtual GPU, 16,000 MB" in own


async def test_the_logs_of_scheduler_and_agent_can_be_read_and_followed(person: Client) -> None:
    assert "serving" in await program_log(person, "scheduler")
    assert "registered with the scheduler" in await program_log(person, "agent", "n1")
    assert (await program_log(person, "agent", "n1", tail_lines=1)).count("\n") == 1
    for program, node in (("scheduler", ""), ("agent", "n1")):
        await follow_log(person, scheduler_pb2.ProgramSelector(program=program, node=node))


async def test_the_logs_of_scheduler_and_agent_can_be_read_from_a_time_on(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1")
    for program, node in (("scheduler", ""), ("agent", "n1")):
        selector = scheduler_pb2.ProgramSelector(program=program, node=node)
        request = scheduler_pb2.StreamOutputRequest(program=selector, tail_lines=1)
        (newest,) = [message.data async for message in admin.stub.StreamOutput(request) if message.data]
        time = newest.split(b" ")[0].decode()
        request = scheduler_pb2.StreamOutputRequest(program=selector)
        request.since_time.FromJsonString(time)
        found = b"".join([message.data async for message in admin.stub.StreamOutput(request)]).splitlines(keepends=True)
        assert newest in found and all(line >= time.encode() for line in found)
        request.since_time.FromMilliseconds(request.since_time.ToMilliseconds() - 600_000)
        everything = b"".join([message.data async for message in admin.stub.StreamOutput(request)])
        assert everything.count(b"\n") > len(found)
        request.since_time.GetCurrentTime()
        request.since_time.FromMilliseconds(request.since_time.ToMilliseconds() + 30_000)
        assert [message.data async for message in admin.stub.StreamOutput(request) if message.data] == []


async def follow_log(client: Client, selector: scheduler_pb2.ProgramSelector) -> None:
    """Follow the log from its end while its level is changed, until a new line comes."""
    request = scheduler_pb2.StreamOutputRequest(program=selector, tail_lines=0, follow=True)
    call: Any = client.stub.StreamOutput(request)
    line = asyncio.ensure_future(call.read())

    async def has_come() -> bool:
        for level in ("debug", "info"):
            change = scheduler_pb2.UpdateServerRequest(program=selector, log_level=level)
            await client.stub.UpdateServer(change)
        return bool(line.done())

    await until(f"a new line of the log of {selector.program} has come", has_come)
    assert b"log level" in line.result().data
    call.cancel()


async def test_the_log_of_an_agent_that_is_away_is_refused(fleet: Fleet, admin: Client) -> None:
    await (await fleet.add_node("n1")).stop()

    async def is_gone() -> bool:
        return not (await admin.node("n1")).is_connected

    await until("the node is not connected", is_gone)
    selector = scheduler_pb2.ProgramSelector(program="agent", node="n1")
    error = await refusal(admin.stub.StreamOutput(scheduler_pb2.StreamOutputRequest(program=selector)))
    assert error.reason is Reason.NODE_UNREACHABLE
    level = scheduler_pb2.UpdateServerRequest(program=selector, log_level="debug")
    assert (await refusal(admin.stub.UpdateServer(level))).reason is Reason.NODE_UNREACHABLE


async def test_both_programs_leave_cleanly_when_they_are_told_to(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    assert await agent.stop() == 0
    assert await fleet.scheduler.stop() == 0
    for program in (agent, fleet.scheduler):
        assert "Traceback" not in program.log_text(), program.log_text()
    assert not (fleet.scheduler.data / "listening").exists()


async def test_a_job_goes_on_while_the_scheduler_is_away_and_is_found_again(fleet: Fleet) -> None:
    await fleet.add_node("n1")
    script = 'echo begun; until test -e "go on"; do sleep 0.01; done; echo done'
    async with fleet.client() as client:
        job_id = await client.submit("sh", "-c", script)
        await client.wait(job_id, job_pb2.JOB_STATE_RUNNING)
    assert await fleet.scheduler.stop() == 0
    (fleet.work / "go on").touch()
    await fleet.scheduler.start()
    async with fleet.client() as client:
        job = await client.wait(job_id)
        assert (job.exit.code, job.attempt_count) == (0, 1)
        assert await client.stdout(job_id) == b"begun\ndone\n"


async def test_followers_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    environment = {"GPUCTL_SCHEDULER_LIMITS_STREAMS_MAX": "2"}
    async with Fleet(tmp_path / "fleet", environment=environment) as fleet, fleet.client() as admin:
        calls = [admin.stub.Watch(scheduler_pb2.WatchRequest()) for _ in range(2)]
        for call in calls:
            await call.read()
        error = await refusal(admin.stub.Watch(scheduler_pb2.WatchRequest()))
        assert error.reason is Reason.TOO_MANY_STREAMS
        for call in calls:
            call.cancel()

        async def is_free() -> bool:
            call = admin.stub.Watch(scheduler_pb2.WatchRequest())
            answered = await call.read()
            call.cancel()
            return bool(answered)

        await until("a place is free again", is_free)
