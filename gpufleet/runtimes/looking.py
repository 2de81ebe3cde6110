"""What an interpreter of this machine can compute with, found out by processes of its own, each within a time.

A driver that crashes or hangs costs that process, and is told as what it is. Read probe.py first: it is what they run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..errors import GpufleetError, Reason
from .drivers import amd_driver_version, nvidia_driver_version
from .probe import MARK

PROBE = Path(__file__).with_name("probe.py")

ANSWER_BYTES_MAX = 256_000
"""Of what a process writes, only the end is read."""

ENDS_S_MAX = 5.0
"""How long a process that was killed may take to be gone; one that a driver holds is left."""

TIMEOUT_S_DEFAULT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A GPU as torch sees it; `problem` is why it does not compute, empty where it does."""

    index: int
    name: str
    memory_bytes: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """`backend` is "cuda", "rocm" or "cpu". Without a version there is no torch; `problem` is why it did not answer."""

    version: str = ""
    backend: str = ""
    backend_version: str = ""
    devices: tuple[DeviceFacts, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """A provider that ONNX Runtime lists, and why it does not compute; empty where it does."""

    name: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFacts:
    """Likewise; `packages` are the distributions that bring it, of which there should be one."""

    version: str = ""
    packages: tuple[str, ...] = ()
    providers: tuple[ProviderFacts, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterFacts:
    """An interpreter: its path and version, the gpufleet in it (empty: none), and which modules of gpufleet[predict]
    are missing; the drivers of this machine, empty without one; and what it computes with.
    """

    path: str
    version: str
    gpufleet_version: str
    is_missing: tuple[str, ...]
    nvidia_driver_version: str
    amd_driver_version: str
    torch: TorchFacts
    onnxruntime: OnnxFacts


class _Failed(Exception):
    """A process gave no answer; why, in one sentence."""


def look(python: str = "", timeout_s: float = TIMEOUT_S_DEFAULT) -> InterpreterFacts:
    """What this interpreter can compute with; each of its processes may take `timeout_s`.

    Raises INVALID_ARGUMENT where `python` is no interpreter.
    """
    python = python or sys.executable
    try:
        itself = _ask(python, "python", timeout_s)
    except _Failed as problem:
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"--python: {python} is no interpreter that answers: {problem}",
            next_step="Name one by its path, such as ~/venv/bin/python.",
        ) from None
    return InterpreterFacts(
        path=str(itself["path"]),
        version=str(itself["version"]),
        gpufleet_version=str(itself["gpufleet_version"]),
        is_missing=tuple(itself["is_missing"]),
        nvidia_driver_version=nvidia_driver_version(),
        amd_driver_version=amd_driver_version(),
        torch=_torch(python, timeout_s),
        onnxruntime=_onnxruntime(python, timeout_s),
    )


def _torch(python: str, timeout_s: float) -> TorchFacts:
    try:
        said = _ask(python, "torch", timeout_s)
    except _Failed as problem:
        return TorchFacts(problem=str(problem))
    if not said.pop("is_there"):
        return TorchFacts()
    return TorchFacts(**{**said, "devices": tuple(DeviceFacts(**each) for each in said["devices"])})


def _onnxruntime(python: str, timeout_s: float) -> OnnxFacts:
    try:
        said = _ask(python, "onnxruntime", timeout_s)
    except _Failed as problem:
        return OnnxFacts(problem=str(problem))
    if not said.pop("is_there"):
        return OnnxFacts()
    providers = tuple(_provider(python, name, timeout_s) for name in said["providers"])
    return OnnxFacts(version=said["version"], packages=tuple(said["packages"]), providers=providers)


def _provider(python: str, name: str, timeout_s: float) -> ProviderFacts:
    try:
        return ProviderFacts(name=name, problem=str(_ask(python, name, timeout_s)["problem"]))
    except _Failed as problem:
        return ProviderFacts(name=name, problem=str(problem))


def _ask(python: str, what: str, timeout_s: float) -> dict[str, Any]:
    """What the probe says of one thing. Raises _Failed."""
    # Files and no pipes: what a process has started may hold a pipe for longer than it lives.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [os.path.expanduser(python), str(PROBE), what],  # noqa: PTH111 (a name without a slash stays one)
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as problem:
            raise _Failed(problem.strerror or str(problem)) from None
        try:
            code = process.wait(timeout_s)
        except BaseException as problem:
            _end(process)
            if isinstance(problem, subprocess.TimeoutExpired):
                raise _Failed(f"no answer within {timeout_s:g} s; a driver hangs, or is very slow") from None
            raise  # Ctrl-C, which it does not hear itself
        for line in reversed(_tail(out).splitlines()):
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return answer
        raise _Failed(_why(code, _tail(errors)))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it stays, unless a driver holds it in the kernel."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_S_MAX)


def _why(code: int, said: str) -> str:
    lines = said.split("\n")
    last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "it said nothing")[:300]
    if code < 0:
        with suppress(ValueError):
            return f"it was ended by {signal.Signals(-code).name}; last it said: {last}"
    return f"it ended with code {code}: {last}"


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - ANSWER_BYTES_MAX))
    return file.read().decode(errors="replace")
