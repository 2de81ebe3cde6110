"""The command line itself: typer, with commands that are loaded when they are needed and plain help in panels."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .errors import ReaderLeft
from .following_options import FOLLOWING
from .menu import MODULES, OF_OTHERS, PANELS
from .options import CONNECTION
from .plain_call import command_of
from .spreading import spread

GENERAL = "Options"
SHARED = (GENERAL, FOLLOWING, CONNECTION)


LEADING = "gpuctl.leading"
"""Where a context notes the options that stood before the command."""


def take_leading(command: Any, ctx: Any) -> None:
    """Give the command what stood before its name, in place of its defaults: what stands behind the name wins."""
    given: dict[str, str] = ctx.meta.get(LEADING, {})
    names = {each.name for each in command.get_params(ctx)}
    for name in given.keys() - names:
        ctx.fail(f"{ctx.command_path} takes no --{name.replace('_', '-')}")
    if given:
        ctx.default_map = given


class Command(TyperCommand):
    """A command whose help lists its options by panel."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        take_leading(self, ctx)
        try:
            return super().parse_args(ctx, list(args))
        except typer.TyperException as problem:
            from .unknown_options import explained

            raise explained(problem, self, ctx, args) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(each.metavar or str(each.name).upper() for each in arguments)]


class CheckCommand(Command):
    """One whose --wait may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and "--wait" in args:
            after = args.index("--wait") + 1
            if after == len(args) or args[after].startswith("-"):
                args = [*args[:after], WAIT_ALONE, *args[after:]]
        return super().parse_args(ctx, args)


WAIT_ALONE = "5m"


class WatchedCommand(Command):
    """One that may end in a command line that it runs here: `gpuctl monitor -- python train.py`."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.allow_interspersed_args = False

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS] [-- COMMAND [ARGS]…]"]


class Group(TyperGroup):
    """A command with commands below it, such as `nodes`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())  # asked for nothing: no mistake, and nothing to complain about
            ctx.exit(0)
        names = {each.name for each in self.get_params(ctx)}
        ctx.default_map = {name: value for name, value in ctx.meta.get(LEADING, {}).items() if name in names}
        try:
            return super().parse_args(ctx, list(args))
        except typer.TyperException as problem:
            from .unknown_options import explained

            raise explained(problem, self, ctx, args) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        summaries = {name: (each.help or "").partition("\n")[0] for name, each in self.commands.items()}
        with formatter.section("Commands"):
            # typer would cut each sentence to a line of its own; ours may go on to the next.
            formatter.write_dl(list(summaries.items()))


FIRST_STEPS = (
    ("gpuctl up --detach", "A scheduler and this machine's agent."),
    ("gpuctl run --gpus 1 -- nvidia-smi", "Run something, and see what it writes."),
    ("gpuctl submit --gpus 1 -- ./train.sh", "Or leave it to itself: prints its id."),
    ("gpuctl queue", "What runs, what waits, and why."),
    ("gpuctl logs -f last", "What it writes, wherever it runs."),
    ("gpuctl nodes --free", "Which GPUs are free, best first."),
    ("gpuctl explain last", "Why it waits, and when it may start."),
    ("gpuctl stats last", "What it used, or uses so far."),
    ("gpuctl top", "What every GPU does now, and for whom."),
)
FROM_SLURM = (
    "Coming from Slurm: sbatch is submit, srun is run, squeue is queue, scancel is cancel, sacct is history, "
    "sinfo is nodes; the rest is in docs/coming-from-slurm.md."
)


class Menu(Group):
    """gpuctl: knows the names of its commands, and loads one when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in MODULES:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """What begins so, by the menu alone: a name and its summary are no reason to load a command."""
        for entries in PANELS.values():
            for name, entry in entries.items():
                self.commands.setdefault(name, Command(name, help=entry.summary))
        return super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderLeft from None  # typer would make exit code 1 of it, which means something else here

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not ctx.resilient_parsing and args[0] not in MODULES and not args[0].startswith("-"):
            from gpufleet.text.spelling import did_you_mean

            known = OF_OTHERS.get(args[0].lower())
            hint = f"; what it may mean is: gpuctl {known}" if known else did_you_mean(args[0], MODULES)
            ctx.fail(f'there is no command "{args[0]}"{hint}')
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("First steps"):
            formatter.write_dl(FIRST_STEPS, col_max=40)
        formatter.write_paragraph()
        formatter.write_text(FROM_SLURM)
        formatter.write_text("Every command takes --help.")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, MODULES))
        for panel, entries in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(longest), entry.summary) for name, entry in entries.items()])


def _tell_version(is_wanted: bool) -> None:
    if is_wanted:
        from .admin.version import own_version

        typer.echo(f"gpuctl {own_version()}")
        raise typer.Exit


def command_line() -> Any:
    """The whole command line, ready to be given its arguments."""
    app = typer.Typer(
        name="gpuctl",
        cls=Menu,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_gpuctl)
    return get_command(app)


class Family(typer.Typer):
    """A command with commands below it: `@nodes.subcommand("forget")` adds one."""

    def __init__(self, name: str, summary: str = "") -> None:
        # Without a summary of its own it does something itself, and its callback's docstring is its help.
        super().__init__(name=name, cls=Group, rich_markup_mode=None, add_completion=False)
        if summary:
            self.info.help = summary
            self.info.no_args_is_help = True

    def subcommand(self, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add the function as a command, its option groups spread."""

        def add(function: Callable[..., None]) -> Callable[..., None]:
            self.command(name, cls=Command)(spread(function))
            return function

        return add


def _gpuctl(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show this program's version and exit.", is_eager=True, callback=_tell_version),
    ] = False,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="HOST:PORT,…", help="The scheduler; also behind the command.")
    ] = None,
    context_name: Annotated[
        str | None, typer.Option("--context", metavar="NAME", help="Another context; also behind the command.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="The token's file; also behind the command.")
    ] = None,
) -> None:
    """Give a team's GPUs to people: run a command on N GPUs and watch it."""
    leading = {"scheduler": scheduler, "context": context_name, "token_file": token_file and str(token_file)}
    context.meta[LEADING] = {name: value for name, value in leading.items() if value is not None}


def _load(name: str) -> Any:
    found: typer.Typer | Callable[..., None] = command_of(name)
    if isinstance(found, typer.Typer):
        loaded = get_command(found)
        loaded.name = name
        return loaded
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(
        name,
        cls=_class_of(found),
        context_settings=getattr(found, "context_settings", None),
        add_help_option=getattr(found, "has_help", True),
    )(spread(found))
    return get_command(app)


def _class_of(command: Callable[..., None]) -> type[Command]:
    module, _, name = getattr(command, "command_class", "app.Command").rpartition(".")
    found: type[Command] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return found


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        line = help_line(parameter)
        if line is not None:
            usual = "Arguments" if parameter.param_type_name == "argument" else GENERAL
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(line)
    shared_last = ("Arguments", *(name for name in panels if name not in SHARED), *SHARED)
    for panel in (name for name in dict.fromkeys(shared_last) if name in panels):
        with formatter.section(panel):
            formatter.write_dl(panels[panel])


def help_line(parameter: Any) -> tuple[str, str] | None:
    """What help shows of a parameter: its names with the value's, and its sentence; None when it is hidden."""
    if parameter.hidden:
        return None
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper(), parameter.help or ""
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    if not parameter.is_flag:
        names += " " + (parameter.metavar or parameter.name.upper())
    return names, parameter.help or ""
