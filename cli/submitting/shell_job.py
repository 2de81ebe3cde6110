"""The job of `gpuctl shell`: what it runs, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.requests import request_of

from ..attaching.keyboard import STDIN, STDOUT
from ..attaching.terminal import has_terminal
from .submission import refuse_many

SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
"""The shell of the node, not that of the submitter's machine, which the node may not have."""

SHELL_NAME = "shell"

GRACE_SECONDS = 5
"""A shell that waits for a command does not end by SIGTERM; what runs in its foreground gets this long."""


def shell_request(options: JobOptions, command: Sequence[str]) -> scheduler_pb2.SubmitRequest:
    """The request for a shell, or another command, with a terminal. Raises INVALID_ARGUMENT without one here."""
    if not has_terminal(STDIN, STDOUT):
        raise invalid(
            "gpuctl shell",
            "it needs a terminal, and standard input or output is none",
            next_step="Pipe commands into: gpuctl run -i -- sh",
        )
    request = request_of(options, command or SHELL, request_id=None, dry_run=False)
    refuse_many(request)
    spec = request.specs[0]
    spec.input = job_pb2.INPUT_MODE_TERMINAL
    spec.no_requeue = True
    if not command:
        spec.name = spec.name or SHELL_NAME
        if options.grace is None:
            spec.grace.FromSeconds(GRACE_SECONDS)
    return request
