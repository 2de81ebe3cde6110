"""What `providers` shows: a finding for each thing that could compute, and how to mend it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta

from gpufleet.errors import invalid
from gpufleet.fleet.finding import Finding, failed, ok, warning
from gpufleet.fleet.reading import read
from gpufleet.fleet.settings import resolve
from gpufleet.runtimes.looking import InterpreterFacts, OnnxFacts, TorchFacts, look
from gpufleet.text.units import exact_duration, format_size, parse_duration

from .. import screen
from ..doctor.checks import lines_of
from ..errors import FAILED
from ..printing import print_object

TIMEOUT_MIN, TIMEOUT_MAX = timedelta(seconds=1), timedelta(hours=1)

WANTING_OF = {
    "tensorrt": "Install TensorRT's libraries, or leave it: what is below is used in its place.",
    "cuda": "{pip} install 'onnxruntime-gpu[cuda,cudnn]'",
}
"""What to do about a provider that is listed and does not compute."""


@dataclass(frozen=True, slots=True)
class _Typed:
    """The options of which settings are made; the scheduler is none of them."""

    output: str | None
    context: str | None = None


def show_providers(python: str, timeout: str, output: str | None) -> int:
    """Print them; answers the exit code. Raises INVALID_ARGUMENT."""
    form = resolve(_Typed(output)).format
    limit = read("--timeout", parse_duration, timeout)
    if not TIMEOUT_MIN <= limit <= TIMEOUT_MAX:
        raise invalid("--timeout", f"must be from {exact_duration(TIMEOUT_MIN)} to {exact_duration(TIMEOUT_MAX)}")
    found = look(python, limit.total_seconds())
    match form:
        case "json" | "jsonl":
            print_object(asdict(found), form)
        case "name":
            screen.print_lines(names_of(found))
        case _:
            drawn = screen.look(form)
            screen.print_lines(line for each in findings_of(found) for line in lines_of(each, drawn))
    return 0 if names_of(found) else FAILED


def names_of(found: InterpreterFacts) -> list[str]:
    """What computes: `torch:cuda:0`, `onnxruntime:cpu`."""
    torch, onnx = found.torch, found.onnxruntime
    names = [f"torch:cuda:{each.index}" for each in torch.devices if not each.problem]
    names += ["torch:cpu"] if torch.version else []
    return names + [f"onnxruntime:{each.name}" for each in onnx.providers if not each.problem]


def findings_of(found: InterpreterFacts) -> Iterator[Finding]:
    """One for each thing, in their order."""
    pip = f"{shlex.quote(found.path)} -m pip"
    yield _interpreter(found, pip)
    drivers = [
        f"{vendor} {version}"
        for vendor, version in (("NVIDIA", found.nvidia_driver_version), ("AMD", found.amd_driver_version))
        if version
    ]
    yield ok("driver", ", ".join(drivers) or "no GPU's driver is here: models compute on the CPU")
    yield from _torch(found.torch, found, pip)
    yield from _onnxruntime(found.onnxruntime, found, pip)


def _interpreter(found: InterpreterFacts, pip: str) -> Finding:
    what = f"Python {found.version}, {found.path}"
    install = f"{pip} install 'gpufleet[predict]'"
    if not found.gpufleet_version:
        return warning("python", f"{what}: gpufleet is not installed there, and it can serve nothing", install)
    if found.is_missing:
        lacking = ", ".join(found.is_missing)
        return warning(
            "python", f"{what}, gpufleet {found.gpufleet_version}: it lacks {lacking} to answer requests", install
        )
    return ok("python", f"{what}, gpufleet {found.gpufleet_version}")


def _torch(torch: TorchFacts, found: InterpreterFacts, pip: str) -> Iterator[Finding]:
    if torch.problem:
        yield failed("torch", torch.problem, f"See what it says by itself: {shlex.quote(found.path)} -c 'import torch'")
        return
    if not torch.version:
        yield warning("torch", "torch is not installed", f"{pip} install 'gpufleet[torch]'")
        return
    built = f"torch {torch.version}, for {_backend(torch)}"
    has_driver = found.amd_driver_version if torch.backend == "rocm" else found.nvidia_driver_version
    any_driver = found.amd_driver_version or found.nvidia_driver_version
    if torch.backend == "cpu" and any_driver:
        yield warning(
            "torch", f"{built}: it uses no GPU of this machine", "Install a build for it: pytorch.org/get-started"
        )
    elif torch.backend != "cpu" and has_driver and not torch.devices:
        yield warning("torch", f"{built}: it sees no GPU", "Is CUDA_VISIBLE_DEVICES set? See: gpuctl doctor")
    else:
        yield ok("torch", built)
    for each in torch.devices:
        name = f"  cuda:{each.index}"
        if each.problem:
            yield failed(name, f"{each.name or 'it'} does not compute: {each.problem}", "See: gpuctl doctor")
        else:
            yield ok(name, f"{each.name}, {format_size(each.memory_bytes)}: computes")


def _backend(torch: TorchFacts) -> str:
    return {"cuda": "CUDA", "rocm": "ROCm"}.get(torch.backend, "the CPU") + f" {torch.backend_version}".rstrip()


def _onnxruntime(onnx: OnnxFacts, found: InterpreterFacts, pip: str) -> Iterator[Finding]:
    if onnx.problem:
        see = f"See what it says by itself: {shlex.quote(found.path)} -c 'import onnxruntime'"
        yield failed("onnx", onnx.problem, see)
        return
    if not onnx.version:
        yield warning("onnx", "ONNX Runtime is not installed", f"{pip} install 'gpufleet[onnx]'")
        return
    listed = {each.name for each in onnx.providers}
    if len(onnx.packages) > 1:
        packages = " ".join(onnx.packages)
        sentence = (
            f"ONNX Runtime {onnx.version}, of several packages that overwrite each other: {', '.join(onnx.packages)}"
        )
        yield warning("onnx", sentence, f"{pip} uninstall {packages}, and install the one that is wanted")
    elif found.nvidia_driver_version and not listed & {"cuda", "tensorrt", "directml"}:
        step = f"{pip} uninstall onnxruntime && {pip} install 'onnxruntime-gpu[cuda,cudnn]'"
        yield warning("onnx", f"ONNX Runtime {onnx.version}: this build uses no NVIDIA GPU", step)
    elif found.amd_driver_version and not listed & {"migraphx", "rocm", "directml"}:
        step = "Install AMD's build in its place: onnxruntime-migraphx, of AMD's package index for your ROCm"
        yield warning("onnx", f"ONNX Runtime {onnx.version}: this build uses no AMD GPU", step)
    else:
        yield ok("onnx", f"ONNX Runtime {onnx.version}")
    for each in onnx.providers:
        if each.problem:
            fix = WANTING_OF.get(each.name, "Leave it: what is below is used in its place.").format(pip=pip)
            yield failed(f"  {each.name}", f"does not compute: {each.problem}", fix)
        else:
            yield ok(f"  {each.name}", "computes")
