"""`models` and `sessions`: what is served and by which workers, who waits, who has a turn."""

from __future__ import annotations

from typing import Annotated

from typer import Context

from ..app import Family
from ..completion import complete_models
from ..declaring import Argument, Option
from ..options import Printing
from ..spreading import spread

models = Family("models")
sessions = Family("sessions")

Model = Annotated[str, Option("--model", metavar="NAME", help="Only this model's.", autocompletion=complete_models)]


@models.callback(invoke_without_command=True)
@spread
def list_models(
    invoked: Context,
    options: Printing,
    model: Annotated[
        str, Option("--model", metavar="NAME", help="Only this model.", autocompletion=complete_models)
    ] = "",
) -> None:
    """Show the models with their lines and workers.

    -o wide shows each worker, and who may join.
    """
    if invoked.invoked_subcommand is not None:
        return
    from .session_calls import show_models

    show_models(options.settings(), model)


@models.subcommand("drain")
def drain(
    worker: Annotated[
        str, Argument(metavar="WORKER", help="Its job's id, or the beginning of its own: see models -o wide.")
    ],
    options: Printing,
    model: Model = "",
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why, for the story of its job.")] = "",
) -> None:
    """Give a worker no new turns; it ends after its last one.

    One whose model is not loaded is stopped at once. Another worker is started where the model needs it.
    """
    from .session_calls import drain_worker

    drain_worker(options.settings(), worker, model, reason)


@sessions.callback(invoke_without_command=True)
@spread
def list_sessions(
    invoked: Context,
    options: Printing,
    model: Model = "",
) -> None:
    """Show who has a turn and who waits."""
    if invoked.invoked_subcommand is not None:
        return
    from .session_calls import show_sessions

    show_sessions(options.settings(), model)


@sessions.subcommand("close")
def close(
    session: Annotated[str, Argument(metavar="SESSION", help="Its id, such as s12.")],
    options: Printing,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why; the person is told.")] = "",
) -> None:
    """End somebody's session."""
    from .session_calls import close_session

    close_session(options.settings(), session, reason)
