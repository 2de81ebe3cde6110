"""A job that is entered by ssh: what ssh is to know of it, and the way that its bytes take."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path

from gpufleet.config.cli_settings import VARIABLE_PREFIX
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import connected_async
from gpufleet.fleet.inside.executing import execute
from gpufleet.fleet.settings import Settings

from ..options import Connection
from .executing import Wanted, run_in_job
from .ssh_config import SshHost
from .ssh_keys import HostKeys, host_keys, own_key
from .ssh_server import LOOK, SCRIPT, first_bytes

GPUCTL = str(__package__).rpartition(".")[0]
"""The package that is run again as ssh's ProxyCommand."""

RELIED_ON = frozenset({"scheduler", "token_file", "ca_file", "client_cert_file", "insecure"})
"""What a later gpuctl needs, too, where a variable says it now."""

NO_NAME = "job"
"""What an account without a name is called to ssh."""


class Way(Enum):
    """Who answers ssh: an sshd that the job starts, or this program here. The value is the option that says so."""

    SSHD = "--sshd"
    HERE = "--no-sshd"


def keys_of(settings: Settings, job_id: int, rank: int) -> HostKeys:
    """The host key of a job, by the name that it has for ssh."""
    return host_keys(settings.where, f"job-{job_id}-{rank}" if rank else f"job-{job_id}")


async def host_of(settings: Settings, options: Connection, job_id: int, rank: int, way: Way | None = None) -> SshHost:
    """What ssh is to know of a job. The job is asked who it is. Errors: those of a command in it, EXTRA_MISSING."""
    found = await _looked(settings, job_id, rank)
    if way is None:
        way = Way.SSHD if found.has_sshd and found.user else Way.HERE
    if way is Way.HERE:
        _need_asyncssh(job_id)
    proxy = (sys.executable, "-P", "-m", GPUCTL, "ssh", "--proxy", *connection_words(settings, options), way.value)
    words = (*proxy, "--rank", str(rank), str(job_id))
    return SshHost(keys=keys_of(settings, job_id, rank), own_key=own_key(), user=found.user or NO_NAME, proxy=words)


async def answer(settings: Settings, job_id: int, rank: int) -> int:
    """Be the server that ssh speaks with, for what runs in the job. Errors: EXTRA_MISSING."""
    _need_asyncssh(job_id)
    from .ssh_served import answer as answer_ssh

    return await answer_ssh(settings, job_id, rank, keys_of(settings, job_id, rank))


def _need_asyncssh(job_id: int) -> None:
    if importlib.util.find_spec("asyncssh") is None:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"job {job_id} has no sshd that it could start, and what answers ssh without one is not installed here",
            next_step=f"Install it: pip install 'gpufleet[ssh]'. Or use: gpuctl exec {job_id} -- sh",
        )


async def carry(settings: Settings, job_id: int, rank: int) -> int:
    """Start sshd in the job, and pass on what comes and goes."""
    public = own_key().with_suffix(".pub").read_text()
    first = first_bytes(public, keys_of(settings, job_id, rank).private.read_text())
    wanted = Wanted(argv=("/bin/sh", "-c", SCRIPT), rank=rank, has_input=True, first=first)
    return await run_in_job(settings, job_id, wanted)


@dataclass(frozen=True, slots=True)
class _Looked:
    """The name of a job's account, empty for none, and whether it could start an sshd."""

    user: str
    has_sshd: bool


async def _looked(settings: Settings, job_id: int, rank: int) -> _Looked:
    async with connected_async(settings) as client:
        done = await execute(client, job_id, ("/bin/sh", "-c", LOOK), b"", rank)
    if done.problem:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"ssh needs a shell in job {job_id}: {done.problem}",
            next_step=f"Run what its image has: gpuctl exec {job_id} -- PROGRAM",
        )
    user, sshd, *_ = [*done.stdout.decode(errors="replace").split("\n"), "", ""]
    return _Looked("" if user.isdecimal() else user.strip(), bool(sshd.strip()))


def connection_words(settings: Settings, options: Connection) -> list[str]:
    """The options that find the same scheduler as the same person, in whatever folder and terminal ssh is typed.

    That is what was typed, the variables that are set here, and the name of the context, which may not be the one in
    use any more by then. A token that a variable holds itself is a secret, and stays there.
    """
    words: list[str] = []
    for field in fields(Connection):
        value = getattr(options, field.name)
        if field.name == "context":
            value = value or settings.config.context
        elif field.name in RELIED_ON and settings.config.resolved.origins[field.name].startswith(VARIABLE_PREFIX):
            value = getattr(settings.config.settings, field.name)
            value = settings.where if field.name == "scheduler" else value
        if value:
            text = str(value.absolute()) if isinstance(value, Path) else str(value)
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [text])]
    return words
