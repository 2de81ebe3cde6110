"""`serve`: let the fleet serve a model to people."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit, Option

from ..options import Connection, Output
from ..serve_options import TurnOptions, WorkerOptions


def serve(
    model: Annotated[str, Argument(metavar="MODEL", help="package.module:Class, or test-pattern or canvas.")],
    worker: WorkerOptions,
    turns: TurnOptions,
    output: Output,
    connection: Connection,
    name: Annotated[
        str | None, Option("--name", "-n", metavar="NAME", help="What people call it; else the class's name.")
    ] = None,
    no_wait: Annotated[bool, Option("--no-wait", help="Do not stay until a worker is ready.")] = False,
    update: Annotated[
        bool, Option("--update", help="Change the numbers of the line and the turn that are named, and nothing else.")
    ] = False,
    stop: Annotated[bool, Option("--stop", help="End the model: its sessions, and its workers.")] = False,
) -> None:
    """Serve a model: the fleet starts its workers, as many as people need.

    Stays until a worker is ready, or says why the model cannot be loaded. To serve it again changes it: numbers, --min
    and --max at once; what its workers are started with, for new workers only. See it with gpuctl models, what its
    workers write with gpuctl logs --model NAME. For instance: gpuctl serve canvas --gpus 1 --max 4 --model-arg steps=32
    """
    from gpufleet.errors import invalid

    from ..serving import request_of, serve_model, stop_model
    from ..settings import resolve

    settings = resolve(connection, output)
    if stop:
        if update or worker != WorkerOptions() or turns != TurnOptions():
            raise invalid(
                "--stop", "it ends the model, whatever else is said", next_step="Leave out --stop or the rest."
            )
        stop_model(settings, name or model.rpartition(":")[2])
        return
    request = request_of(model, name, worker, turns, update=update)
    if code := serve_model(settings, request, waits=not no_wait):
        raise Exit(code)
