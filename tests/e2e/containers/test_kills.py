"""Whoever of a job in a container is killed, and when: nothing outlives its attempt, and what can go on does."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from tests.containers.engine import EngineOfTests, EngineProcess, running_engine, skip_without_podman
from tests.e2e.client import Client
from tests.e2e.containers.test_running import (
    CANCELLED,
    FAILED,
    SUCCEEDED,
    containers_of,
    has_written,
    in_container,
    none_is_left,
)
from tests.e2e.fleet import Fleet
from tests.e2e.processes import AgentProcess, until

pytestmark = pytest.mark.nightly

SLEEPS = ("/bin/sh", "-c", "echo ready; while true; do sleep 0.05; done")
WAITS = ("/bin/sh", "-c", "echo ready; while ! test -e /tmp/go; do sleep 0.05; done; echo over")


@pytest.fixture
async def node(fleet: Fleet, engine: EngineOfTests) -> AgentProcess:
    """A node of the test's own, which it may harm."""
    return await fleet.add_node("n1", environment=engine.environment)


@pytest.fixture
def own_engine() -> Iterator[tuple[EngineOfTests, EngineProcess]]:
    """An engine that the test may end and start again."""
    skip_without_podman()
    with tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp") as folder, running_engine(Path(folder)) as both:
        yield both


def runners_of(agent: AgentProcess) -> list[int]:
    """The runners of this agent's containers."""
    return with_words(b"keeper.containers.runner", os.fsencode(agent.data))


def with_words(*words: bytes) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if all(word in command for word in words):
                    found.append(int(process.name))
    return found


def kill(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("whom", ["runner", "supervisor", "keeper", "keeper and agent", "keeper with supervisors"])
async def test_a_container_ends_with_its_attempt_whoever_is_killed(
    fleet: Fleet, node: AgentProcess, engine: EngineOfTests, admin: Client, whom: str
) -> None:
    job = await admin.submit(*SLEEPS, no_requeue=True, **in_container())
    await has_written(admin, job, b"ready")
    (container,) = containers_of(engine, job)
    first = engine.ask("GET", f"/v1.41/containers/{container}/json")["State"]["Pid"]
    if whom == "runner":
        kill(runners_of(node))
    elif whom == "supervisor":
        keepers = set(node.keeper_pids())
        kill([pid for pid in node.keeper_pids(with_supervisors=True) if pid not in keepers])
    else:
        keepers = set(node.keeper_pids(with_supervisors="supervisors" in whom))
        if "agent" in whom:
            node.kill()
        kill(sorted(keepers))
    await until("the container's processes are gone", lambda: not Path(f"/proc/{first}").exists())
    if "agent" in whom:
        node.spawn()
        await fleet.node_is_ready("n1")
    ended = await admin.wait(job, FAILED, SUCCEEDED, CANCELLED)
    assert ended.state == FAILED, ended
    await none_is_left(engine, job)


async def test_a_container_lives_on_without_its_agent_and_is_adopted(
    fleet: Fleet, node: AgentProcess, engine: EngineOfTests, admin: Client
) -> None:
    job = await admin.submit(*WAITS, **in_container())
    await has_written(admin, job, b"ready")
    (container,) = containers_of(engine, job)
    node.kill()
    node.spawn()
    await fleet.node_is_ready("n1")
    assert containers_of(engine, job) == [container]
    _go(engine, container)
    ended = await admin.wait(job, SUCCEEDED, FAILED)
    assert ended.state == SUCCEEDED, ended
    assert len(ended.attempts) == 1
    assert await admin.stdout(job) == b"ready\nover\n"
    await none_is_left(engine, job)


async def test_a_container_that_is_killed_from_outside_ends_its_job(
    node: AgentProcess, engine: EngineOfTests, admin: Client
) -> None:
    job = await admin.submit(*SLEEPS, **in_container())
    await has_written(admin, job, b"ready")
    (container,) = containers_of(engine, job)
    engine.ask("POST", f"/v1.41/containers/{container}/kill?signal=KILL")
    ended = await admin.wait(job, FAILED)
    assert ended.attempts[-1].exit.signal == 9, ended
    await none_is_left(engine, job)


async def test_a_container_that_is_removed_from_outside_ends_its_job(
    node: AgentProcess, engine: EngineOfTests, admin: Client
) -> None:
    job = await admin.submit(*SLEEPS, **in_container())
    await has_written(admin, job, b"ready")
    (container,) = containers_of(engine, job)
    engine.ask("DELETE", f"/v1.41/containers/{container}?force=1")
    ended = await admin.wait(job, FAILED)
    assert ended.attempts[-1].exit.signal == 9 or ended.exit_reason == "CONTAINER_FAILED", ended


async def test_an_engine_that_is_started_anew_ends_no_job(
    fleet: Fleet, own_engine: tuple[EngineOfTests, EngineProcess], admin: Client
) -> None:
    engine, process = own_engine
    await fleet.add_node("n1", environment=engine.environment)
    job = await admin.submit(*WAITS, **in_container())
    await has_written(admin, job, b"ready")
    (container,) = containers_of(engine, job)
    process.end(signal.SIGKILL)
    process.start()
    assert (await admin.job(job)).state == job_pb2.JOB_STATE_RUNNING
    _go(engine, container)
    ended = await admin.wait(job, SUCCEEDED, FAILED)
    assert ended.state == SUCCEEDED, ended
    await none_is_left(engine, job)


async def test_a_container_is_cancelled_while_its_engine_is_away(
    fleet: Fleet, own_engine: tuple[EngineOfTests, EngineProcess], admin: Client
) -> None:
    engine, process = own_engine
    await fleet.add_node("n1", environment=engine.environment)
    job = await admin.submit(*SLEEPS, **in_container())
    await has_written(admin, job, b"ready")
    (container,) = containers_of(engine, job)
    first = engine.ask("GET", f"/v1.41/containers/{container}/json")["State"]["Pid"]
    process.end(signal.SIGKILL)
    try:
        await admin.cancel(job)
        await until("the container's processes are gone", lambda: not Path(f"/proc/{first}").exists())
    finally:
        process.start()
    await admin.wait(job, CANCELLED)
    await none_is_left(engine, job)


def _go(engine: EngineOfTests, container: str) -> None:
    """Let a command that waits go on."""
    first = engine.ask("GET", f"/v1.41/containers/{container}/json")["State"]["Pid"]
    Path(f"/proc/{first}/root/tmp/go").touch()
