"""How a command declares what can be typed: `name: Annotated[type, Option("--name", …)] = default`, or an Argument.

The words are typer's, which shows the help and tells mistakes by them (`spreading.py`). To declare needs none of it: a
command line without mistakes is read by `plain_call.py`, and typer is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., None])


class Option:
    """An option by its flags; `how` is what typer's Option takes besides: metavar, help, min, max, autocompletion …"""

    def __init__(self, *flags: str, **how: Any) -> None:
        self.flags = flags
        self.how = how


class Argument:
    """A word in its place; `how` is what typer's Argument takes."""

    def __init__(self, **how: Any) -> None:
        self.how = how


class Exit(Exception):
    """The command is over, with this exit code."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(code)
        self.code = code


ENDS_IN_COMMAND = "submitting.job_command.JobCommand"
"""The class of a command that ends in a command line of the job's."""


def of_class(name: str) -> Callable[[Command], Command]:
    """Have typer make a command of this class, by its module in this program, in place of `app.Command`."""

    def note(function: Command) -> Command:
        function.__dict__["command_class"] = name
        return function

    return note
