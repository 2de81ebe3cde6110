"""Stopping what `up` started, and what becomes of the jobs that run there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.text.cleaning import clean
from gpufleet.text.units import counted

from .folders import Folders, Record, remove_record, write_record
from .starting import STOP_S_MAX, local_client

END_JOBS_S_MAX = 60.0
"""How long cancelled jobs may take before the agent's keeper is told to end them itself."""

REASON = "gpuctl down"
KEEPER_S_MAX = 90.0
POLL_S = 0.2


def running_jobs(record: Record, folders: Folders) -> list[int]:
    """Ids of the jobs that run on the local node; none when the scheduler cannot be asked."""
    if not record.node or not record.running():
        return []
    request = scheduler_pb2.ListNodesRequest(names=[record.node])
    with local_client(record.address, folders) as client:
        try:
            nodes = client.call(client.scheduler.ListNodes, request).nodes
        except GpufleetError:
            return []
    return [job_id for node in nodes for job_id in node.job_ids]


def stop_programs(
    record: Record,
    folders: Folders,
    *,
    ends_jobs: bool,
    say: Callable[[str], None],
    while_waiting: Callable[[], object] = lambda: None,
) -> None:
    """Stop the agent, its keeper unless jobs are kept, and the scheduler; then forget the record."""
    # Only a note for an `up` that comes meanwhile: a disk without room for it must not keep anything running.
    with suppress(OSError):
        write_record(folders.record, replace(record, is_stopping=True))
    jobs = running_jobs(record, folders)
    was_drained = ends_jobs and _drain(record, folders)
    if ends_jobs and jobs:
        say(f"ending {counted(len(jobs), 'running job')}")
        _end_jobs(record, folders, jobs, say, while_waiting)
    for program in reversed(record.programs):
        if program.is_running():
            say(f"stopping the {program.name}")
        if not program.stop(STOP_S_MAX, while_waiting=while_waiting):
            say(f"the {program.name} did not stop by itself and was killed")
        if program.name == "agent":
            if ends_jobs or not jobs:
                _stop_keeper(folders.agent, ends_jobs=ends_jobs, say=say)
            if was_drained:
                _update_node(record, folders, is_draining=False)
    remove_record(folders.record)


def _drain(record: Record, folders: Folders) -> bool:
    """Keep what is queued from starting in the place of what ends; answers whether it was we who did."""
    return bool(record.node and record.running()) and _update_node(record, folders, is_draining=True)


def _update_node(record: Record, folders: Folders, *, is_draining: bool) -> bool:
    request = scheduler_pb2.UpdateNodeRequest(node=record.node, is_draining=is_draining, reason=REASON)
    with local_client(record.address, folders) as client:
        try:
            return client.call(client.scheduler.UpdateNode, request).changed
        except GpufleetError:
            return False


def _end_jobs(
    record: Record,
    folders: Folders,
    jobs: list[int],
    say: Callable[[str], None],
    while_waiting: Callable[[], object],
) -> None:
    """Cancel them and wait for their ends, which nobody learns of where the store has no room, or no agent runs."""
    request = scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(job_ids=jobs), reason=REASON)
    with local_client(record.address, folders) as client:
        try:
            client.call(client.scheduler.Cancel, request)
        except GpufleetError:
            return  # the keeper ends them
    deadline = time.monotonic() + END_JOBS_S_MAX
    while running_jobs(record, folders) and time.monotonic() < deadline:
        if not any(each.name == "agent" for each in record.running()):
            say("the agent had ended before: the keeper ends the jobs, and the next gpuctl up hears of it")
            return
        if why := _store_error(record, folders):
            say(f"the jobs are told to end; that is not stored yet: the scheduler's store takes nothing ({clean(why)})")
            return
        while_waiting()
        time.sleep(POLL_S)


def _store_error(record: Record, folders: Folders) -> str:
    """Why the scheduler can store no record; empty when it can, or cannot be asked."""
    with local_client(record.address, folders) as client:
        try:
            told = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        except GpufleetError:
            return ""
    return "" if told.store_is_healthy else told.store_error


def _stop_keeper(agent_data: Path, *, ends_jobs: bool, say: Callable[[str], None]) -> None:
    """The agent leaves its keeper behind on purpose, for the next agent; here nobody comes."""
    command = [sys.executable, "-P", "-m", "gpufleet.node_agent", "stop-keeper", "--data", str(agent_data)]
    try:
        done = subprocess.run(
            [*command, "--kill"] if ends_jobs else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=KEEPER_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"the keeper of jobs did not leave within {KEEPER_S_MAX:g} s")
        return
    if done.returncode != 0:
        say("the keeper of jobs stays: " + done.stderr.decode(errors="replace").strip())
