"""The agent as a real process with a real keeper, against a scheduler made for tests."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import sys
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import node_agent_pb2 as pb

from tests.node_agent.agent_process import AgentProcess
from tests.node_agent.fake_scheduler import FakeScheduler, bodies, proto_key

PRINT = [sys.executable, "-c", "print('hello'); import sys; print('trouble', file=sys.stderr); sys.exit(3)"]

PATH = {"PATH": os.environ["PATH"]}


async def test_a_command_runs_and_its_output_and_exit_code_arrive(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    key = scheduler.launch(1, PRINT)
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.stdout(key) == b"hello\n"
    assert scheduler.stderr(key) == b"trouble\n"
    assert scheduler.exited[key].exit.code == 3
    assert scheduler.exited[key].output_is_complete
    assert scheduler.started[key].pid > 0


async def test_the_environment_holds_what_the_rules_say_and_nothing_of_the_agents_own(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    key = scheduler.launch(
        7,
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm", "MINE": "a=b\nc"},
        device_uuids=["VIRTUAL-n1-1"],
        cpus=1,
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    environment = json.loads(scheduler.stdout(key))
    account = pwd.getpwuid(os.geteuid())
    assert environment.pop("GPUFLEET_ATTEMPT_KEY")
    assert int(environment.pop("MASTER_PORT")) > 0
    assert environment.pop("TRACEPARENT").startswith("00-0af7651916cd43dd8448eb211c80319c-")
    environment.pop("LC_CTYPE", None)  # Python's own, where the locale is missing
    assert environment == {
        "PATH": "/usr/bin:/bin",
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "MINE": "a=b\nc",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "PYTHONUNBUFFERED": "1",
        "GPUFLEET_JOB_ID": "7",
        "GPUFLEET_ATTEMPT": "1",
        "GPUFLEET_NODE_RANK": "0",
        "GPUFLEET_NNODES": "1",
        "GPUFLEET_GPUS_PER_NODE": "1",
        "GPUFLEET_CPUS_PER_NODE": "1",
        "NODE_RANK": "0",
        "NNODES": "1",
        "MASTER_ADDR": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUFLEET_VIRTUAL_GPUS": "VIRTUAL-n1-1",
    }


async def test_a_command_that_is_not_found_ends_with_127_and_says_so(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    key = scheduler.launch(1, ["no-such-command"], env={"PATH": "/usr/bin"})
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.exited[key].exit.code == 127
    assert scheduler.exited[key].reason == "COMMAND_NOT_FOUND"
    assert "no-such-command" in scheduler.exited[key].message


async def test_a_missing_working_directory_refuses_the_launch(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    key = scheduler.launch(1, ["true"], cwd="/no/such/folder")
    await scheduler.wait_for(lambda: key in scheduler.refused, "a refusal")
    assert scheduler.refused[key].reason == "CWD_MISSING"
    assert "/no/such/folder" in scheduler.refused[key].message


async def test_a_launch_that_comes_twice_starts_one_process(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    scheduler.duplicates = True
    key = scheduler.launch(1, ["sh", "-c", "echo started >> ran; cat go"], cwd=tmp_path, env=PATH)
    scheduler.launch(1, ["sh", "-c", "echo started >> ran; cat go"], cwd=tmp_path, env=PATH)
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert (tmp_path / "ran").read_text() == "started\n"
    # The scheduler has stored the end and says so once more: the tombstone answers.
    scheduler.launch(1, ["sh", "-c", "echo started >> ran"], cwd=tmp_path, env=PATH)
    count = len(scheduler.messages)
    await scheduler.wait_for(lambda: "attempt_exited" in bodies(scheduler.messages[count:]), "the end, told once more")
    assert (tmp_path / "ran").read_text() == "started\n"


async def test_a_command_on_old_knowledge_is_refused(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    scheduler.send_raw(
        scheduler.term,
        0,
        launch=pb.Launch(key=proto_key((5, 1, 0)), argv=["true"], cwd="/", node_count=1),
    )
    await scheduler.wait_for(lambda: (5, 1, 0) in scheduler.refused, "a refusal")
    assert scheduler.refused[5, 1, 0].reason == "COMMAND_TOO_OLD"


async def test_a_command_that_took_too_long_is_refused(tmp_path: Path) -> None:
    async with FakeScheduler() as scheduler:
        scheduler.command_valid_for_s = 0.5
        scheduler.heartbeat_interval_s = 0.05
        async with AgentProcess(scheduler, tmp_path):
            await scheduler.wait_for(lambda: len(scheduler.messages) > 20, "some beats")
            first = scheduler.messages[0].sequence
            scheduler.send_raw(
                scheduler.term,
                first,
                launch=pb.Launch(key=proto_key((5, 1, 0)), argv=["true"], cwd="/", node_count=1),
            )
            await scheduler.wait_for(lambda: (5, 1, 0) in scheduler.refused, "a refusal")
            assert scheduler.refused[5, 1, 0].reason == "COMMAND_TOO_OLD"


async def test_a_message_of_a_lower_term_is_not_carried_out(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    scheduler.term = 5
    scheduler.command()
    marker = tmp_path / "ran"
    streams = len(scheduler.streams)
    scheduler.send_raw(
        4,
        scheduler.messages[-1].sequence,
        launch=pb.Launch(key=proto_key((5, 1, 0)), argv=["touch", str(marker)], cwd="/", node_count=1),
    )
    await scheduler.wait_for(lambda: len(scheduler.streams) > streams, "a new stream")
    key = scheduler.launch(6, ["/bin/true"])
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert not marker.exists()


async def test_the_highest_term_is_remembered_over_a_restart_of_the_agent(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    scheduler.term = 9
    scheduler.command()
    key = scheduler.launch(1, ["/bin/true"])
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    await agent.kill()
    scheduler.term = 8
    registrations, streams = len(scheduler.registrations), len(scheduler.streams)
    await agent.start()
    await scheduler.wait_for(lambda: len(scheduler.registrations) >= registrations + 2, "two tries")
    assert len(scheduler.streams) == streams
    assert "term 8" in agent.log.read_text()


async def test_output_in_many_pieces_arrives_whole_while_streams_break(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    code = "import sys\nfor i in range(200_000): print('line', i)"
    key = scheduler.launch(1, [sys.executable, "-c", code])
    for size in (1_000, 300_000, 1_000_000):
        await scheduler.wait_for_output(key, size)
        scheduler.drop_streams()
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.stdout(key) == b"".join(b"line %d\n" % i for i in range(200_000))
    assert scheduler.output_streams >= 3


async def test_nothing_is_lost_or_doubled_when_the_agent_is_killed_again_and_again(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    code = "import time\nfor i in range(600):\n    print(i, flush=True)\n    time.sleep(0.005)"
    key = scheduler.launch(1, [sys.executable, "-c", code])
    registrations = []
    for size in (150, 600, 1_200):
        await scheduler.wait_for_output(key, size)
        await agent.kill()
        scheduler.registrations.clear()
        await agent.start()
        await scheduler.wait_for(lambda: scheduler.registrations, "a registration")
        registrations += scheduler.registrations
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.stdout(key) == b"".join(b"%d\n" % i for i in range(600))
    assert scheduler.exited[key].exit.code == 0
    incarnations = [each.incarnation for each in registrations]
    assert incarnations == sorted(incarnations)
    assert len(set(incarnations)) == 3, "each start of the agent has one of its own"
    assert len({each.agent_id for each in registrations}) == 1


async def test_an_end_that_came_while_the_agent_was_away_is_told_by_the_inventory(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    key = scheduler.launch(
        1,
        ["sh", "-c", "until test -e go; do sleep 0.02; done; echo done > ended; exit 5"],
        cwd=tmp_path,
        env=PATH,
    )
    await scheduler.wait_for(lambda: key in scheduler.started, "the start")
    assert await agent.terminate() == 0
    (tmp_path / "go").touch()
    await scheduler.wait_for((tmp_path / "ended").exists, "the job's own end")
    await agent.start()
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.exited[key].exit.code == 5


async def test_a_report_is_repeated_until_it_is_acknowledged(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    scheduler.acks.clear()
    key = scheduler.launch(1, ["/bin/true"])
    await scheduler.wait_for(lambda: key in scheduler.exited, "the end")
    numbers = [m.sequence for m in scheduler.messages if m.WhichOneof("body") == "attempt_exited"]
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: len(scheduler.streams) == 2 and len(scheduler.streams[1].received) > 2, "more")
    again = [m.sequence for m in scheduler.streams[1].received if m.WhichOneof("body") == "attempt_exited"]
    assert again == numbers
    before = len(scheduler.streams[1].received)
    scheduler.acks.set()
    await scheduler.wait_for(lambda: len(scheduler.streams[1].received) > before + 10, "acknowledged beats")
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: len(scheduler.streams) == 3 and len(scheduler.streams[2].received) > 3, "more")
    assert "attempt_exited" not in bodies(scheduler.streams[2].received)


async def test_a_scheduler_that_restarts_finds_everything_again(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    key = scheduler.launch(1, ["sleep", "60"], env=PATH)
    await scheduler.wait_for(lambda: key in scheduler.started, "the start")
    await scheduler.restart()
    await scheduler.wait_for(lambda: len(scheduler.inventories) == 2, "a second inventory")
    (entry,) = scheduler.inventories[-1].entries
    assert entry.phase == pb.ATTEMPT_PHASE_RUNNING
    assert entry.run_duration.ToMicroseconds() > 0
    scheduler.command(stop=pb.Stop(key=proto_key(key), cause=pb.STOP_CAUSE_CANCELLED))
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.exited[key].exit.signal == signal.SIGTERM
    assert scheduler.exited[key].stop_cause == pb.STOP_CAUSE_CANCELLED


async def test_an_attempt_that_the_scheduler_does_not_know_is_killed_and_forgotten(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    key = scheduler.launch(1, ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], env=PATH)
    await scheduler.wait_for(lambda: key in scheduler.started, "the start")
    scheduler.known.discard(key)
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.exited[key].exit.signal == signal.SIGKILL
    assert scheduler.exited[key].stop_cause == pb.STOP_CAUSE_STALE


async def test_a_signal_reaches_the_job(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))\n"
        "print('ready')\ntime.sleep(60)"
    )
    key = scheduler.launch(1, [sys.executable, "-c", code])
    await scheduler.wait_for(lambda: scheduler.stdout(key) == b"ready\n", "the job")
    scheduler.command(send_signal=pb.SendSignal(key=proto_key(key), signal=signal.SIGUSR1))
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.exited[key].exit.code == 9


async def test_a_time_limit_is_kept_on_the_node(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    limit = Duration()
    limit.FromMilliseconds(300)
    key = scheduler.launch(1, ["/bin/sleep", "60"], time_limit=limit)
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.exited[key].stop_cause == pb.STOP_CAUSE_TIME_LIMIT


async def test_stopping_what_never_came_is_answered_and_holds(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    scheduler.forgets = False
    scheduler.command(stop=pb.Stop(key=proto_key((3, 1, 0)), cause=pb.STOP_CAUSE_CANCELLED))
    await scheduler.wait_for(lambda: (3, 1, 0) in scheduler.refused, "a refusal")
    assert scheduler.refused[3, 1, 0].reason == "STOPPED_BEFORE_START"
    scheduler.refused.clear()
    scheduler.launch(3, ["touch", str(tmp_path / "ran")])
    await scheduler.wait_for(lambda: (3, 1, 0) in scheduler.refused, "the same refusal")
    assert not (tmp_path / "ran").exists()


async def test_unwanted_output_is_dropped_and_the_job_goes_on(tmp_path: Path) -> None:
    async with FakeScheduler() as scheduler, AgentProcess(scheduler, tmp_path) as agent:
        await scheduler.wait_connected()
        scheduler.unwanted.add((1, 1, 0))
        code = "import sys\nfor _ in range(3_000): sys.stdout.write('x' * 10_000)\nprint('through', file=sys.stderr)"
        key = scheduler.launch(1, [sys.executable, "-c", code])
        await scheduler.wait_for(lambda: key in scheduler.exited, "the end")
        assert scheduler.exited[key].exit.code == 0
        assert len(scheduler.stdout(key)) < 30_000_000
        assert agent.process is not None


async def test_beats_carry_samples_and_the_round_trip(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    def beats() -> list[pb.Beat]:
        return [m.beat for m in scheduler.messages if m.WhichOneof("body") == "beat"]

    await scheduler.wait_for(lambda: len(beats()) > 3, "beats")
    newest = beats()[-1]
    assert [sample.uuid for sample in newest.samples] == ["VIRTUAL-n1-0", "VIRTUAL-n1-1"]
    assert all(sample.is_healthy and sample.HasField("age") for sample in newest.samples)
    assert newest.host.memory_used_bytes > 0 and newest.host.spool_free_bytes > 0
    assert newest.HasField("round_trip")


async def test_fresh_samples_come_when_asked_for(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    scheduler.heartbeat_interval_s = 30.0
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: len(scheduler.streams) == 2 and scheduler.streams[1].received, "a new stream")
    scheduler.command(refresh_samples=pb.RefreshSamples())
    await scheduler.wait_for(
        lambda: list(bodies(scheduler.streams[1].received)).count("beat") >= 2, "a beat out of turn"
    )


async def test_the_agents_own_log_can_be_read_and_followed(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    def text() -> bytes:
        return b"".join(chunk.data for chunk in scheduler.log_chunks if chunk.request == 7)

    scheduler.command(read_program_log=pb.ReadProgramLog(request=6, tail_lines=2))
    await scheduler.wait_for(lambda: any(chunk.is_last for chunk in scheduler.log_chunks), "the tail")
    assert b"".join(chunk.data for chunk in scheduler.log_chunks).count(b"\n") == 2
    scheduler.command(read_program_log=pb.ReadProgramLog(request=7, tail_lines=0, follow=True))
    scheduler.command(set_log_level=pb.SetLogLevel(level="warning"))
    key = scheduler.launch(1, ["true"], cwd="/no/such/folder")
    await scheduler.wait_for(lambda: b"CWD_MISSING" in text() and text().endswith(b"\n"), "the warning")
    scheduler.command(read_program_log=pb.ReadProgramLog(request=7, cancel=True))
    assert key in scheduler.refused


async def test_a_second_agent_on_the_same_data_folder_is_refused_with_the_pid_of_the_first(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    assert agent.process is not None
    second = await asyncio.create_subprocess_exec(*agent.command, stderr=asyncio.subprocess.PIPE)
    _, said = await second.communicate()
    assert second.returncode == 1
    assert f"pid {agent.process.pid}" in said.decode()
    assert "--data" in said.decode()


async def test_the_inventory_says_why_a_rank_was_refused(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    scheduler.forgets = False
    key = scheduler.launch(1, ["true"], cwd="/no/such/folder")
    await scheduler.wait_for(lambda: key in scheduler.refused, "a refusal")
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: len(scheduler.inventories) == 2, "a second inventory")
    (entry,) = scheduler.inventories[-1].entries
    assert entry.phase == pb.ATTEMPT_PHASE_REFUSED
    assert (entry.exited.reason, "/no/such/folder" in entry.exited.message) == ("CWD_MISSING", True)


async def test_a_launch_is_a_step_of_the_submitters_trace_and_the_job_continues_it(
    scheduler: FakeScheduler, tmp_path: Path
) -> None:
    environment = {"OTEL_TRACES_EXPORTER": "console"}
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with AgentProcess(scheduler, tmp_path, "--virtual-gpus", "1", environment=environment) as agent:
        await scheduler.wait_connected()
        argv = [sys.executable, "-c", "import os; print(os.environ['TRACEPARENT'])"]
        key = scheduler.launch(1, argv, trace_context=f"00-{trace}-b7ad6b7169203331-01")
        await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
        _, seen, span, _ = scheduler.stdout(key).decode().strip().split("-")
        assert seen == trace
        assert await agent.terminate() == 0
        log = agent.log.read_text()
        assert '"name": "launch"' in log and span in log and "b7ad6b7169203331" in log
