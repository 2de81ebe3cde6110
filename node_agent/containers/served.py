"""A replica of a served program in a container: what its command says, and the worker that stands before it.

Gateways reach a worker that this node's own interpreter runs (`gpufleet.inference`, with --http-service), and that
reaches the program on a port of loopback. Where the program listens on a port of its own (--container-port), its
container has a network of its own, and the engine publishes that port there; else it listens on the port of loopback
itself, as any program of the node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.net.program_ports import with_port
from gpufleet.security.tokens import TOKEN_VARIABLE

from ..core.launch import Process, RefusalReason
from .engine import ContainerTrouble

WORKER = ("gpuctl", "worker", "--http-service")
"""How the command of such a replica begins; behind it come flags, "--", and what the image is run with."""

PORT_FLAG, VARIABLE_FLAG = "--container-port", "--port-env"

TICKET_SECRET_VARIABLE = "GPUFLEET_TICKET_SECRET"
SECRETS = (TOKEN_VARIABLE, TICKET_SECRET_VARIABLE)
"""What a worker proves itself by to its scheduler and to gateways. No program is told: who has it is the worker."""

TOLD = (*SECRETS, "GPUFLEET_JOB_ID", "GPUFLEET_ATTEMPT", "TRACEPARENT")
"""What the worker finds of the job's environment. Nothing else of it: the worker runs as the agent does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A replica's command: the worker's `flags`, and the `words` that its image is run with, maybe none.

    `variable` is what tells the program its port. `container_port` is where it listens in a network of its own; 0: on
    the node's, where it is told.
    """

    flags: tuple[str, ...]
    words: tuple[str, ...]
    variable: str
    container_port: int

    def process_in_container(self, process: Process, port: int) -> Process:
        """What runs in its container, where it is reached on this port of the node."""
        listens = self.container_port or port
        env = {name: value for name, value in process.env.items() if name not in SECRETS}
        return replace(
            process, argv=with_port(self.words, self.variable, listens), env={**env, self.variable: str(listens)}
        )

    def worker(self, carrier: Process, port: int, job_env: Mapping[str, str], way: Mapping[str, str]) -> Process:
        """The worker, which starts as its program what carries the container. `way` is that to the scheduler."""
        assert carrier.container is not None, "it carries one"
        own = {"PATH": os.defpath, "LANG": "C.UTF-8", **{name: job_env[name] for name in TOLD if name in job_env}}
        told = ("--program-port", str(port), "--program-state", carrier.container.state)
        begin = (sys.executable, "-P", "-m", "gpufleet.inference", "--http-service")
        return replace(
            carrier,
            argv=(*begin, *self.flags, *told, "--", *carrier.argv),
            env={**own, **way},
            container=replace(carrier.container, has_worker=True),
        )


def served_of(argv: Sequence[str]) -> Served:
    """Read the command of a replica. Errors: ContainerTrouble CONTAINER_FAILED for any other command."""
    if tuple(argv[: len(WORKER)]) != WORKER or "--" not in argv:
        why = "the command of a served program in a container is gpuctl worker --http-service FLAG... -- ARG..."
        raise ContainerTrouble(RefusalReason.CONTAINER_FAILED, why)
    end = list(argv).index("--")
    flags = tuple(argv[len(WORKER) : end])
    return Served(
        flags=flags,
        words=tuple(argv[end + 1 :]),
        variable=_value(flags, VARIABLE_FLAG) or "PORT",
        container_port=int(_value(flags, PORT_FLAG) or "0"),
    )


def _value(flags: Sequence[str], flag: str) -> str:
    """What stands behind a flag; empty without it."""
    pairs = dict(zip(flags[::2], flags[1::2], strict=False))
    return pairs.get(flag, "")
