"""`models` and `sessions`: what is served, who waits, who has a turn."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option

from ..app import Family
from ..options import Connection, Output, spread

sessions = Family("sessions")


def models(output: Output, connection: Connection) -> None:
    """Show the models with their lines and workers."""
    from ..session_calls import show_models
    from ..settings import resolve

    show_models(resolve(connection, output))


@sessions.callback(invoke_without_command=True)
@spread
def list_sessions(
    invoked: Context,
    output: Output,
    connection: Connection,
    model: Annotated[str, Option("--model", metavar="NAME", help="Only this model's.")] = "",
) -> None:
    """Show who has a turn and who waits."""
    if invoked.invoked_subcommand is not None:
        return
    from ..session_calls import show_sessions
    from ..settings import resolve

    show_sessions(resolve(connection, output), model)


@sessions.subcommand("close")
def close(
    session: Annotated[str, Argument(metavar="SESSION", help="Its id, such as s12.")],
    output: Output,
    connection: Connection,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why; the person is told.")] = "",
) -> None:
    """End somebody's session."""
    from ..session_calls import close_session
    from ..settings import resolve

    close_session(resolve(connection, output), session, reason)
