"""From `package.module:Class` and `--model-arg` to a model, or to one sentence on what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError
from gpufleet.model import Progress, Traits, traits_of
from gpufleet.onnx import finds_gpu
from gpufleet.runtimes.facts import RuntimeFacts, runtimes_in_use, torch_was_looked_at
from gpufleet.runtimes.probe import send_no_telemetry
from gpufleet.text.spelling import did_you_mean

SHIPPED: Mapping[str, str] = {
    "test-pattern": f"{__package__}.models.test_pattern:TestPattern",
    "canvas": f"{__package__}.models.canvas.model:Canvas",
}
"""Models that come with gpufleet, by the names that `gpuctl worker` takes too."""

EXTRAS: Mapping[str, str] = {"torch": "torch", "numpy": "inference", "PIL": "inference", "onnxruntime": "onnx"}
"""The extra of gpufleet that brings a module which models need."""

SENTENCE_CHARS_MAX = 500

_SWITCHES: dict[str, bool] = {
    **dict.fromkeys(("true", "on", "1", "yes"), True),
    **dict.fromkeys(("false", "off", "0", "no"), False),
}


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
    runtimes: tuple[RuntimeFacts, ...] = ()
    """What it computes with."""


def model_name(entry_point: str) -> str:
    """The name of a model that was given none: a shipped one's own, else the class's."""
    return entry_point if entry_point in SHIPPED else entry_point.rpartition(":")[2]


def load(wanted: Wanted, progress: Progress) -> Loaded:
    """Import, construct, warm up; on the model's thread. Raises NotLoaded."""
    progress(0.0, f"importing {wanted.entry_point}")
    factory = class_of(SHIPPED.get(wanted.entry_point, wanted.entry_point))
    arguments = arguments_for(factory, wanted, progress)
    progress(0.1, "making the model")
    model = tried(lambda: factory(**arguments))
    traits = tried(lambda: traits_of(model))
    if callable(warm_up := getattr(model, "warm_up", None)):
        progress(0.9, "warming up")
        tried(warm_up)
    progress(1.0, "")
    return Loaded(model, traits, runtimes_in_use(str(arguments.get("device", ""))))


def last_line(problem: BaseException) -> str:
    """The last line of a traceback: the type and what it says, cut to one line of bounded length."""
    line = " ".join(traceback.format_exception_only(problem)[-1].split())
    return line if len(line) <= SENTENCE_CHARS_MAX else f"{line[:SENTENCE_CHARS_MAX]}…"


def words_of(problem: BaseException) -> str:
    """All that it says, in lower case; also of one whose own words raise."""
    return "".join(traceback.format_exception_only(problem)).lower()


def let_go(problem: BaseException) -> None:
    """Free what an exception holds: the variables of its calls, and the memory that torch keeps for later."""
    traceback.clear_frames(problem.__traceback__)
    problem.__traceback__ = None
    torch = sys.modules.get("torch")
    if torch is not None and "memory" in words_of(problem):
        with suppress(Exception):
            torch.cuda.empty_cache()


def class_of(entry_point: str) -> Callable[..., Any]:
    """What `package.module:Class` names. Raises NotLoaded."""
    module_name, colon, path = entry_point.partition(":")
    if not (colon and module_name and path):
        raise NotLoaded(
            f'"{entry_point}" is neither package.module:Class nor one of {", ".join(SHIPPED)}'
            f"{did_you_mean(entry_point, SHIPPED)}"
        )
    send_no_telemetry()
    found: Any = tried(lambda: importlib.import_module(module_name), looking_for=module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise NotLoaded(f"{module_name} has no {path}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    if not callable(found):
        raise NotLoaded(f"{entry_point} is a {type(found).__name__}, and cannot be called to make a model")
    return typing.cast(Callable[..., Any], found)


def tried(call: Callable[[], Any], looking_for: str = "") -> Any:
    """What a call into a model's code gives; `looking_for` is the module that it imports. Raises NotLoaded."""
    try:
        return call()
    except NotLoaded:
        raise
    except GpufleetError as problem:  # of gpufleet.onnx, say
        raise NotLoaded(f"{problem.message}. {problem.next_step}".rstrip()) from problem
    except ModuleNotFoundError as problem:
        missing = problem.name or str(problem)
        if looking_for == missing or looking_for.startswith(f"{missing}."):
            where = f"; its folder must be installed, on PYTHONPATH, or here: {Path.cwd()}"
            raise NotLoaded(f"there is no module {missing}{where}") from problem
        extra = EXTRAS.get(missing.partition(".")[0])
        how = f": pip install 'gpufleet[{extra}]'" if extra else ""
        raise NotLoaded(f"the model needs {missing}, which is not installed in {sys.prefix}{how}") from problem
    except FileNotFoundError as problem:
        name = problem.filename
        raise NotLoaded(f"there is no file {name}" if name else last_line(problem)) from problem
    except SyntaxError as problem:
        where = f"{problem.filename or 'the module'}, line {problem.lineno or '?'}"
        raise NotLoaded(f"{last_line(problem)} ({where})") from problem
    except BaseException as problem:
        # A model's own SystemExit as well: what it loads must not decide how this program ends.
        raise NotLoaded(last_line(problem)) from problem


def arguments_for(
    factory: Callable[..., Any], wanted: Wanted, progress: Progress, *, whole: str = ""
) -> dict[str, Any]:
    """What is wanted, by the names of what is called, each read as it is annotated; the device and the progress where
    it takes them. A parameter called `whole` is given all arguments as they were typed. Raises NotLoaded.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # of C; it says nothing of what it takes
        parameters = inspect.signature(lambda **_: None).parameters
    takes_whole = whole in parameters
    takes_any = takes_whole or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    hints = _hints(factory)
    arguments: dict[str, Any] = {}
    for name, text in wanted.arguments.items():
        if takes_whole and (name == whole or name not in parameters):
            continue
        if name not in parameters and not takes_any:
            known = [each for each in parameters if each not in ("device", "progress")]
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise NotLoaded(f"the model has no argument {name}{did_you_mean(name, known)} ({takes})")
        arguments[name] = _read(name, text, hints.get(name, str))
    if takes_whole:
        arguments[whole] = dict(wanted.arguments)
    if "device" in parameters and "device" not in arguments:
        arguments["device"] = wanted.device or best_device()
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
            return _SWITCHES[text.lower()]
        if int in kinds:
            return int(text)
        if float in kinds:
            return float(text)
    except (ValueError, KeyError):
        wanted = "on or off" if bool in kinds else "a whole number" if int in kinds else "a number"
        raise NotLoaded(f'--model-arg {name}: "{text}" is not {wanted}') from None
    return text


def best_device() -> str:
    """The first GPU that torch can use, else the CPU; a model that takes a device nearly always imports torch
    anyway. Without torch, ONNX Runtime says whether it was built for one.
    """
    if importlib.util.find_spec("torch") is None:
        return "cuda:0" if finds_gpu() else "cpu"
    is_the_models = "torch" in sys.modules
    import torch

    if not is_the_models:
        torch_was_looked_at()
    return "cuda:0" if torch.cuda.is_available() else "cpu"
