"""`secret`: values that jobs are given, and nobody is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..app import Family
from ..declaring import Argument, Option
from ..options import Printing

secret = Family("secret", "Set, list and remove secrets, which jobs are given with --secret.")

Owner = Annotated[str, Option("--user", metavar="NAME", help="Whose; your own by default. For admins.")]


@secret.subcommand("set")
def set_value(
    name: Annotated[str, Argument(metavar="NAME", help="The secret's name, such as HF_TOKEN.")],
    options: Printing,
    from_file: Annotated[
        Path | None,
        Option("--from-file", metavar="FILE", help="Take the value from a file, as it is, to its last byte."),
    ] = None,
    user: Owner = "",
) -> None:
    """Set a secret. Its value comes from stdin, without the end of its last line, or is asked for without echo.

    It is never an argument, which others could read in `ps` and in the shell's history. Nothing shows it again: jobs
    are given it with --secret NAME when they start. Jobs that run keep the value that they have.
    """
    from .secret_calls import set_secret

    set_secret(options.settings(), name, from_file, user)


@secret.subcommand("list")
def list_all(options: Printing, user: Owner = "") -> None:
    """List your secrets: their names, never their values."""
    from .secret_calls import list_secrets

    list_secrets(options.settings(), user)


@secret.subcommand("rm")
def remove(
    name: Annotated[str, Argument(metavar="NAME", help="The secret's name, from gpuctl secret list.")],
    options: Printing,
    user: Owner = "",
) -> None:
    """Remove a secret. Jobs that wait and name it fail when they start, unless it is set again before."""
    from .secret_calls import remove_secret

    remove_secret(options.settings(), name, user)
