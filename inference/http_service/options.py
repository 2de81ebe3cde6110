"""What the command line of a replica says: `--http-service … -- PROGRAM ARG…`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from gpufleet.errors import invalid

from ..options import add_joining_flags

CONCURRENCY_MAX = 10_000
PATH_CHARS_MAX = 1_000
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PATH = re.compile(r"/[!-~]*")


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = argparse.ArgumentParser(
        prog="gpuctl worker --http-service",
        usage="%(prog)s --name NAME [FLAG]... -- PROGRAM [ARG]...",
        description="Run a program with an HTTP port as a replica. $PORT in its arguments is the port to listen on, on "
        "127.0.0.1. SIGTERM ends the program, and SIGKILL 5 s later.",
    )
    flags.add_argument("--http-service", action="store_true", help="serve a program in place of a model")
    flags.add_argument("--name", metavar="NAME", required=True, help="the model's name")
    flags.add_argument(
        "--port-env", metavar="NAME", default="PORT", help="the variable with the program's port (default PORT)"
    )
    flags.add_argument(
        "--ready", metavar="PATH", default="", help="it is ready while this answers 200 to 399; default: an open port"
    )
    flags.add_argument(
        "--concurrency", metavar="N", type=int, default=64, help="requests that it takes at a time (default 64)"
    )
    flags.add_argument(
        "--container-port", metavar="N", type=int, default=0, help="the port on which it listens in its container"
    )
    # What an agent says beside them, which runs the program in a container: PROGRAM only carries that.
    flags.add_argument("--program-port", type=int, default=0, help=argparse.SUPPRESS)
    flags.add_argument("--program-state", type=Path, help=argparse.SUPPRESS)
    add_joining_flags(flags, port="default: 8001, or the next free one; 0: any")
    return flags


def read(words: Sequence[str]) -> argparse.Namespace:
    """The flags, and the program behind `--` as `program`. Raises INVALID_ARGUMENT."""
    at = list(words).index("--") if "--" in words else len(words)
    given = parser().parse_args(words[:at])
    given.program = list(words[at + 1 :])
    given.model = ""  # which other workers have
    if not given.program:
        raise invalid("PROGRAM", "is missing", next_step="Write it behind --, as in: -- python -m http.server '$PORT'")
    if not VARIABLE.fullmatch(given.port_env):
        raise invalid("--port-env", f'"{given.port_env}" is no name of a variable')
    if given.ready and not (PATH.fullmatch(given.ready) and len(given.ready) <= PATH_CHARS_MAX):
        raise invalid("--ready", f'"{given.ready}" is no path such as /health')
    if not 1 <= given.concurrency <= CONCURRENCY_MAX:
        raise invalid("--concurrency", f"must be 1 to {CONCURRENCY_MAX:,}")
    if (given.program_port == 0) != (given.program_state is None):
        raise invalid("--program-port", "and --program-state belong together; one of them is missing")
    if given.container_port and not given.program_port:
        raise invalid("--container-port", "is for an agent that runs the program in a container")
    return given
