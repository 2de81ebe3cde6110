"""`ssh` and `ssh-config`: OpenSSH's own client, and all that uses it, into a running job."""

from __future__ import annotations

from typing import Annotated

from ..completion import complete_jobs
from ..declaring import Argument, Exit, Option
from ..options import Connection


def ssh(
    options: Connection,
    job: Annotated[str, Argument(metavar="JOB", help="An id, last, or a name.", autocompletion=complete_jobs)],
    words: Annotated[
        list[str] | None, Argument(metavar="[COMMAND…]", help="A command for the shell there, after --; else a shell.")
    ] = None,
    rank: Annotated[
        int, Option("--rank", metavar="N", min=0, help="Of a job on several nodes, the rank that is entered, 0.")
    ] = 0,
    sshd: Annotated[
        bool | None,
        Option(
            "--sshd/--no-sshd",
            help="Have the job start an sshd, or do without; by default the first where there is one.",
            show_default=False,
        ),
    ] = None,
    proxy: Annotated[
        bool, Option("--proxy", help="Carry ssh's own bytes between the job and standard input and output.")
    ] = False,
) -> None:
    """Enter a running job with the OpenSSH client.

    The job starts the sshd of its node or image as its own account, for this connection. Where there is none, gpuctl
    answers ssh itself, and runs what it asks for as exec does. No port is opened, and no way to the node is needed.
    Keys are made for it, and the job's host key is known beforehand. Options of ssh, scp, rsync and editors: see
    ssh-config.
    For instance: gpuctl ssh 41
    """
    import asyncio
    import os
    import shutil

    from gpufleet.fleet.client import connected
    from gpufleet.fleet.named_jobs import only_id, read_selection

    from .entering_by_ssh import Way, answer, carry, host_of
    from .ssh_keys import no_program

    settings = options.settings()
    with connected(settings) as client:
        job_id = only_id(client, read_selection([job]))
    way = None if sshd is None else Way.SSHD if sshd else Way.HERE
    if proxy:
        serve = answer if way is Way.HERE else carry
        raise Exit(asyncio.run(serve(settings, job_id, rank)))
    program = shutil.which("ssh")
    if program is None:
        raise no_program("ssh")
    host = asyncio.run(host_of(settings, options, job_id, rank, way))
    os.execv(program, [program, *host.as_words(), host.keys.name, *(["--", *words] if words else [])])


def ssh_config(
    options: Connection,
    jobs: Annotated[
        list[str], Argument(metavar="JOB…", help="Running jobs: ids, last, or names.", autocompletion=complete_jobs)
    ],
    install: Annotated[
        bool, Option("--install", help="Write it, in place of what was written before, and have ~/.ssh/config read it.")
    ] = False,
) -> None:
    """Show what ssh is to know of running jobs: job-41.

    Behind it ssh job-41, scp, sftp, rsync and editors that use ssh work on the job, as long as it runs.
    For instance: gpuctl ssh-config --install 41
    """
    import asyncio
    from pathlib import Path

    from gpufleet.fleet.client import connected
    from gpufleet.fleet.named_jobs import only_id, read_selection
    from gpufleet.security.tokens import TOKEN_VARIABLE

    from ..screen import say
    from .entering_by_ssh import host_of
    from .ssh_config import install as install_blocks

    settings = options.settings()
    with connected(settings) as client:
        ids = [only_id(client, read_selection([job])) for job in jobs]
    hosts = [asyncio.run(host_of(settings, options, job_id, 0)) for job_id in ids]
    blocks = "\n".join(host.as_block() for host in hosts)
    if not install:
        print(blocks, end="")
        return
    path = install_blocks(blocks, Path.home())
    say(f"{path} is read by ssh now; enter with: ssh {hosts[0].keys.name}")
    if (token := settings.token()) is not None and token.origin == TOKEN_VARIABLE:
        say(f"ssh needs {TOKEN_VARIABLE} wherever it is typed, as the token is not written there; a file goes along:")
        say(f"  gpuctl ssh-config --install --token-file FILE {' '.join(jobs)}")
