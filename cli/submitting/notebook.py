"""`notebook`: Jupyter as a job, at a port of this machine, with its token."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from gpufleet.fleet.submitting.job_options import JobOptions

from ..declaring import Argument, Exit, Option, of_class
from ..following_options import Following

if TYPE_CHECKING:
    from gpufleet.v1 import scheduler_pb2

    from gpufleet.fleet.inside.ports import Pair

NAME = "notebook"
PORTS = range(20_000, 32_000)
"""One of these is the job's, where none is named: below those that a system gives to connections."""

PROGRAM = """\
for program in jupyter-lab jupyter-notebook jupyter-server; do
  command -v "$program" >/dev/null 2>&1 && exec "$program" "$@"
done
echo "gpuctl notebook: there is no Jupyter in PATH on $GPUFLEET_NODE. Install it there (pip install jupyterlab), or \
name where it is: --env PATH=/opt/jupyter/bin:/usr/bin:/bin" >&2
exit 127
"""


@of_class("submitting.job_command.ShellCommand")
def notebook(
    job: JobOptions,
    options: Following,
    arguments: Annotated[
        list[str] | None, Argument(metavar="ARGUMENTS", help="More arguments of Jupyter's, after --.")
    ] = None,
    port: Annotated[
        str | None,
        Option(
            "--port", metavar="PORT[:LOCAL]", help="Where it listens in the job; by default anywhere, and here 8888."
        ),
    ] = None,
    open_: Annotated[
        bool | None, Option("--open/--no-open", help="Open a browser on it; the default where there is a desktop.")
    ] = None,
) -> None:
    """Run Jupyter on a node, and open it in your browser.

    It waits for its turn like any job, and ends with it: Ctrl-C ends the notebook. What --download chooses is then
    brought here. Jupyter must be installed on the node.
    For instance: gpuctl notebook --gpus 1 --upload . --download '*.ipynb'
    """
    import secrets

    from gpufleet.fleet.inside.ports import listening
    from gpufleet.fleet.submitting.input_folder import described
    from gpufleet.fleet.submitting.requests import request_of
    from gpufleet.fleet.submitting.uploading import upload_what_goes_along

    from ..screen import NOTICES
    from .estimating import filled
    from .staying import stay
    from .submission import refuse_many

    settings = options.settings()
    job, folder = described(settings, filled(settings, job))
    pair, token = _pair(port), secrets.token_urlsafe(24)
    request = request_of(job, _command(pair.port, arguments or ()), request_id=None, dry_run=False)
    refuse_many(request)
    _as_notebook(request, job, token)
    with listening([pair]) as ports:
        if job.file or folder is not None:
            upload_what_goes_along(
                settings, job.file or (), folder, request.specs[0], NOTICES, settings.config.settings.shared_root
            )
        opens = has_desktop(os.environ, sys.platform) if open_ is None else open_
        page = f"?token={token}"
        raise Exit(stay(settings, request, ports, page=page, opens=opens))


def _command(port: int, arguments: tuple[str, ...] | list[str]) -> list[str]:
    """Jupyter as it is installed there. It answers nobody but the job's own node, and asks nothing when it ends."""
    own = [
        "--no-browser",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.answer_yes=True",
        "--ServerApp.allow_root=True",
    ]
    return ["/bin/sh", "-c", PROGRAM, NAME, *own, *arguments]


def _as_notebook(request: scheduler_pb2.SubmitRequest, job: JobOptions, token: str) -> None:
    spec = request.specs[0]
    spec.name = job.name or NAME
    spec.env["JUPYTER_TOKEN"] = token
    # What is open in it is gone with its node: a second one would wait for a person who looks at the first.
    spec.no_requeue = True


def _pair(port: str | None) -> Pair:
    import secrets

    from gpufleet.fleet.inside.ports import Pair, read_ports

    if port is None:
        return Pair(PORTS.start + secrets.randbelow(len(PORTS)), _free_here())
    (pair,) = read_ports([port])
    return pair


def _free_here() -> int:
    """Jupyter's usual port where it is free here, else 0 for any."""
    import socket

    try:
        with socket.create_server(("127.0.0.1", USUAL_PORT)):
            return USUAL_PORT
    except OSError:
        return 0


USUAL_PORT = 8888


def has_desktop(environment: Mapping[str, str], platform: str) -> bool:
    """Whether a browser that is opened here can be seen."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return platform in ("darwin", "win32") or any(environment.get(name) for name in names)
