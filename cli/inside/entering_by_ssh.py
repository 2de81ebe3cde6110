"""A job that is entered by ssh: what ssh is to know of it, and the way that its bytes take."""

from __future__ import annotations

import sys
from dataclasses import fields

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import connected_async
from gpufleet.fleet.settings import Settings

from ..attaching.keyboard import STDOUT
from ..options import Connection
from .executing import Execution, Wanted, run_in_job
from .ssh_config import SshHost
from .ssh_keys import HostKeys, host_keys, own_key
from .ssh_server import SCRIPT, first_bytes

GPUCTL = str(__package__).rpartition(".")[0]
"""The package that is run again as ssh's ProxyCommand."""


def keys_of(settings: Settings, job_id: int, rank: int) -> HostKeys:
    """The host key of a job, by the name that it has for ssh."""
    return host_keys(str(settings.address), f"job-{job_id}-{rank}" if rank else f"job-{job_id}")


async def host_of(settings: Settings, options: Connection, job_id: int, rank: int) -> SshHost:
    """What ssh is to know of a job. The job is asked who it is. Errors: those of a command in it."""
    words = (sys.executable, "-P", "-m", GPUCTL, "ssh", "--proxy", *_typed(options), "--rank", str(rank), str(job_id))
    user = await _account(settings, job_id, rank)
    return SshHost(keys=keys_of(settings, job_id, rank), own_key=own_key(), user=user, proxy=words)


async def carry(settings: Settings, job_id: int, rank: int) -> int:
    """Start sshd in the job, and pass on what comes and goes."""
    public = own_key().with_suffix(".pub").read_text()
    first = first_bytes(public, keys_of(settings, job_id, rank).private.read_text())
    wanted = Wanted(argv=("/bin/sh", "-c", SCRIPT), rank=rank, has_input=True, first=first)
    return await run_in_job(settings, job_id, wanted)


async def _account(settings: Settings, job_id: int, rank: int) -> str:
    said = bytearray()

    async def take(fd: int, data: bytes) -> None:
        if fd == STDOUT:
            said.extend(data)

    async with connected_async(settings) as client:
        await Execution(client, job_id, Wanted(argv=("id", "-un"), rank=rank), take).run()
    name = said.decode(errors="replace").strip()
    if not name or name.isdecimal():
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"the account of job {job_id} has no name on its node, or in its image, and sshd lets in none without",
            next_step=f"Use: gpuctl exec {job_id} -- sh",
        )
    return name


def _typed(options: Connection) -> list[str]:
    """The options of the connection as they were typed."""
    words: list[str] = []
    for field in fields(Connection):
        value = getattr(options, field.name)
        if value is not None and value is not False:
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words
