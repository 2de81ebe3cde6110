"""How attempts end when they do not end by themselves: whole groups, limits, the fence, and what ran away."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, ExitSignal, JobId, NodeCause, RankKey, StopCause
from node_agent.core.attempt import Limits
from node_agent.core.launch import RefusalReason
from node_agent.core.outcome import AttemptPhase, Stream
from node_agent.keeper.linux import boottime_us
from tests.node_agent.keeper.keeping import SECOND_US, Node, is_alive, read_all, until, until_async

FENCE_US = 30 * SECOND_US
FENCE_MARGIN_US = 5 * SECOND_US

SOON_US = 5 * SECOND_US
"""Soon enough to wait for, and late enough for a shell to have set its traps, or an agent to have said a word."""

GRACE_US = 2 * SECOND_US
"""What an obedient shell needs little of."""

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1000; done"
OBEDIENT = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 1000 & wait; done"


def pids_in(path: Path, count: int) -> list[int]:
    """Read the pids that a job wrote down, once there are so many."""
    pids = [int(word) for word in path.read_text().split()] if path.exists() else []
    return pids if len(pids) == count else []


async def test_when_the_leader_exits_the_rest_of_its_group_is_killed(node: Node) -> None:
    agent = await node.open()
    text = "(sleep 1000 & echo $! >> pids; wait) & sh -c 'sleep 1000 & echo $! >> pids; wait' & echo $! >> pids; "
    view = await agent.start(node.shell(1, text + "until [ $(wc -l < pids) = 3 ]; do :; done; exit 4"))
    end = await agent.end(view)
    assert end.status == ExitCode(code=4)
    assert (end.streams_cut, end.processes_left, end.stop_cause) == ((), 0, None)
    pids = pids_in(node.cwd / "pids", 3)
    assert pids
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("environment", ["", "env -i"], ids=["with its environment", "without one"])
@pytest.mark.parametrize("output", ["", ">/dev/null 2>&1"], ids=["with a pipe", "without one"])
async def test_a_daemon_that_left_all_that_tells_whose_it_is_ends_with_its_attempt_while_others_run(
    node: Node, environment: str, output: str
) -> None:
    agent = await node.open()
    bystander = await agent.start(node.launch(2, "/bin/sleep", "1000"))
    # The middle processes exit, so that the daemon is nobody's child but its supervisor's.
    daemon = f"{environment} setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000' {output}"
    text = f"((({daemon}) &) &); until [ -e pid ]; do :; done; echo done"
    view = await agent.start(node.shell(1, text))
    end = await agent.end(view)
    assert end.status == ExitCode(code=0)
    assert (end.streams_cut, end.processes_left) == ((), 0)
    assert not is_alive(int((node.cwd / "pid").read_text()))
    assert read_all(view, Stream.STDOUT) == b"done\n"
    assert (await agent.view(bystander.key)).phase is AttemptPhase.RUNNING


async def test_an_attempt_that_kills_its_supervisor_ends_with_all_that_it_has_started(node: Node) -> None:
    agent = await node.open()
    bystander = await agent.start(node.launch(2, "/bin/sleep", "1000"))
    daemon = "env -i setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000' >/dev/null 2>&1"
    text = f"({daemon} &); until [ -e pid ]; do :; done; kill -9 $PPID; while :; do :; done"
    end, _, _ = await agent.run(node.shell(1, text))
    assert (end.status, end.processes_left) == (ExitSignal(signal=signal.SIGKILL), 0)
    assert not is_alive(int((node.cwd / "pid").read_text()))
    assert (await agent.view(bystander.key)).phase is AttemptPhase.RUNNING
    assert (await agent.run(node.launch(3, "/bin/true")))[0].status == ExitCode(code=0)


async def test_the_descendants_of_another_attempt_are_left_alone(node: Node) -> None:
    agent = await node.open()
    other = await agent.start(node.shell(1, "(setsid sleep 1000 & echo $! > pid); sleep 1000"))
    pid = await until(lambda: pids_in(node.cwd / "pid", 1), "the other attempt's daemon")
    await agent.run(node.shell(2, "(setsid sleep 1000 &); true"))
    assert is_alive(pid[0])
    await agent.keepers.kill(other.key, StopCause.CANCELLED)
    await agent.end(other)
    assert not is_alive(pid[0])


async def test_a_process_from_outside_that_holds_the_output_open_cuts_it_and_no_byte_before_that_is_lost(
    node: Node,
) -> None:
    agent = await node.open()
    os.mkfifo(node.cwd / "gate")
    view = await agent.start(node.shell(1, "echo before; read -r line < gate; echo after"))
    await agent.output(view, len("before\n"))
    foreign = os.open(f"/proc/{view.pid}/fd/1", os.O_WRONLY)
    try:
        (node.cwd / "gate").write_text("go\n")
        end = await agent.end(view)
    finally:
        os.close(foreign)
    assert end.status == ExitCode(code=0)
    assert end.streams_cut == (Stream.STDOUT,)
    assert end.processes_left == 0
    assert read_all(view, Stream.STDOUT) == b"before\nafter\n"


async def test_a_stop_lets_the_job_end_by_itself_within_its_grace(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, OBEDIENT))
    await agent.output(view, len("ready\n"))
    assert await agent.keepers.stop(view.key, StopCause.PREEMPTED) is None
    end = await agent.end(view)
    assert (end.status, end.stop_cause) == (ExitCode(code=7), StopCause.PREEMPTED)
    assert read_all(view, Stream.STDOUT) == b"ready\nbye\n"


async def test_a_stop_kills_the_whole_group_when_the_grace_is_over(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, STUBBORN))
    await agent.output(view, len("ready\n"))
    before_us = boottime_us()
    await agent.keepers.stop(view.key, StopCause.CANCELLED, grace_us=GRACE_US)
    assert (await agent.view(view.key)).phase is AttemptPhase.STOPPING
    end = await agent.end(view)
    assert (end.status, end.stop_cause) == (ExitSignal(signal=signal.SIGKILL), StopCause.CANCELLED)
    assert end.ended_us is not None
    assert end.ended_us - before_us >= GRACE_US


async def test_a_repeated_stop_sends_one_sigterm_and_keeps_the_first_cause(node: Node) -> None:
    agent = await node.open()
    text = "trap 'echo term' TERM; trap 'exit 0' USR1; echo ready; while :; do sleep 1000 & wait; done"
    view = await agent.start(node.shell(1, text))
    await agent.output(view, len("ready\n"))
    for cause in (StopCause.GANG, StopCause.CANCELLED, StopCause.CANCELLED):
        await agent.keepers.stop(view.key, cause)
    await agent.output(view, len("ready\nterm\n"))
    await agent.keepers.signal(view.key, signal.SIGUSR1)
    end = await agent.end(view)
    assert end.stop_cause is StopCause.GANG
    assert read_all(view, Stream.STDOUT) == b"ready\nterm\n"


async def test_a_kill_does_not_wait_for_a_grace_also_after_a_stop(node: Node) -> None:
    agent = await node.open()
    for job_id, stop_first in ((1, False), (2, True)):
        view = await agent.start(node.shell(job_id, STUBBORN, limits=Limits(grace_us=1000 * SECOND_US)))
        await agent.output(view, len("ready\n"))
        if stop_first:
            await agent.keepers.stop(view.key, StopCause.CANCELLED)
        await agent.keepers.kill(view.key, StopCause.STALE)
        end = await agent.end(view)
        assert end.status == ExitSignal(signal=signal.SIGKILL)
        assert end.stop_cause is (StopCause.CANCELLED if stop_first else StopCause.STALE)


async def test_a_suspended_job_hears_the_sigterm(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, OBEDIENT))
    await agent.output(view, len("ready\n"))
    await agent.keepers.signal(view.key, signal.SIGSTOP)
    await agent.keepers.stop(view.key, StopCause.CANCELLED)
    assert (await agent.end(view)).status == ExitCode(code=7)


async def test_a_signal_reaches_the_whole_group(node: Node) -> None:
    agent = await node.open()
    text = "trap 'echo parent' USR1; (trap 'echo child; exit' USR1; echo ready; while :; do :; done) & wait; wait"
    view = await agent.start(node.shell(1, text))
    await agent.output(view, len("ready\n"))
    assert await agent.keepers.signal(view.key, signal.SIGUSR1) is None
    await agent.end(view)
    assert sorted(read_all(view, Stream.STDOUT).split()) == [b"child", b"parent", b"ready"]


async def test_a_signal_to_what_has_ended_or_is_unknown_or_no_signal_is_refused(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/true"))
    await agent.end(view)
    for key, number, reason in (
        (view.key, 10, RefusalReason.NOT_RUNNING),
        (RankKey(JobId(5), 1, 0), 10, RefusalReason.UNKNOWN_ATTEMPT),
        (view.key, 0, RefusalReason.BAD_REQUEST),
        (view.key, 65, RefusalReason.BAD_REQUEST),
    ):
        refusal = await agent.keepers.signal(key, number)
        assert refusal is not None
        assert refusal.reason is reason
    assert await agent.keepers.stop(view.key, StopCause.CANCELLED) is None, "what was asked for is so already"
    assert (await agent.view(view.key)).stop_cause is None


async def test_the_time_limit_is_kept_without_an_agent_first_with_sigterm_then_with_sigkill(node: Node) -> None:
    agent = await node.open()
    limits = Limits(grace_us=GRACE_US, time_limit_us=SOON_US)
    obedient = await agent.start(node.shell(1, OBEDIENT, limits=limits))
    stubborn = await agent.start(node.shell(2, STUBBORN, limits=limits))
    await agent.keepers.close()
    await until(lambda: not is_alive(obedient.pid or 0) and not is_alive(stubborn.pid or 0), "the end of both")
    again = await node.open()
    end = await again.end(obedient)
    assert (end.status, end.stop_cause) == (ExitCode(code=7), StopCause.TIME_LIMIT)
    end = await again.end(stubborn)
    assert (end.status, end.stop_cause) == (ExitSignal(signal=signal.SIGKILL), StopCause.TIME_LIMIT)
    assert end.ended_us is not None
    assert end.started_us is not None
    assert end.ended_us - end.started_us >= SOON_US + GRACE_US


async def test_what_ended_while_the_keeper_was_suspended_was_stopped_by_nobody(node: Node) -> None:
    """Limit, stop and exit are all there when it wakes up: the process was first."""
    agent = await node.open()
    for name in ("one", "two"):
        os.mkfifo(node.cwd / name)
    limited = await agent.start(node.shell(1, "read -r line < one; exit 0", limits=Limits(time_limit_us=SOON_US)))
    stopped = await agent.start(node.shell(2, "read -r line < two; exit 0"))
    os.kill(agent.keeper_pid, signal.SIGSTOP)
    try:
        asking = asyncio.create_task(agent.keepers.stop(stopped.key, StopCause.CANCELLED))
        for name in ("one", "two"):
            (node.cwd / name).write_text("go\n")
        await until(lambda: not is_alive(limited.pid or 0) and not is_alive(stopped.pid or 0), "both ends")
        assert limited.started_us is not None
        past_us = limited.started_us + SOON_US
        await until(lambda: boottime_us() > past_us, "the time limit")
    finally:
        os.kill(agent.keeper_pid, signal.SIGCONT)
    await asking
    for view in (limited, stopped):
        end = await agent.end(view)
        assert (end.status, end.stop_cause) == (ExitCode(code=0), None)


def fenced(grace_us: int, ends_in_us: int) -> dict[str, object]:
    """Say that the newest acknowledged heartbeat is so old that the fence falls in so much time."""
    sent_us = boottime_us() - FENCE_US + FENCE_MARGIN_US + ends_in_us
    return {"limits": Limits(grace_us=grace_us, fence_us=FENCE_US), "heartbeat_sent_us": sent_us}


async def test_without_heartbeats_the_fence_ends_an_attempt_by_its_deadline_and_spares_the_unfenced(node: Node) -> None:
    agent = await node.open()
    deadline_us = boottime_us() + SOON_US + GRACE_US
    obedient = await agent.start(node.shell(1, OBEDIENT, **fenced(GRACE_US, SOON_US + GRACE_US)))
    stubborn = await agent.start(node.shell(2, STUBBORN, **fenced(GRACE_US, SOON_US + GRACE_US)))
    unfenced = await agent.start(node.shell(3, STUBBORN))
    await agent.keepers.close()
    await until(lambda: not is_alive(obedient.pid or 0) and not is_alive(stubborn.pid or 0), "the end of both")
    again = await node.open()
    end = await again.end(obedient)
    assert (end.status, end.stop_cause) == (ExitCode(code=7), StopCause.FENCED)
    end = await again.end(stubborn)
    assert (end.status, end.stop_cause) == (ExitSignal(signal=signal.SIGKILL), StopCause.FENCED)
    assert end.ended_us is not None
    assert end.ended_us >= deadline_us, "it had its whole grace"
    assert (await again.view(unfenced.key)).phase is AttemptPhase.RUNNING


async def test_an_acknowledged_heartbeat_moves_the_fence_and_an_older_one_does_not(node: Node) -> None:
    agent = await node.open()
    moved = await agent.start(node.shell(1, STUBBORN, **fenced(0, SOON_US)))
    control = await agent.start(node.shell(2, STUBBORN, **fenced(0, SOON_US)))
    assert moved.key != control.key
    sent_us = boottime_us()
    await agent.keepers.set_fence(sent_us)
    await agent.keepers.set_fence(sent_us - 100 * SECOND_US)
    past_us = boottime_us() + SOON_US + SECOND_US // 2
    await until(lambda: boottime_us() > past_us, "the old deadline")
    phases = {view.key: view.phase for view in await agent.keepers.inventory()}
    assert phases == {moved.key: AttemptPhase.RUNNING, control.key: AttemptPhase.RUNNING}


async def test_an_attempt_launched_with_an_old_heartbeat_has_the_newest_one_the_keeper_knows(node: Node) -> None:
    agent = await node.open()
    await agent.keepers.set_fence(boottime_us())
    view = await agent.start(node.shell(1, STUBBORN, **fenced(0, SECOND_US)))
    past_us = boottime_us() + SECOND_US * 3 // 2
    await until(lambda: boottime_us() > past_us, "the old deadline")
    assert (await agent.view(view.key)).phase is AttemptPhase.RUNNING


async def test_a_stop_before_the_fence_kills_no_later_than_the_fence(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, STUBBORN, **fenced(0, SOON_US)))
    await agent.output(view, len("ready\n"))
    await agent.keepers.stop(view.key, StopCause.CANCELLED, grace_us=1000 * SECOND_US)
    end = await agent.end(view)
    assert (end.status, end.stop_cause) == (ExitSignal(signal=signal.SIGKILL), StopCause.CANCELLED)


async def test_a_heartbeat_from_the_future_is_refused_and_changes_nothing(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, STUBBORN, **fenced(0, SECOND_US)))
    await agent.keepers.set_fence(boottime_us() + 1000 * SECOND_US)
    assert (await agent.end(view)).stop_cause is StopCause.FENCED


async def test_shutdown_refuses_while_something_runs_and_with_kill_ends_it_by_the_grace_rule(node: Node) -> None:
    agent = await node.open()
    pid = agent.keeper_pid
    view = await agent.start(node.shell(1, OBEDIENT))
    await agent.output(view, len("ready\n"))
    refusal = await agent.keepers.shutdown()
    assert refusal is not None
    assert refusal.reason is RefusalReason.ATTEMPTS_RUNNING
    assert await agent.keepers.shutdown(kill=True) is None
    await until(lambda: not is_alive(pid), "the keeper's end")
    assert not list((node.state_dir / "keepers").iterdir())
    again = await node.open()
    end = (await again.view(view.key)).end
    assert end is not None
    assert (end.status, end.stop_cause) == (ExitCode(code=7), NodeCause.SHUTDOWN)


async def test_shutdown_of_an_idle_keeper_ends_it_and_the_next_agent_starts_another(node: Node) -> None:
    agent = await node.open()
    pid = agent.keeper_pid
    assert await agent.keepers.shutdown() is None
    await until(lambda: not is_alive(pid), "the keeper's end")
    assert (await (await node.open()).run(node.launch(1, "/bin/true")))[0].status == ExitCode(code=0)


async def test_a_terminated_keeper_stops_its_attempts_by_the_grace_rule_and_leaves(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, OBEDIENT))
    await agent.output(view, len("ready\n"))
    pid = agent.keeper_pid
    os.kill(pid, signal.SIGTERM)
    end = await agent.end(view)
    assert (end.status, end.stop_cause) == (ExitCode(code=7), NodeCause.SHUTDOWN)
    await until(lambda: not is_alive(pid), "the keeper's end")

    async def launched() -> bool:
        again = await node.open()
        return (await again.start(node.launch(2, "/bin/true"))).pid is not None

    assert await until_async(launched)


async def test_another_time_limit_holds_whatever_the_agent_does_and_one_that_has_passed_stops_at_once(
    node: Node,
) -> None:
    agent = await node.open()
    hour_us = 3_600 * SECOND_US
    longer = await agent.start(node.shell(1, OBEDIENT, limits=Limits(grace_us=GRACE_US, time_limit_us=SOON_US)))
    shorter = await agent.start(node.shell(2, OBEDIENT, limits=Limits(grace_us=GRACE_US)))
    for _ in range(2):  # again, it changes nothing
        assert await agent.keepers.set_time_limit(longer.key, hour_us) is None
        assert await agent.keepers.set_time_limit(shorter.key, SOON_US) is None
    assert ((await agent.view(longer.key)).time_limit_us, (await agent.view(shorter.key)).time_limit_us) == (
        hour_us,
        SOON_US,
    )
    await agent.keepers.close()
    await until(lambda: not is_alive(shorter.pid or 0), "the end of the one that was limited")
    assert is_alive(longer.pid or 0)
    again = await node.open()
    assert (await again.end(shorter)).stop_cause is StopCause.TIME_LIMIT
    assert (await again.view(longer.key)).time_limit_us == hour_us
    past_us = (longer.started_us or 0) + SOON_US
    await until(lambda: boottime_us() > past_us, "the limit that it was launched with")
    assert is_alive(longer.pid or 0)
    assert await again.keepers.set_time_limit(longer.key, 1) is None
    end = await again.end(longer)
    assert (end.stop_cause, end.status) == (StopCause.TIME_LIMIT, ExitCode(code=7))
    assert await again.keepers.set_time_limit(longer.key, None) is None, "what has ended stays so"
    unknown = await again.keepers.set_time_limit(RankKey(JobId(99), 1, 0), 1)
    assert unknown is not None and unknown.reason is RefusalReason.UNKNOWN_ATTEMPT
    absurd = await again.keepers.set_time_limit(longer.key, 0)
    assert absurd is not None and absurd.reason is RefusalReason.BAD_REQUEST
