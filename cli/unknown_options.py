"""An option that a command does not have: what is meant, by whole words, or what Slurm's of that name is here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import typer

from gpufleet.errors import GpufleetError

SUGGESTIONS_MAX = 3
LETTERS_ALIKE_MIN = 0.75
"""Two words of which so many letters agree are one, mistyped."""

WORDS_ALIKE_MIN = 0.6
"""Of the words that were typed, so much is found again in an option that is suggested."""

BEGINNING_CHARS_MIN = 3
"""So much of a word stands for it: `mem` for `memory`."""


class UnknownOption(typer.TyperException):
    """An option that this command does not have."""

    def __init__(self, message: str, next_step: str, ctx: Any) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.ctx = ctx


def explained(problem: typer.TyperException, command: Any, ctx: Any, arguments: Sequence[str]) -> Exception:
    """The problem, told better where it is an option that the command does not have."""
    name = getattr(problem, "option_name", None)
    if name is None or not hasattr(problem, "possibilities"):
        return problem
    known = [option for each in command.get_params(ctx) for option in (*each.opts, *each.secondary_opts)]
    message = f"no such option: {name}"
    see = f"See: {ctx.command_path} --help"
    if (meant := _of_slurm(name, arguments, known)) is not None:
        return UnknownOption(*meant, ctx)
    alike = options_alike(name, [option for option in known if option.startswith("--")])
    return UnknownOption(message + (f"; did you mean {' or '.join(alike)}?" if alike else ""), see, ctx)


def _of_slurm(name: str, arguments: Sequence[str], known: Collection[str]) -> tuple[str, str] | None:
    """Only of a command that makes jobs: it has --gpus."""
    if "--gpus" not in known:
        return None
    from .scripts import slurm

    at = next((number for number, word in enumerate(arguments) if word.startswith(name)), None)
    if at is None or not slurm.option_of(arguments[at]):
        return None
    found = slurm.translated(arguments[at : at + 2])[0]
    words = found.in_words(known)
    here = f"here {words}" if found.ours and found.ours[0] in known else words
    return f"no such option: {name}; it is Slurm's: {here}", f"All of Slurm's options: {slurm.PAGE}"


def options_alike(typed: str, known: Collection[str]) -> list[str]:
    """The options that say most of what was typed, by whole words: `--time` is in `--time-limit`."""
    words = _words(typed)
    scored = sorted((-_likeness(words, _words(option)), len(_words(option)), option) for option in known)
    if not scored or -scored[0][0] < WORDS_ALIKE_MIN:
        return []
    # Of those that say as much, those that say least besides; `--gpus` alone for `--gpu`.
    return [option for score, length, option in scored if (score, length) == scored[0][:2]][:SUGGESTIONS_MAX]


def about_output(problem: GpufleetError, command: Any, ctx: Any) -> Exception:
    """The refusal of `--output train-%j.log`: with what Slurm's option of that name is here; else as it is."""
    value = str(ctx.params.get("output") or "")
    if not any(field.field.endswith("output") for field in problem.violations) or not set("%./") & set(value):
        return problem
    from .scripts import slurm

    known = [option for each in command.get_params(ctx) for option in each.opts]
    found = slurm.translated(["--output", value])[0]
    message = f"--output is how gpuctl answers (table, json …); for the job's output: {found.in_words(known)}"
    return UnknownOption(message, f"All of Slurm's options: {slurm.PAGE}", ctx)


def _words(option: str) -> list[str]:
    return [word for word in re.split(r"[-_]", option.lower()) if word]


def _likeness(typed: Sequence[str], option: Sequence[str]) -> float:
    """How much of what was typed the option says, 0 to 1; `--node-list` says all of `--nodelist`."""
    if not typed or not option:
        return 0.0
    by_words = sum(max(_alike(word, other) for other in option) for word in typed) / len(typed)
    return max(by_words, _alike("".join(typed), "".join(option)))


def _alike(one: str, other: str) -> float:
    if one.rstrip("s") == other.rstrip("s"):
        return 1.0
    if min(len(one), len(other)) >= BEGINNING_CHARS_MIN and (one.startswith(other) or other.startswith(one)):
        return 0.9
    if sorted(one) == sorted(other):
        return 0.95  # two letters changed places
    import difflib  # only a mistake pays for it

    ratio = difflib.SequenceMatcher(None, one, other).ratio()
    return ratio if ratio >= LETTERS_ALIKE_MIN else 0.0
