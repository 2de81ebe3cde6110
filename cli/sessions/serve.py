"""`serve`: let the fleet serve a model to people."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Argument, Exit, Option
from ..options import Printing
from .serve_options import PredictOptions, ProgramOptions, TurnOptions, WorkerOptions


def serve(
    model: Annotated[
        str, Argument(metavar="MODEL", help="package.module:Class, test-pattern or canvas; of a program, its name.")
    ],
    worker: WorkerOptions,
    turns: TurnOptions,
    program: ProgramOptions,
    predict: PredictOptions,
    options: Printing,
    argv: Annotated[
        list[str] | None,
        Argument(metavar="-- PROGRAM ARG…", help="A program with an HTTP port to serve in place of a class."),
    ] = None,
    name: Annotated[
        str | None, Option("--name", "-n", metavar="NAME", help="What people call it; else the class's name.")
    ] = None,
    no_wait: Annotated[bool, Option("--no-wait", help="Do not stay until a worker is ready.")] = False,
    update: Annotated[
        bool,
        Option("--update", help="Change what is named of a model that is served, and nothing else."),
    ] = False,
    rollback: Annotated[
        bool, Option("--rollback", help="Serve what was served before, with the numbers of now.")
    ] = False,
    in_place: Annotated[
        bool,
        Option("--in-place", help="With no room for both, let a worker go before its successor is ready: people wait."),
    ] = False,
    stop: Annotated[bool, Option("--stop", help="End the model: its sessions, and its workers.")] = False,
) -> None:
    """Serve a model: the fleet starts its workers, as many as people need.

    Stays until a worker is ready, or says why the model cannot be loaded. To serve it again changes it: numbers, --min
    and --max at once; where its workers are started otherwise, new ones take over one after another, and an old one
    goes when its successor is ready. If those fail, the old ones stay. See it with gpuctl models, what its workers
    write with gpuctl logs --model NAME. For instance: gpuctl serve canvas --gpus 1 --max 4 --model-arg steps=32

    Behind -- stands any program with an HTTP port, which the gateway then serves under /m/MODEL/:
    gpuctl serve chat --gpus 1 --ready /health --min 0 --max 4 -- python -m my.server --port '$PORT'

    With --predict the class answers requests by the Open Inference Protocol under /m/NAME/, see docs/predict.md:
    gpuctl serve digits:Digits --predict --gpus 1 --max 4 --model-arg weights=digits.pt
    """
    from gpufleet.errors import invalid

    from .serving import request_of, serve_model, stop_model

    settings = options.settings()
    if stop:
        if update or rollback or in_place or argv or _typed(worker, turns, program, predict):
            raise invalid(
                "--stop", "it ends the model, whatever else is said", next_step="Leave out --stop or the rest."
            )
        stop_model(settings, name or model.rpartition(":")[2])
        return
    request = request_of(
        model, name, worker, turns, program, predict, argv or (), update=update, rollback=rollback, in_place=in_place
    )
    if code := serve_model(settings, request, waits=not no_wait):
        raise Exit(code)


def _typed(*groups: object) -> bool:
    """Whether any option of these groups was typed."""
    return any(group != type(group)() for group in groups)
