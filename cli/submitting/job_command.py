"""Commands that end in a command line of the job's (`gpuctl run -- python train.py`), and its script's options."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import typer

from gpufleet.fleet.submitting.project_file import project_file, project_lines

from ..app import Command

if TYPE_CHECKING:
    from pathlib import Path

    from ..scripts.finding import Line, Script

SCRIPT_SAID = "gpuctl.script"
"""Where a context notes the options of a script's lines: the option, and the file and line."""


def _wrong_line(where: str, why: str) -> Exception:
    from gpufleet.errors import invalid

    return invalid(where, why, next_step="See the options with: gpuctl submit --help")


def _tell_project(file: Path | None, project: list[Line], lines: list[Line], own: list[str]) -> None:
    """Say what was not typed: all of the project's file in a line, and in a dry run where each option stands."""
    if "--dry-run" in own:
        typed = {word.partition("=")[0] for word in own if word.startswith("-")}
        for where, words in lines:
            also = " (the command line says it, too)" if {word.partition("=")[0] for word in words} & typed else ""
            typer.echo(f"gpuctl: {where}: {shlex.join(words)}{also}", err=True)
    elif told := shlex.join(word for _, words in project for word in words):
        typer.echo(f"gpuctl: {file}: {told}", err=True)


class JobCommand(Command):
    """A command that ends in a command line of the job's: `gpuctl run --gpus 1 -- python train.py`."""

    runs_without_command = False
    """Whether it has a command line of its own for who gives none."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        # Options end where the job's command begins, so that `gpuctl run nvidia-smi -L` needs no `--`.
        self.allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        try:
            values, _, _ = self.make_parser(ctx).parse_args(list(args))
        except typer.TyperException:
            return super().parse_args(ctx, args)  # which says what is wrong with them
        command = list(values.get("command") or ())
        if not command:
            own = args[:-1] if args[-1:] == ["--"] else args
            lines = self._lines_of(ctx, None, own) if self.runs_without_command else []
            return super().parse_args(ctx, [*lines, *args])
        from ..scripts.standard_input import script_and_command

        if command[0] == "-" and values.get("stdin"):
            from gpufleet.errors import invalid

            raise invalid("--stdin", "standard input is the script, and cannot be the job's as well")
        own = args[: len(args) - len(command)]
        own = own[:-1] if own[-1:] == ["--"] else own
        script, command = script_and_command(command, values.get("cwd"))
        lines = self._lines_of(ctx, script, own)
        return super().parse_args(ctx, [*lines, *own, "--", *command])

    def _lines_of(self, ctx: Any, script: Script | None, own: list[str]) -> list[str]:
        """What the script's lines add to the command line; says which of Slurm's lines are not read."""
        file = project_file(own)
        if script is None and file is None:
            return []
        from ..scripts.finding import before, option_lines

        project = [] if file is None else project_lines(file)
        lines = [*project, *option_lines(script)]
        self._check_lines(ctx, lines, own)
        _tell_project(file, project, lines, own)
        if script is None:
            return before(own, lines)
        from ..scripts.slurm import warning_of

        known = {option for each in self.get_params(ctx) for option in each.opts}
        if warning := warning_of(script, known, {*ctx.meta[SCRIPT_SAID], *(word.partition("=")[0] for word in own)}):
            typer.echo(f"gpuctl: {warning}", err=True)
        return before(own, lines)

    def _check_lines(self, ctx: Any, lines: list[Line], own: list[str]) -> None:
        """Name the file and the line of what is no option, or of a value that is none; note who said what."""
        said: dict[str, str] = {}
        for where, words in lines:
            try:
                values, rest, parameters = self.make_parser(ctx).parse_args(list(words))
                for parameter in parameters:
                    parameter.type_cast_value(ctx, values[str(parameter.name)])
            except typer.TyperException as problem:
                from ..unknown_options import explained

                told = explained(problem, self, ctx, words)
                in_words = getattr(told, "format_message", None)  # click's own have it, whichever click typer brings
                if in_words is None:
                    raise
                raise _wrong_line(where, in_words()) from None
            if words_left := [*(values.get("command") or ()), *rest]:
                raise _wrong_line(where, f"{words_left[0]!r} is no option")
            said.update((option, where) for each in parameters for option in each.opts if option not in own)
        ctx.meta[SCRIPT_SAID] = said

    def invoke(self, ctx: Any) -> Any:
        from gpufleet.errors import GpufleetError

        try:
            return super().invoke(ctx)
        except GpufleetError as problem:
            field = problem.violations[0].field if problem.violations else ""
            where = ctx.meta.get(SCRIPT_SAID, {}).get(field)
            if where is None:
                from ..unknown_options import about_output

                raise about_output(problem, self, ctx) from None
            message, next_step = f"{where}: {problem.message}", problem.next_step
            raise GpufleetError(
                problem.reason, message, violations=problem.violations, next_step=next_step
            ) from problem

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS] -- COMMAND [ARGS]…"]


class ShellCommand(JobCommand):
    """One that has a command line of its own for who gives none."""

    runs_without_command = True

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS] [-- COMMAND [ARGS]…]"]
