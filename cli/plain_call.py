"""The usual command line, read without typer, whose import would be a third of a short command.

What is read here means what it means to typer: whole options of the command, values that are what they must be, and the
words in their places. Whatever else there is (help, completion, a mistake, options in front of the command, a script
with lines of options) is left to typer, which begins from the beginning.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from gpufleet.fleet.submitting.typed_options import TypedOption, hints_of

from .declaring import ENDS_IN_COMMAND, Argument, Option
from .menu import MODULES

COMPLETING = "_GPUCTL_COMPLETE"
"""Set by a shell that wants to know how a word goes on."""

KINDS = frozenset({str, int, Path, bool})
"""The types of values that are read here."""

DIGITS_MAX = 18
"""A longer number is for typer to refuse."""

MISSING = inspect.Parameter.empty


def plain_call(arguments: Sequence[str]) -> Callable[[], None] | None:
    """The call that this command line is; None where typer is to read it."""
    if not arguments or arguments[0] not in MODULES or COMPLETING in os.environ:
        return None
    command = command_of(arguments[0])
    form = getattr(command, "command_class", "")
    if not isinstance(command, FunctionType) or form not in ("", ENDS_IN_COMMAND):
        return None
    values = values_of(command, arguments[1:], ends_in_command=form == ENDS_IN_COMMAND)
    return None if values is None else partial(command, **values)


def command_of(name: str) -> Any:
    """The function, or the family of commands, of this name in the menu."""
    module = importlib.import_module(f"{__package__}.{MODULES[name]}")
    return getattr(module, name.replace("-", "_"))


class Parameter(NamedTuple):
    """One thing that can be typed; `flags` are empty for an argument, and for what only typer reads."""

    name: str
    kind: Any
    default: Any
    flags: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    is_list: bool = False
    is_argument: bool = False

    def read(self, text: str) -> Any:
        """The value; MISSING for a text that is none."""
        if self.kind is not int:
            return self.kind(text)
        if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
            return MISSING
        number = int(text)
        is_too_low = self.low is not None and number < self.low
        return MISSING if is_too_low or (self.high is not None and number > self.high) else number


def values_of(command: FunctionType, words: Sequence[str], *, ends_in_command: bool) -> dict[str, Any] | None:
    """What the command is called with; None where the words are more than is read here."""
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            of_group = hints_of(kind)
            own = [_parameter(each.name, of_group[each.name], each.default) for each in fields(kind)]
            groups[name] = kind, [each.name for each in own]
            parameters += own
        else:
            parameters.append(_parameter(name, kind, parameter.default))
    read = _read(parameters, words, ends_in_command=ends_in_command)
    if read is None:
        return None
    values, behind = read
    if ends_in_command and not _is_plain_command(values, behind, words):
        return None
    if not _place(values, [each for each in parameters if each.is_argument], behind):
        return None
    for name, (group, names) in groups.items():
        values[name] = group(**{each: values.pop(each) for each in names})
    return values


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    declared, *_ = getattr(hint, "__metadata__", (None,))
    kind, is_list = _kind(getattr(hint, "__origin__", hint))
    match declared:
        case TypedOption() if kind is not None:
            return Parameter(name, kind, default, declared.flags, declared.min, is_list=is_list)
        case Option(how={"callback": _}):
            return Parameter(name, kind, default)
        case Option() if kind is not None and not any("/" in each for each in declared.flags):
            low, high = declared.how.get("min"), declared.how.get("max")
            return Parameter(name, kind, default, declared.flags, low, high, is_list)
        case Argument():
            return Parameter(name, kind, default, is_list=is_list, is_argument=True)
        case _:
            return Parameter(name, kind, default)


def _kind(declared: Any) -> tuple[Any, bool]:
    """What makes a value of a text, None where typer does; and whether there may be several of them."""
    if get_origin(declared) is UnionType:
        declared, *others = (each for each in get_args(declared) if each is not type(None))
        if others:
            return None, False
    is_list = get_origin(declared) is list
    kind = get_args(declared)[0] if is_list else declared
    return kind if kind in KINDS else None, is_list


def _read(
    parameters: Sequence[Parameter], words: Sequence[str], *, ends_in_command: bool
) -> tuple[dict[str, Any], list[str]] | None:
    """The options, and the words that are none."""
    by_flag = {flag: each for each in parameters for flag in each.flags}
    values = {each.name: each.default for each in parameters}
    behind: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            return values, [*behind, *reversed(left)]
        if len(word) < 2 or not word.startswith("-"):
            behind.append(word)
            if ends_in_command:
                return values, [*behind, *reversed(left)]
            continue
        flag, equals, text = word.partition("=")
        option = by_flag.get(flag)
        if option is None or (equals and (option.kind is bool or not flag.startswith("--"))):
            return None
        if option.kind is bool:
            values[option.name] = not option.default
            continue
        if not equals:
            if not left or (left[-1].startswith("-") and len(left[-1]) > 1):
                return None
            text = left.pop()
        value = option.read(text)
        if value is MISSING:
            return None
        values[option.name] = [*(values[option.name] or ()), value] if option.is_list else value
    return values, behind


def _place(values: dict[str, Any], places: Sequence[Parameter], words: Sequence[str]) -> bool:
    """Give each argument its word, and the last one, if it is a list, all that are left; whether that goes."""
    left = list(words)
    for number, place in enumerate(places, 1):
        if place.kind is None or (place.is_list and number < len(places)):
            return False
        if place.is_list:
            read, left = [place.read(each) for each in left], []
            values[place.name] = MISSING if MISSING in read else read or place.default
        elif left:
            values[place.name] = place.read(left.pop(0))
    return not left and MISSING not in values.values()


def _is_plain_command(values: Mapping[str, Any], command: Sequence[str], words: Sequence[str]) -> bool:
    """Whether it is a command as it stands: neither its script nor the project's file adds options to it."""
    if not command or command[0] == "-" or set("%./") & set(values.get("output") or ""):
        return False
    from gpufleet.fleet.submitting.project_file import project_file

    from .scripts.finding import script_of

    own = words[: len(words) - len(command)]
    return project_file(own) is None and script_of(command, Path(values.get("cwd") or ".")) is None
