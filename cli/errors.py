"""How failures read, and the exit code of each.

A failure is one line on what is wrong and one line on what to type next; in JSON mode it is one JSON object, on
stderr either way. Codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 scheduler unavailable; `run`, `shell`,
`attach`, `wait` and `exec`, whose codes are the job's or its command's, fail with 125.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from gpufleet.errors import (
    GpufleetError,
    InvalidRequestError,
    NotFoundError,
    Reason,
    RefusedError,
    UnavailableError,
    as_lines,
    as_object,
)
from gpufleet.fleet.exit_codes import OWN_FAILURE

if TYPE_CHECKING:
    import typer

FAILED = 1
USAGE = 2
NOT_FOUND = 3
REFUSED = 4
UNAVAILABLE = 5
INTERRUPTED = 130

WIDTH_MIN = 40
"""A terminal that says it is narrower is not believed."""

BROKEN_PIPE = 141
"""What a shell shows for a program that SIGPIPE ended, as it ends `cat` in `cat … | head`."""

COMMANDS_WITH_THE_JOBS_CODE = frozenset({"run", "shell", "attach", "wait", "exec"})

_CODES: tuple[tuple[type[GpufleetError], int], ...] = (
    (InvalidRequestError, USAGE),
    (NotFoundError, NOT_FOUND),
    (RefusedError, REFUSED),
    (UnavailableError, UNAVAILABLE),
)


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a system says of an output that takes no more."""


INSTEAD_OF_AGAIN = {
    "run": "follow the job as said above",
    "submit": "see what was submitted with: gpuctl queue -a",
    "exec": "see what the command did: it is started once more when this is given again",
}
"""What to do after a failed write, where the command given again would start something again."""


class ReaderLeft(Exception):
    """Nobody reads our stdout any more: the end of a pipe has what it wanted."""


class Declined(Exception):
    """A person was asked whether they are sure, and they are not."""


def unwritable(problem: OSError, command: str) -> GpufleetError:
    """The output, which the shell sent to a file, takes no more."""
    why = f"the output cannot be written: {problem.strerror}"
    again = INSTEAD_OF_AGAIN.get(command, "give the command again")
    return GpufleetError(Reason.FILE_NOT_FOUND, why, next_step=f"Make room where it goes, and {again}")


def first_of(problem: Exception) -> Exception:
    """The failure itself: what runs several things at once wraps it in a group."""
    while isinstance(problem, ExceptionGroup):
        problem = problem.exceptions[0]
    return problem


def exit_code(problem: BaseException, command: str) -> int:
    """The exit code of a failure of this command."""
    if isinstance(problem, KeyboardInterrupt):
        return INTERRUPTED
    if command in COMMANDS_WITH_THE_JOBS_CODE:
        return OWN_FAILURE
    if isinstance(problem, GpufleetError):
        if problem.reason is Reason.MODEL_NOT_LOADED:
            return FAILED  # nothing was refused: it was tried
        if problem.reason is Reason.TLS_FAILED:
            return UNAVAILABLE  # nobody was reached who could refuse
        return next((code for kind, code in _CODES if isinstance(problem, kind)), FAILED)
    return USAGE if _is_mistyped(problem) else FAILED


def report(problem: Exception, command: str, *, as_json: bool) -> None:
    """Say on stderr what went wrong and what to type next."""
    if os.environ.get("GPUCTL_TRACEBACK", "") not in ("", "0"):
        import traceback

        traceback.print_exception(problem)
    if as_json:
        import json

        print(json.dumps(_as_object(problem, command), ensure_ascii=False), file=sys.stderr)
        return
    print(_wrapped(f"gpuctl: {_as_text(problem, command)}"), file=sys.stderr)


def _wrapped(text: str) -> str:
    """The lines broken between words where the terminal would break them inside; as they are without a terminal."""
    if not sys.stderr.isatty():
        return text
    import textwrap

    width = max(os.get_terminal_size(sys.stderr.fileno()).columns, WIDTH_MIN)
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    return "\n".join(wrap.fill(line) for line in text.split("\n"))


def _as_text(problem: Exception, command: str) -> str:
    if isinstance(problem, GpufleetError):
        trace = problem.metadata.get("trace_id", "")
        return _without_argument(problem, as_lines(problem)) + (f"\nTrace id: {trace}" if trace else "")
    _, message, next_step = _said_of(problem, command)
    return f"{message}\n{next_step}"


def _without_argument(problem: GpufleetError, text: str) -> str:
    """Without the field's name where it was an argument: `no node is called 'n9'` names it by its value."""
    field = problem.violations[0].field if len(problem.violations) == 1 else ""
    return text.removeprefix(f"{field}: ") if field in ("node", "program.node", "id") else text


def _as_object(problem: Exception, command: str) -> dict[str, Any]:
    if isinstance(problem, GpufleetError):
        said = as_object(problem)
    else:
        reason, message, next_step = _said_of(problem, command)
        said = {"reason": reason, "message": message, "next_step": next_step, "field": "", "fields": [], "metadata": {}}
    return {"error": said | {"exit_code": exit_code(problem, command)}}


def _said_of(problem: Exception, command: str) -> tuple[str, str, str]:
    """The reason, what is wrong, and what to type next."""
    if _is_mistyped(problem):
        return "USAGE", _usage_message(problem), _usage_next_step(problem, command)
    return "INTERNAL", _internal_message(problem), _INTERNAL_NEXT_STEP


def _is_mistyped(problem: BaseException) -> TypeGuard[typer.TyperException]:
    """Whether it is typer that complains; where nobody has imported it, it is not."""
    typer = sys.modules.get("typer")
    return typer is not None and isinstance(problem, typer.TyperException)


def _usage_message(problem: typer.TyperException) -> str:
    message = problem.format_message().replace("\n\t", " ").replace("\n", " ").rstrip(".")
    message = re.sub(r"not a valid int(eger)?( range)?$", "not a whole number", message)
    message = re.sub(r"is not in the range x>=(\d+)$", r"is less than \1", message)
    return message[:1].lower() + message[1:]


def _usage_next_step(problem: typer.TyperException, command: str) -> str:
    if next_step := getattr(problem, "next_step", ""):
        return str(next_step)
    context = getattr(problem, "ctx", None)
    return f"See: {context.command_path if context else f'gpuctl {command}'.rstrip()} --help"


_INTERNAL_NEXT_STEP = "See where with GPUCTL_TRACEBACK=1, and report it with that and the output of: gpuctl version"


def _internal_message(problem: Exception) -> str:
    import secrets

    kind = type(problem).__name__
    return f"internal error [{secrets.token_hex(4)}]: {kind}: {problem}"
