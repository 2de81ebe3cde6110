"""`doctor --bundle`: findings, versions, state and logs in one archive for a bug report, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.config.paths import config_dir, state_dir
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.finding import Finding
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import counted, format_size

from ..admin.version import own_version
from ..nodes.node_calls import all_nodes
from ..printing import message_object
from .redaction import Redactor, secrets_of

LOG_LINES = 2_000
"""Of each program's log, the newest lines."""

FILE_BYTES_MAX = 1_000_000
"""Of each file of this machine, its end."""

JOBS_MAX = 200
AGENTS_MAX = 20
"""So many agents are asked for their logs."""

NAMED_VARIABLES = (
    "GPUCTL_",
    "GPUFLEET_",
    "OTEL_",
    "CUDA_",
    "NCCL_",
    "NVIDIA_",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "XDG_",
)
PRIVATE_FIELDS = ("argv", "env", "notify", "trace_context")
"""Of a job's spec: they may hold anything, so they are left out as a whole."""

Content = str | dict[str, Any] | list[Any]
"""A text, or what becomes JSON."""

ABOUT = """What gpuctl doctor --bundle packed, for a bug report.

Left out: tokens, private keys, passwords in addresses, the values of environment variables, the commands of jobs
(how many words each has is told), their environments, notifications and output.
Taken out of logs and settings: whatever has the name or the form of a secret.
Still in it: names of machines, accounts, jobs and folders, addresses, and what programs logged.
Read it before you give it away.
"""


def write_bundle(file: Path, settings: Settings, findings: Sequence[Finding], agent_data: Path) -> None:
    """Write the archive, readable by this account only. Raises FILE_NOT_FOUND where it cannot be written."""
    redactor = Redactor([*secrets_of(os.environ), *_own_tokens(settings)])
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    count = 0
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as archive:
            for name, content in contents(settings, findings, agent_data):
                text = redactor.text(content) if isinstance(content, str) else _json(redactor.value(content))
                _add(archive, name, text)
                count += 1
        unfinished.replace(file)
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{file} cannot be written: {problem.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    size = format_size(file.stat().st_size)
    print(f"{file} has {count} files, {size}. Read it before you give it away: tar -xzf {file}", file=sys.stderr)


def contents(settings: Settings, findings: Sequence[Finding], agent_data: Path) -> Iterator[tuple[str, Content]]:
    """The files of the archive, each with its text or what becomes JSON, before secrets are taken out."""
    yield "README.txt", ABOUT
    yield "findings.json", [each.as_object() for each in findings]
    yield "versions.json", versions()
    yield (
        "settings.txt",
        "".join(f"{key} = {value}  # {origin}\n" for key, value, origin in settings.config.resolved.rows()),
    )
    yield "environment.txt", "".join(f"{name}\n" for name in named_variables(os.environ))
    yield from _files_here(agent_data)
    try:
        with connected(settings) as client:
            yield from _from_scheduler(client)
    except GpufleetError as problem:
        yield "scheduler.txt", f"The scheduler could not be asked: {problem.message}\n"


def versions() -> dict[str, Any]:
    """What runs here."""
    installed = {str(each.metadata["Name"]): each.version for each in distributions()}
    return {
        "gpufleet": own_version(),
        "python": sys.version,
        "platform": platform.platform(),
        "installed": dict(sorted(installed.items(), key=lambda item: item[0].lower())),
    }


def named_variables(environment: Mapping[str, str]) -> list[str]:
    """The names of the variables that change how programs behave; their values stay here."""
    return sorted(name for name in environment if name.startswith(NAMED_VARIABLES))


def without_private_fields(job: job_pb2.Job) -> job_pb2.Job:
    """The job without what may hold anything."""
    told = job_pb2.Job()
    told.CopyFrom(job)
    for field in PRIVATE_FIELDS:
        told.spec.ClearField(field)  # type: ignore[arg-type]  # the stub lists the names as literals
    told.spec.argv.append(counted(len(job.spec.argv), "word"))
    return told


def _from_scheduler(client: Client) -> Iterator[tuple[str, Content]]:
    def asked(name: str, ask: Callable[[], Content]) -> tuple[str, Content]:
        """What it answers, or why it does not: one call that is refused must not cost the others."""
        try:
            return name, ask()
        except GpufleetError as problem:
            return f"{name}.txt", f"{problem.message} ({problem.reason.name})\n"

    def server() -> Content:
        return message_object(client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()))

    def queue() -> Content:
        request = scheduler_pb2.QueueRequest(include_finished=True, page_size=JOBS_MAX, omit_env=True)
        answer = client.call(client.scheduler.Queue, request)
        jobs = [without_private_fields(job) for job in answer.jobs]
        return message_object(scheduler_pb2.QueueResponse(jobs=jobs, counts=answer.counts))

    nodes = all_nodes(client)
    yield "nodes.json", message_object(scheduler_pb2.ListNodesResponse(nodes=nodes))
    yield asked("server.json", server)
    yield asked("queue.json", queue)
    yield asked("logs/scheduler.log", lambda: _log(client, "scheduler"))
    for node in [node for node in nodes if node.is_connected][:AGENTS_MAX]:
        yield asked(f"logs/agent-{node.name}.log", lambda name=node.name: _log(client, "agent", name))  # type: ignore[misc]


def _log(client: Client, program: str, node: str = "") -> str:
    request = scheduler_pb2.StreamOutputRequest(tail_lines=LOG_LINES)
    request.program.program = program
    request.program.node = node
    return client.output(request)


def _files_here(agent_data: Path) -> Iterator[tuple[str, str]]:
    """Logs and settings files of this machine's own programs."""
    state = state_dir("scheduler").parent
    folders = {"agent": agent_data, "scheduler": state / "scheduler", "up": state / "up"}
    for program, folder in folders.items():
        for file in sorted([*folder.glob("logs/*.log"), *folder.glob("*.log"), *folder.glob("keeper/**/log")]):
            yield f"here/{program}/{file.relative_to(folder)}", end_of(file)
    for file in sorted(config_dir().glob("*.toml")):
        yield f"here/config/{file.name}", end_of(file)


def end_of(file: Path) -> str:
    """The end of a file; in words where it cannot be read."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - FILE_BYTES_MAX))
            return opened.read(FILE_BYTES_MAX).decode(errors="replace")
    except OSError as problem:
        return f"(cannot be read: {problem.strerror})\n"


def _own_tokens(settings: Settings) -> list[str]:
    try:
        found = settings.token()
    except GpufleetError:  # a token file that cannot be used is among the findings
        return []
    return [found.token] if found else []


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode(errors="replace")
    entry = tarfile.TarInfo(f"gpufleet-bundle/{name}")
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
