"""What `config certificate` does: an authority and a certificate for this machine's scheduler."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from gpufleet.config.merged import load_program
from gpufleet.config.paths import program_config_file
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.addresses import DEFAULT_PORT, parse_address
from gpufleet.net.certificates import SERVER_LIFETIME, make_certificates, make_client_certificate
from gpufleet.net.tls import IDENTITY_KINDS

from .. import screen

ALWAYS = ("localhost", "127.0.0.1", "::1")
"""The scheduler's own machine speaks to it by these."""


def make(hosts: Sequence[str], folder: Path | None) -> None:
    """Make them, and say what to start and what to copy. An authority that is there already is used again."""
    named = [parse_address(host).host for host in hosts] or [socket.gethostname()]
    where = folder.expanduser().absolute() if folder is not None else _scheduler_data() / "tls"
    try:
        files = make_certificates(where, list(dict.fromkeys((*named, *ALWAYS))))
    except OSError as problem:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"{where} cannot be written: {problem.strerror}",
            next_step="Give a folder that this account can write, with --dir DIR.",
        ) from None
    screen.print_lines(
        [
            f"The certificate is for {', '.join(named)}, and valid for {SERVER_LIFETIME.days} days.",
            "Start the scheduler with:",
            f"  gpuctl scheduler --host 0.0.0.0 --tls-cert {files.cert_file} --tls-key {files.key_file}",
            "Every other machine needs a copy of this file, which is no secret:",
            f"  {files.ca_file}",
            "and names it:",
            f"  gpuctl agent --scheduler {named[0]}:{DEFAULT_PORT} --token-file agent.token --ca-file ca.pem",
        ]
    )


def make_of_client(identity: str, hosts: Sequence[str], folder: Path | None) -> None:
    """Make a client's certificate, and say what to do with it."""
    kind, colon, name = identity.partition(":")
    known = kind in IDENTITY_KINDS and (bool(NAME.fullmatch(name)) if kind != "job" else not colon)
    if not known or hosts:
        why = "goes without hosts" if hosts else f'"{identity}" names nobody'
        step = "Write it as node:gpu1, gateway:edge, worker:w1, user:ann, or job, and leave hosts out."
        raise invalid("--client", why, next_step=step)
    where = folder.expanduser().absolute() if folder is not None else _scheduler_data() / "tls"
    try:
        file = make_client_certificate(where, identity)
    except OSError as problem:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"{where} cannot be written: {problem.strerror}",
            next_step="Give a folder that this account can write, with --dir DIR.",
        ) from None
    screen.print_lines(
        [
            f"The certificate of {identity} is valid for {SERVER_LIFETIME.days} days. It is with its key in:",
            f"  {file}",
            "Move that file to where it is used, keep it at mode 0600, and name it with --client-cert-file.",
            f"The scheduler asks for such certificates with tls.client_ca_file = {where / 'ca.pem'} in scheduler.toml.",
        ]
    )


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


def _scheduler_data() -> Path:
    """The scheduler's data folder, as it would find it itself."""
    resolved = load_program(
        SchedulerSettings,
        "scheduler",
        # Settings that want a certificate may be there before it is: for this question any way to listen will do.
        flags={"host": "127.0.0.1"},
        environment=os.environ,
        file=program_config_file("scheduler"),
        file_is_named=False,
    )
    return resolved.settings.data
