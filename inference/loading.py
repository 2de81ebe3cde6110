"""From `package.module:Class` and `--model-arg` to a model, or to one sentence on what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.model import Progress, Traits, traits_of
from gpufleet.spelling import did_you_mean

SHIPPED: Mapping[str, str] = {
    "test-pattern": f"{__package__}.models.test_pattern:TestPattern",
    "canvas": f"{__package__}.models.canvas.model:Canvas",
}
"""Models that come with gpufleet, by the names that `gpuctl worker` takes too."""

SENTENCE_CHARS_MAX = 500


class NotLoaded(Exception):
    """The model cannot be loaded; the message says what is missing or wrong, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to load: the entry point or a shipped name, the arguments as they were typed, and the device ("" is
    auto).
    """

    entry_point: str
    arguments: Mapping[str, str]
    device: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready, and what it says of itself."""

    model: Any
    traits: Traits


def model_name(entry_point: str) -> str:
    """The name of a model that was given none: a shipped one's own, else the class's."""
    return entry_point if entry_point in SHIPPED else entry_point.rpartition(":")[2]


def load(wanted: Wanted, progress: Progress) -> Loaded:
    """Import, construct, warm up; on the model's thread. Raises NotLoaded."""
    progress(0.0, f"importing {wanted.entry_point}")
    factory = _class_of(SHIPPED.get(wanted.entry_point, wanted.entry_point))
    arguments = _arguments(factory, wanted, progress)
    progress(0.1, "making the model")
    model = _tried(lambda: factory(**arguments))
    traits = _tried(lambda: traits_of(model))
    if callable(warm_up := getattr(model, "warm_up", None)):
        progress(0.9, "warming up")
        _tried(warm_up)
    progress(1.0, "")
    return Loaded(model, traits)


def last_line(problem: BaseException) -> str:
    """The last line of a traceback: the type and what it says, cut to one line of bounded length."""
    line = " ".join(traceback.format_exception_only(problem)[-1].split())
    return line if len(line) <= SENTENCE_CHARS_MAX else f"{line[:SENTENCE_CHARS_MAX]}…"


def _class_of(entry_point: str) -> Callable[..., Any]:
    module_name, colon, path = entry_point.partition(":")
    if not (colon and module_name and path):
        raise NotLoaded(
            f'"{entry_point}" is neither package.module:Class nor one of {", ".join(SHIPPED)}'
            f"{did_you_mean(entry_point, SHIPPED)}"
        )
    found: Any = _tried(lambda: importlib.import_module(module_name), looking_for=module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise NotLoaded(f"{module_name} has no {path}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    if not callable(found):
        raise NotLoaded(f"{entry_point} is a {type(found).__name__}, and cannot be called to make a model")
    return typing.cast(Callable[..., Any], found)


def _tried(call: Callable[[], Any], looking_for: str = "") -> Any:
    try:
        return call()
    except NotLoaded:
        raise
    except ModuleNotFoundError as problem:
        missing = problem.name or str(problem)
        if looking_for == missing or looking_for.startswith(f"{missing}."):
            where = f"; its folder must be installed, on PYTHONPATH, or here: {Path.cwd()}"
            raise NotLoaded(f"there is no module {missing}{where}") from problem
        raise NotLoaded(f"the model needs {missing}, which is not installed in {sys.prefix}") from problem
    except FileNotFoundError as problem:
        name = problem.filename
        raise NotLoaded(f"there is no file {name}" if name else last_line(problem)) from problem
    except SyntaxError as problem:
        where = f"{problem.filename or 'the module'}, line {problem.lineno or '?'}"
        raise NotLoaded(f"{last_line(problem)} ({where})") from problem
    except BaseException as problem:
        # A model's own SystemExit as well: what it loads must not decide how this program ends.
        raise NotLoaded(last_line(problem)) from problem


def _arguments(factory: Callable[..., Any], wanted: Wanted, progress: Progress) -> dict[str, Any]:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # of C; it says nothing of what it takes
        parameters = inspect.signature(lambda **_: None).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    hints = _hints(factory)
    arguments: dict[str, Any] = {}
    for name, text in wanted.arguments.items():
        if name not in parameters and not takes_any:
            known = [each for each in parameters if each not in ("device", "progress")]
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise NotLoaded(f"the model has no argument {name}{did_you_mean(name, known)} ({takes})")
        arguments[name] = _read(name, text, hints.get(name, str))
    if "device" in parameters and "device" not in arguments:
        arguments["device"] = wanted.device or _best_device()
    if "progress" in parameters:
        arguments["progress"] = lambda share, words="": progress(0.1 + 0.8 * min(max(share, 0.0), 1.0), words)
    return arguments


def _hints(factory: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except Exception:  # annotations may name what is not there at run time
        return {}


def _read(name: str, text: str, hint: Any) -> Any:
    kinds = [hint, *typing.get_args(hint)]
    try:
        if bool in kinds:
            return {
                "true": True,
                "on": True,
                "1": True,
                "yes": True,
                "false": False,
                "off": False,
                "0": False,
                "no": False,
            }[text.lower()]
        if int in kinds:
            return int(text)
        if float in kinds:
            return float(text)
    except (ValueError, KeyError):
        wanted = "on or off" if bool in kinds else "a whole number" if int in kinds else "a number"
        raise NotLoaded(f'--model-arg {name}: "{text}" is not {wanted}') from None
    return text


def _best_device() -> str:
    """The first GPU that torch can use, else the CPU; a model that takes a device nearly always imports torch
    anyway.
    """
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"
