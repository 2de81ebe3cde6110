"""Agents come, go and are killed; keepers stay, are replaced, are killed. Nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, StopCause
from node_agent.core.attempt import Limits
from node_agent.core.launch import Launched, Refusal, RefusalReason
from node_agent.core.outcome import AttemptPhase, LossReason, Offsets, Stream
from node_agent.keeper import records
from node_agent.keeper.connection import KeeperGone
from node_agent.keeper.events import AttemptEnded, AttemptStarted, Superseded
from node_agent.keeper.life import EXIT_ANOTHER_IS_ACTIVE
from node_agent.keeper.linux import boot_id
from node_agent.keeper.processes import look_at
from node_agent.keeper.spawn import KEY_VARIABLE
from node_agent.keeper.state_dir import StateDir
from tests.node_agent.keeper.keeping import (
    COMMAND,
    SECOND_US,
    Agent,
    Node,
    is_alive,
    kill_with_supervisors,
    read_all,
    run_apart,
    until,
    until_async,
)

NUMBERED = "i=0; while [ $i -lt {count} ]; do echo $i; i=$((i+1)); done"

AGENT = """
import asyncio, os, sys
from gpufleet.jobs.runs import JobId, RankKey
from gpufleet.node_agent.core.launch import Launch, Process
from gpufleet.node_agent.keeper.client import Keepers
from gpufleet.node_agent.keeper.linux import boottime_us

async def main():
    keepers = await Keepers.open(sys.argv[1], build="1")
    process = Process(argv=("/bin/sh", "-c", sys.argv[2]), env={"PATH": os.environ["PATH"]}, cwd=sys.argv[3])
    launch = Launch(key=RankKey(JobId(1), 1, 0), process=process, heartbeat_sent_us=boottime_us())
    print((await keepers.launch(launch)).attempt.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_keeper_and_job_outlive_the_kill_of_the_agent_that_started_them_and_of_its_whole_group(
    node: Node,
) -> None:
    os.mkfifo(node.cwd / "gate")
    text = f"read -r line < gate; {NUMBERED.format(count=20_000)}; exit 5"
    arguments = [sys.executable, "-P", "-c", AGENT, str(node.state_dir), text, str(node.cwd)]
    with run_apart(*arguments) as process:
        assert process.stdout is not None
        pid = int(await asyncio.to_thread(process.stdout.readline))
        os.killpg(process.pid, signal.SIGKILL)
    (node.cwd / "gate").write_text("go\n")
    agent = await node.open()
    (view,) = await agent.keepers.inventory()
    assert view.pid == pid
    end = await agent.end(view)
    assert end.status == ExitCode(code=5)
    assert read_all(view, Stream.STDOUT) == b"".join(b"%d\n" % i for i in range(20_000))


async def test_reports_come_again_to_every_new_agent_until_one_acknowledges_them(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, "exit 2"))
    await agent.end(view)
    await agent.keepers.close()
    second = await node.open()
    started = await second.event(AttemptStarted)
    ended = await second.event(AttemptEnded)
    assert ended.end.status == ExitCode(code=2)
    await second.keepers.acknowledge(started)
    await second.keepers.acknowledge(ended)
    await second.keepers.close()
    third = await node.open()
    other = await third.start(node.shell(2, "exit 0"))
    assert (await third.event(AttemptStarted)).key == other.key
    assert (await third.event(AttemptEnded)).key == other.key
    assert (await third.view(view.key)).end == ended.end, "the inventory keeps it until it is forgotten"


async def test_the_newest_agent_wins_and_the_older_one_is_told(node: Node) -> None:
    first = await node.open()
    second = await node.open()
    assert isinstance(await first.event(Superseded), Superseded)
    assert (await second.run(node.launch(1, "/bin/true")))[0].status == ExitCode(code=0)
    assert second.keeper_pid in node.keeper_pids
    assert len(node.keeper_pids) == 1


async def test_a_second_keeper_is_refused_while_one_is_active(node: Node) -> None:
    await node.open()
    done = await asyncio.to_thread(
        subprocess.run, [*COMMAND, "--dir", str(node.state_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == EXIT_ANOTHER_IS_ACTIVE
    assert done.stderr == f"keeper: another keeper is active in {node.state_dir}\n"


async def test_agents_that_open_at_the_same_time_share_one_keeper(node: Node) -> None:
    answers = await asyncio.gather(*(node.open() for _ in range(4)), return_exceptions=True)
    agents = [answer for answer in answers if isinstance(answer, Agent)]
    assert all(isinstance(answer, (Agent, KeeperGone)) for answer in answers), "the newest wins"
    assert agents
    assert len(node.keeper_ids) == 1
    assert len(list((node.state_dir / "keepers").iterdir())) == 1


async def test_a_keeper_that_cannot_start_says_why(node: Node) -> None:
    node.state_dir.write_text("a file is in the way")
    done = await asyncio.to_thread(
        subprocess.run, [*COMMAND, "--dir", str(node.state_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 70
    assert done.stderr == f"keeper: [Errno 17] File exists: '{node.state_dir}'\n"


async def test_a_state_directory_with_a_very_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory-with-a-long-name"] * 8)
    deep.mkdir(parents=True)
    assert len(str(deep)) > 108
    node = Node(deep / "state", tmp_path)
    agent = await node.open()
    assert (await agent.run(node.shell(1, "exit 3")))[0].status == ExitCode(code=3)
    await node.close()


async def test_the_socket_is_for_the_owner_alone(node: Node) -> None:
    await node.open()
    (directory,) = (node.state_dir / "keepers").iterdir()
    assert (directory / "socket").stat().st_mode & 0o777 == 0o600
    assert node.state_dir.stat().st_mode & 0o777 == 0o700


async def test_a_keeper_whose_directory_is_deleted_ends_its_attempts_and_itself(node: Node) -> None:
    """Nobody could reach it any more, and the next agent would take its attempts for never started."""
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    pid = agent.keeper_pid
    await agent.keepers.close()
    shutil.rmtree(node.state_dir, ignore_errors=True)  # the keeper takes its own files away, too
    await until(lambda: not is_alive(view.pid or 0), "the job's end")
    await until(lambda: not is_alive(pid), "the keeper's end")


# --- upgrades


async def test_after_an_upgrade_the_old_keeper_goes_on_with_its_attempt_and_leaves_with_it(node: Node) -> None:
    old = await node.open(build="1")
    os.mkfifo(node.cwd / "gate")
    launch = node.shell(1, "echo before; read -r line < gate; echo after; exit 6")
    view = await old.start(launch)
    old_pid = old.keeper_pid
    await old.keepers.close()
    new = await node.open(build="2")
    assert new.keeper_pid != old_pid
    assert is_alive(old_pid)
    other = await new.start(node.launch(2, "/bin/sleep", "1000"))
    assert other.keeper_id != view.keeper_id
    await new.keepers.close()
    new = await node.open(build="2")
    assert [each.key for each in await new.keepers.inventory()] == [view.key, other.key], "it adopts both keepers"
    again = await new.keepers.launch(launch)
    assert isinstance(again, Launched)
    assert (again.was_known, again.attempt.pid) == (True, view.pid)
    (node.cwd / "gate").write_text("go\n")
    assert (await new.end(view)).status == ExitCode(code=6)
    assert read_all(view, Stream.STDOUT) == b"before\nafter\n"
    assert is_alive(old_pid), "its attempt is not forgotten"
    await new.keepers.forget(view.key)
    await until(lambda: not is_alive(old_pid), "the old keeper's end")
    assert [each.key for each in await new.keepers.inventory()] == [other.key]
    assert (await new.start(launch)).phase is AttemptPhase.FORGOTTEN


async def test_a_new_keeper_answers_for_what_an_old_one_still_runs(node: Node) -> None:
    """Even an agent that does not know of the old keeper gets no second start out of the new one."""
    old = await node.open(build="1")
    launch = node.launch(1, "/bin/sleep", "1000")
    view = await old.start(launch)
    await old.keepers.close()
    new = await node.open(build="2")
    new.keepers._owners.clear()
    answer = await new.keepers.launch(launch)
    assert isinstance(answer, Launched)
    assert answer.was_known
    assert (answer.attempt.pid, answer.attempt.keeper_id) == (view.pid, view.keeper_id)


async def test_an_old_keeper_without_attempts_leaves_at_once(node: Node) -> None:
    old = await node.open(build="1")
    old_pid = old.keeper_pid
    await old.keepers.close()
    await node.open(build="2")
    await until(lambda: not is_alive(old_pid), "the old keeper's end")


# --- the keeper is killed


async def test_when_the_keeper_is_killed_all_its_processes_are_and_a_clean_prefix_of_the_output_stays(
    node: Node,
) -> None:
    agent = await node.open()
    strays = "(setsid sleep 1000 & echo $! >> pids); (env -i setsid sleep 1000 & echo $! >> pids)"
    text = f"{strays}; sleep 1000 & echo $! >> pids; i=0; while :; do echo $i; i=$((i+1)); done"
    view = await agent.start(node.shell(1, text))
    out = await agent.output(view, 100_000)
    os.kill(agent.keeper_pid, signal.SIGKILL)
    died = await agent.death()
    (lost,) = died.attempts
    assert (lost.key, lost.phase) == (view.key, AttemptPhase.LOST)
    assert lost.end is not None
    assert (lost.end.status, lost.end.loss) == (None, LossReason.KEEPER_DIED)
    pids = [view.pid, *map(int, (node.cwd / "pids").read_text().split())]
    assert len(pids) == 4
    assert not [pid for pid in pids if is_alive(pid or 0)]
    clean = read_all(lost, Stream.STDOUT)
    assert len(clean) == lost.end.output_ends.stdout >= len(out)
    whole = b"".join(b"%d\n" % i for i in range(clean.count(b"\n") + 1))
    assert whole.startswith(clean)


async def test_of_several_that_are_lost_with_a_keeper_none_is_to_blame(node: Node) -> None:
    agent = await node.open()
    for jobs in ((1, 2), (3,)):
        for job in jobs:
            await agent.start(node.shell(job, "sleep 1000"))
        agent.note_keepers()
        os.kill(agent.keeper_pid, signal.SIGKILL)
        lost = {view.key.job: view.end for view in (await agent.death()).attempts if view.end is not None}
        told = {int(job): end.is_blameless for job, end in lost.items() if job in jobs}
        assert told == {job: len(jobs) > 1 for job in jobs}


async def test_after_the_keeper_was_killed_another_takes_the_launches_and_the_lost_one_is_never_started_again(
    node: Node,
) -> None:
    agent = await node.open()
    launch = node.shell(1, "echo once >> runs; sleep 1000")
    view = await agent.start(launch)
    await until(lambda: (node.cwd / "runs").exists() and (node.cwd / "runs").read_text(), "its start")
    os.kill(agent.keeper_pid, signal.SIGKILL)
    await agent.death()
    answer = await agent.keepers.launch(launch)
    assert isinstance(answer, Launched)
    assert (answer.was_known, answer.attempt.phase) == (True, AttemptPhase.LOST)
    assert (await agent.run(node.launch(2, "/bin/true")))[0].status == ExitCode(code=0)
    agent.note_keepers()
    await agent.keepers.close()
    again = await node.open()
    assert (await again.view(view.key)).phase is AttemptPhase.LOST, "a later agent finds it out of the record"
    assert await again.keepers.forget(view.key) is None
    assert (await again.start(launch)).phase is AttemptPhase.FORGOTTEN
    assert (node.cwd / "runs").read_text() == "once\n"


async def test_a_keeper_killed_while_no_agent_was_there_is_settled_by_the_next_one(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    await agent.start(node.shell(2, "exit 9"))
    await agent.event(AttemptEnded)
    pid = agent.keeper_pid
    await agent.keepers.close()
    os.kill(pid, signal.SIGKILL)
    again = await node.open()
    assert not is_alive(view.pid or 0)
    running, ended = await again.keepers.inventory()
    assert running.phase is AttemptPhase.LOST
    assert ended.phase is AttemptPhase.ENDED, "what the keeper had recorded is known"
    assert ended.end is not None
    assert ended.end.status == ExitCode(code=9)


async def test_what_a_dead_keeper_had_deleted_as_synced_is_not_taken_for_never_written(node: Node) -> None:
    agent = await node.open()
    spool_bytes = 32 * 1024
    text = "import os, time\nfor i in range(2_500): os.write(1, b'%07d\\n' % i)\ntime.sleep(1000)"
    view = await agent.start(node.script(1, text, spool_bytes=spool_bytes))
    out = await agent.output(view, 20_000)
    assert await agent.keepers.output_synced(view.key, Offsets(20_000, 0)) is None
    os.kill(agent.keeper_pid, signal.SIGKILL)
    (lost,) = (await agent.death()).attempts
    assert lost.output_ends == Offsets(20_000, 0)
    assert 0 < lost.output_starts.stdout < 20_000
    assert read_all(lost, Stream.STDOUT, lost.output_starts.stdout) == out[lost.output_starts.stdout :]


async def test_requests_to_a_killed_keeper_fail_with_keeper_gone(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    waiting = asyncio.create_task(agent.keepers.wait_for_output(view.key, Offsets()))
    stopped_pid = agent.keeper_pid
    os.kill(stopped_pid, signal.SIGSTOP)
    asking = asyncio.create_task(agent.keepers.stop(view.key, StopCause.CANCELLED))
    await asyncio.sleep(0)
    os.kill(stopped_pid, signal.SIGKILL)
    for task in (waiting, asking):
        with pytest.raises(KeeperGone):
            await task
    assert (await agent.death()).attempts[0].key == view.key


async def test_a_request_on_a_connection_that_is_being_closed_fails_with_keeper_gone(node: Node) -> None:
    """uvloop raises an error of its own there, and asyncio none."""
    agent = await node.open()
    await agent.start(node.launch(1, "/bin/sleep", "1000"))
    (connection,) = agent.keepers._roster.connections()
    connection._writer.close()
    with pytest.raises(KeeperGone):
        await connection.request("list")


async def test_a_keeper_killed_again_and_again_under_launches_starts_nothing_twice(node: Node) -> None:
    """Every launch that began leaves evidence, whatever the keeper was doing when it was killed."""
    agent = await node.open()
    for round_number in range(1, 6):
        launches = [node.shell(round_number * 100 + n, f"echo {n} >> runs.{round_number}") for n in range(1, 21)]
        tasks = [asyncio.create_task(agent.keepers.launch(launch)) for launch in launches]
        for _ in range(round_number * 3):
            await asyncio.sleep(0)
        os.kill(agent.keeper_pid, signal.SIGKILL)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, (Launched, KeeperGone)) for answer in answers), answers
        await agent.death()
        before = {view.key for view in await agent.keepers.inventory()}
        for launch, answer in zip(launches, answers, strict=True):
            assert not isinstance(answer, Launched) or launch.key in before
            again = await agent.keepers.launch(launch)
            assert isinstance(again, Launched)
            assert again.was_known == (launch.key in before)
            if not again.was_known:
                await agent.end(again.attempt)
        agent.note_keepers()
        file = node.cwd / f"runs.{round_number}"  # all may have been killed before they wrote
        runs = file.read_text().split() if file.exists() else []
        assert len(runs) == len(set(runs))


# --- records of the past


def write_record(node: Node, job_id: int, boot: str, pid: int | None, start_ticks: int) -> StateDir:
    """Write what a keeper `gone` wrote down before it was killed."""
    state = StateDir(node.state_dir)
    state.prepare()
    state.keeper("gone").mkdir(exist_ok=True)
    key = node.launch(job_id, "x").key
    record = records.Record(key=key, keeper_id="gone", boot_id=boot, note="n")
    file = records.claim(state, records.Spares(state.keeper("gone")), record)
    assert file is not None
    (file.directory / f"{Stream.STDOUT.value}.{0:020d}").write_bytes(b"spooled")
    if pid is not None:
        file.append(records.started_line(pid=pid, start_ticks=start_ticks, started_us=1, pipe_ids=()))
    file.close()
    return state


async def test_an_attempt_of_another_boot_is_lost_and_whoever_has_its_pid_now_is_left_alone(node: Node) -> None:
    with run_apart("/bin/sleep", "1000") as innocent:
        process = look_at(innocent.pid)
        assert process is not None
        write_record(node, 1, "another boot", innocent.pid, process.start_ticks)
        (view,) = await (await node.open()).keepers.inventory()
        assert view.end is not None
        assert (view.phase, view.end.loss) == (AttemptPhase.LOST, LossReason.NODE_REBOOTED)
        assert view.end.output_ends == Offsets(), "what was on the disk before the crash is not to be trusted"
        assert innocent.poll() is None


async def test_a_process_that_has_the_pid_of_a_dead_leader_is_left_alone(node: Node) -> None:
    with run_apart("/bin/sleep", "1000") as innocent:
        process = look_at(innocent.pid)
        assert process is not None
        write_record(node, 1, boot_id(), innocent.pid, process.start_ticks - 1)
        (view,) = await (await node.open()).keepers.inventory()
        assert view.end is not None
        assert (view.phase, view.end.loss) == (AttemptPhase.LOST, LossReason.KEEPER_DIED)
        assert view.end.output_ends == Offsets(len(b"spooled"), 0)
        assert innocent.poll() is None


async def test_a_process_started_but_not_written_down_is_found_by_its_environment(node: Node) -> None:
    """The keeper was killed between starting the process and recording its pid."""
    write_record(node, 1, boot_id(), None, 0)
    with (
        run_apart("/bin/sleep", "1000", env={KEY_VARIABLE: "gone:1.1.0"}) as unrecorded,
        run_apart("/bin/sleep", "1000", env={KEY_VARIABLE: "gone:1.1.01"}) as other,
    ):
        (view,) = await (await node.open()).keepers.inventory()
        assert view.phase is AttemptPhase.LOST
        assert view.note == "n"
        assert unrecorded.wait(60) == -signal.SIGKILL
        assert other.poll() is None


async def test_while_a_dead_keepers_processes_do_not_die_its_attempts_are_ending_and_others_are_launched(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a driver is stuck: SIGKILL has been sent, and the process is still there."""
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    with monkeypatch.context() as patch:
        patch.setattr("node_agent.keeper.aftermath._kill_and_wait", lambda found, timeout_s: None)
        patch.setattr("node_agent.keeper.roster.KILL_TIMEOUT_S", 0.01)
        kill_with_supervisors(agent.keeper_pid)

        async def is_dying() -> bool:
            return [each.phase for each in await agent.keepers.inventory()] == [AttemptPhase.ENDING]

        await until_async(is_dying)
        other = await agent.start(node.shell(2, "exit 3"))
        assert (await agent.end(other)).status == ExitCode(code=3)
        agent.note_keepers()
        assert is_alive(view.pid or 0)
        assert (await agent.view(view.key)).phase is AttemptPhase.ENDING
    assert (await agent.death()).attempts[0].phase is AttemptPhase.LOST
    assert not is_alive(view.pid or 0)
    assert [each.phase for each in await agent.keepers.inventory()] == [AttemptPhase.LOST, AttemptPhase.ENDED]


async def test_an_agent_starts_while_what_a_dead_keeper_left_does_not_die(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeper and agent were killed, a process is stuck in its driver: the node is heard all the same."""
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    ended = await agent.start(node.shell(2, "exit 4"))
    await agent.end(ended)
    pid = agent.keeper_pid
    await agent.keepers.close()
    kill_with_supervisors(pid)
    await until(lambda: not is_alive(pid), "the keeper's end")
    with monkeypatch.context() as patch:
        patch.setattr("node_agent.keeper.aftermath._kill_and_wait", lambda found, timeout_s: None)
        patch.setattr("node_agent.keeper.roster.KILL_TIMEOUT_S", 0.01)
        again = await node.open()
        phases = {each.key: each.phase for each in await again.keepers.inventory()}
        assert phases == {view.key: AttemptPhase.ENDING, ended.key: AttemptPhase.ENDED}
        assert (await again.run(node.shell(3, "exit 3")))[0].status == ExitCode(code=3)
        again.note_keepers()
        assert is_alive(view.pid or 0)
    told = {each.key: each.phase for each in (await again.death()).attempts}
    assert told == {view.key: AttemptPhase.LOST, ended.key: AttemptPhase.ENDED}
    assert not is_alive(view.pid or 0)


async def test_an_end_recorded_before_a_reboot_is_not_believed(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, "echo hello"))
    await agent.end(view)
    pid = agent.keeper_pid
    await agent.keepers.close()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_alive(pid), "the keeper's end")
    record = Path(view.directory) / "record"
    record.write_text(record.read_text().replace(boot_id(), "another boot"))
    found = await (await node.open()).view(view.key)
    assert found.end is not None
    assert (found.phase, found.end.status, found.end.loss) == (AttemptPhase.LOST, None, LossReason.NODE_REBOOTED)


async def test_a_forgetting_that_was_interrupted_is_finished(node: Node) -> None:
    state = write_record(node, 1, boot_id(), None, 0)
    key = node.launch(1, "x").key
    (state.attempt(key) / "record").rename(state.tombstone(key))
    agent = await node.open()
    assert await agent.keepers.inventory() == ()
    assert not state.attempt(key).exists()
    assert (await agent.start(node.launch(1, "/bin/true"))).phase is AttemptPhase.FORGOTTEN


async def test_a_retired_keeper_refuses_new_launches_and_an_unknown_key_is_refused_everywhere(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    (connection,) = agent.keepers._roster.connections()
    await connection.request("retire")
    answer = await agent.keepers.launch(node.launch(2, "/bin/true", limits=Limits(grace_us=SECOND_US)))
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.RETIRED
    unknown = node.launch(9, "x").key
    refusal = await agent.keepers.stop(unknown, StopCause.CANCELLED)
    assert refusal is not None
    assert refusal.reason is RefusalReason.UNKNOWN_ATTEMPT
    waited = await agent.keepers.wait_for_output(unknown, Offsets())
    assert isinstance(waited, Refusal)
    await agent.keepers.kill(view.key, StopCause.CANCELLED)
    await agent.end(view)

    async def gone() -> bool:
        return await agent.keepers.forget(view.key) is None

    assert await until_async(gone)


@pytest.mark.parametrize("left", [b"", b"\0" * 200, b'{"key": "1.1.0", "keeper', b'{"pid": 5}\n', b'["a list"]\n'])
async def test_a_record_that_a_crash_of_the_machine_left_in_shreds_is_one_of_another_boot(
    node: Node, left: bytes
) -> None:
    """Nothing is synced when it is written down: a power cut may leave an empty file, or one full of zeros."""
    state = write_record(node, 1, "another boot", None, 0)
    key = node.launch(1, "x").key
    (state.attempt(key) / "record").write_bytes(left)
    agent = await node.open()
    (view,) = await agent.keepers.inventory()
    assert view.end is not None
    assert (view.key, view.phase, view.end.loss) == (key, AttemptPhase.LOST, LossReason.NODE_REBOOTED)
    await agent.keepers.close()
    again = await node.open()
    assert (await again.view(key)).phase is AttemptPhase.LOST, "it is found out again, and the same"
    assert await again.keepers.forget(key) is None
    assert await again.keepers.inventory() == ()
    assert (await again.start(node.launch(1, "/bin/true"))).phase is AttemptPhase.FORGOTTEN


async def test_lines_that_cannot_be_read_take_nothing_from_those_before_them(node: Node) -> None:
    state = write_record(node, 1, boot_id(), None, 0)
    record = state.attempt(node.launch(1, "x").key) / "record"
    record.write_bytes(record.read_bytes() + b"\0\0\0\n")
    with run_apart("/bin/sleep", "1000", env={KEY_VARIABLE: "gone:1.1.0"}) as unrecorded:
        (view,) = await (await node.open()).keepers.inventory()
        assert view.end is not None
        assert (view.note, view.end.loss) == ("n", LossReason.KEEPER_DIED)
        assert unrecorded.wait(60) == -signal.SIGKILL
