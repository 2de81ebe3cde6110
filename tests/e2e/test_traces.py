"""A job's trace goes from gpuctl through submit, decide, commit and launch into the job itself, and on to its exit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.metrics.receiver import Receiver, Step, receiving, receiving_http

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SUBMITTER = f"00-{TRACE_ID}-b7ad6b7169203331-01"

WHOLE = {
    ("gpufleet-gpuctl", "gpuctl submit"): None,
    ("gpufleet-scheduler", "submit"): ("gpufleet-gpuctl", "gpuctl submit"),
    ("gpufleet-scheduler", "decide"): ("gpufleet-scheduler", "submit"),
    ("gpufleet-scheduler", "commit"): ("gpufleet-scheduler", "decide"),
    ("gpufleet-scheduler", "launch"): ("gpufleet-scheduler", "submit"),
    ("gpufleet-agent", "launch"): ("gpufleet-scheduler", "launch"),
    ("gpufleet-agent", "spawn"): ("gpufleet-agent", "launch"),
    ("gpufleet-agent", "run"): ("gpufleet-agent", "launch"),
    ("gpufleet-agent", "exit"): ("gpufleet-agent", "launch"),
    ("gpufleet-scheduler", "exit"): ("gpufleet-scheduler", "submit"),
    ("gpufleet-scheduler", "output"): ("gpufleet-scheduler", "exit"),
}
"""Every step of a job's trace, and the one above it."""


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def parents(steps: list[Step]) -> dict[tuple[str, str], set[tuple[str, str] | None]]:
    """What stands above each step."""
    named = {step.id: (step.service, step.name) for step in steps}
    found: dict[tuple[str, str], set[tuple[str, str] | None]] = {}
    for step in steps:
        found.setdefault((step.service, step.name), set()).add(named.get(step.parent))
    return found


async def gpuctl(fleet: Fleet, *arguments: str, **variables: str) -> str:
    """What a command of an admin's prints."""
    known = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gpufleet.cli", *arguments],
            env=clean_environment(fleet.folder, known | variables),
            cwd=fleet.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return await asyncio.to_thread(run)


async def test_one_trace_goes_from_gpuctl_through_every_program_to_the_exit(tmp_path: Path, receiver: Receiver) -> None:
    variables = receiver.variables()
    async with Fleet(tmp_path, environment=variables) as fleet:
        await fleet.add_node(environment=variables)
        job_id = int(await gpuctl(fleet, "submit", "--", "sh", "-c", "echo $TRACEPARENT", **variables))
        async with fleet.client() as person:
            await person.wait(job_id)
            (told,) = (await person.stdout(job_id)).decode().split()

        def steps() -> list[Step]:
            return receiver.trace(told[3:35])

        await until("every step is told", lambda: set(parents(steps())) >= set(WHOLE))
        above = parents(steps())
        assert all(above[step] >= {parent} for step, parent in WHOLE.items()), above
        # What decided and stored the end stands below the exit.
        assert above["gpufleet-scheduler", "decide"] == {
            ("gpufleet-scheduler", "submit"),
            ("gpufleet-scheduler", "exit"),
        }
        by_name = {(step.service, step.name): step for step in steps()}
        assert told[36:52] == by_name["gpufleet-agent", "launch"].id
        run, exit_ = by_name["gpufleet-agent", "run"], by_name["gpufleet-scheduler", "exit"]
        assert run.begin_ns <= run.end_ns <= exit_.end_ns and exit_.labels["finished"] is True
        assert {step.labels["job"] for step in steps() if "job" in step.labels} == {job_id}


async def test_over_http_a_trace_arrives_as_well(tmp_path: Path) -> None:
    async with receiving_http() as receiver:
        variables = receiver.variables(http=True)
        async with Fleet(tmp_path, environment=variables) as fleet:
            await fleet.add_node(environment=variables)
            code = await gpuctl(fleet, "run", "--", "true", TRACEPARENT=SUBMITTER, **variables)
            assert code == ""
            wanted = {("gpufleet-gpuctl", "gpuctl run"), ("gpufleet-scheduler", "exit"), ("gpufleet-agent", "exit")}
            await until("the trace is told", lambda: wanted <= set(parents(receiver.trace(TRACE_ID))))
            root = next(step for step in receiver.trace(TRACE_ID) if step.name == "gpuctl run")
            assert root.parent == SUBMITTER.split("-")[2]


async def test_the_end_of_a_job_is_told_by_an_agent_that_was_started_anew(tmp_path: Path, receiver: Receiver) -> None:
    variables = receiver.variables()
    async with Fleet(tmp_path, environment=variables) as fleet:
        agent = await fleet.add_node(environment=variables)
        async with fleet.client() as person:
            spec = person.spec("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
            spec.trace_context = SUBMITTER
            job_id = (await person.submit_specs([spec])).first_job_id
            launched = ("gpufleet-agent", "launch")
            await until("it is launched", lambda: launched in parents(receiver.trace(TRACE_ID)))
            agent.kill()
            agent.spawn()
            (fleet.work / "go").touch()
            await person.wait(job_id)
        ended = {("gpufleet-agent", "run"), ("gpufleet-agent", "exit")}
        await until("its end is told", lambda: ended <= set(parents(receiver.trace(TRACE_ID))))
        above = parents(receiver.trace(TRACE_ID))
        assert above["gpufleet-agent", "run"] == {launched}


async def test_without_otel_variables_a_job_still_gets_the_submitters_trace(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.add_node()
        async with fleet.client() as person:
            spec = person.spec("sh", "-c", "echo $TRACEPARENT")
            spec.trace_context = SUBMITTER
            job_id = (await person.submit_specs([spec])).first_job_id
            await person.wait(job_id)
            assert (await person.stdout(job_id)).decode().strip() == SUBMITTER


async def test_with_the_sampler_off_nothing_is_told_and_the_job_runs(tmp_path: Path, receiver: Receiver) -> None:
    variables = receiver.variables() | {"OTEL_TRACES_SAMPLER": "always_off"}
    async with Fleet(tmp_path, environment=variables) as fleet:
        await fleet.add_node(environment=variables)
        async with fleet.client() as person:
            await person.run("true")
        # Metrics are not sampled: once those of the job are here, its spans would be, too.
        await until("its end is counted", lambda: receiver.newest("gpufleet.job.ends", outcome="succeeded"))
        assert not receiver.steps
