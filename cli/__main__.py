"""The program: `gpuctl` and `python -m gpufleet.cli`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpufleet.fleet.exit_codes import OWN_FAILURE
from gpufleet.net.grpc_import import import_grpc_lightly

from . import errors
from .declaring import Exit
from .menu import MODULES
from .plain_call import COMPLETING, plain_call


def main() -> NoReturn:
    """Run gpuctl with the process's own arguments.

    Leaves without the interpreter's tidying up, which costs a sixth of a short command's time and can hang on a
    connection that hangs; all that is ours is closed and written by then.
    """
    _lead_closed_streams_nowhere()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _lead_closed_streams_nowhere() -> None:
    """Open what the caller closed, as `>&-` does: a connection would get its number, and what is written to it."""
    nowhere = Path(os.devnull)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, nowhere.open(mode))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and answer its exit code."""
    import_grpc_lightly()
    command = _command_of(arguments)
    try:
        code = _done(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return errors.INTERRUPTED
    except Exception as problem:
        return _failed(errors.first_of(problem), command, arguments)


def _done(arguments: Sequence[str]) -> int:
    """Do what is typed."""
    try:
        call = plain_call(arguments)
        if call is not None:
            call()
            return 0
        if COMPLETING in os.environ:
            _do_without_rich()
        from .app import command_line

        code = command_line().main(args=list(arguments), prog_name="gpuctl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Exit as end:
        return end.code


def _do_without_rich() -> None:
    # typer would draw each help with it, which takes as long to import as all else, and breaks at a terminal's width
    # what a shell reads line by line. It does without where rich is not installed.
    sys.modules["rich"] = None  # type: ignore[assignment]  # as the import system says that there is no such module


TAKE_A_WORD = ("--scheduler", "--context", "--token-file")
"""Options that may stand before the command."""


def _command_of(arguments: Sequence[str]) -> str:
    """The command's name; read from the words, for also words that do not parse can fail."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return next((word for before, word in pairs if word in MODULES and before not in TAKE_A_WORD), "")


def _failed(problem: Exception, command: str, arguments: Sequence[str]) -> int:
    match problem:
        case BrokenPipeError() | errors.ReaderLeft():
            _let_go_of_stdout()
            return errors.BROKEN_PIPE
        case OSError(errno=number, filename=None) if number in errors.FULL:
            # Files of our own are told by whoever writes them; what has no name is where the output goes.
            _let_go_of_stdout()
            errors.report(errors.unwritable(problem, command), command, as_json=_wants_json(arguments))
            return OWN_FAILURE if command in errors.COMMANDS_WITH_THE_JOBS_CODE else errors.FAILED
        case errors.Declined():
            print(f"gpuctl: {problem}", file=sys.stderr)
            return errors.FAILED
        case _:
            errors.report(problem, command, as_json=_wants_json(arguments))
            return errors.exit_code(problem, command)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether failures are wanted as JSON; read from the words, for also words that do not parse can fail."""
    own = list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)
    given = os.environ.get("GPUCTL_OUTPUT", "")
    for word, following in zip(own, [*own[1:], ""], strict=False):
        if word in ("-o", "--output"):
            given = following
        elif word.startswith("--output="):
            given = word.partition("=")[2]
        elif word.startswith("-o") and not word.startswith("--"):
            given = word[2:]
    return given in ("json", "jsonl")


def _let_go_of_stdout() -> None:
    # The interpreter flushes stdout when it ends, which would complain about the broken pipe once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
