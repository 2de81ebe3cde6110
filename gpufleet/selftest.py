"""A self-test to run as a job: what this place is, and whether its devices compute.

`gpuctl run --gpus 1 -- python -m gpufleet.selftest` prints Python, torch and CUDA, the job's own environment and its
devices, then runs timed checks on each device with a verdict a line. Exit code 0: all passed; 1: one failed, or torch
is missing. `--json` prints one object instead. On a CPU it takes about a second beyond importing torch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

VIRTUAL_VARIABLE = "GPUFLEET_VIRTUAL_GPUS"
VIRTUAL_NOTE = "virtual GPU backed by the CPU"
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY")
COPY_BYTES = 64_000_000
MATMUL_SIZE_CPU, MATMUL_SIZE_GPU = 512, 4096
MATMUL_ERROR_MAX = 1e-3
TRAINING_STEPS = 300
TRAINING_POINTS = 512
TRAINING_RATE = 0.05
# A healthy run ends near a fifth of the loss it began with.
TRAINING_LOSS_RATIO_MAX = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevice:
    """A device as this job sees it; `memory_bytes` and `memory_free_bytes` are absent for a virtual one."""

    place: str
    name: str
    uuid: str = ""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One verdict: `duration_ms` is the time the check took, `detail` what came out or what went wrong."""

    name: str
    place: str
    is_ok: bool
    duration_ms: float
    detail: str


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that is printed."""

    python: str
    torch: str | None = None
    cuda: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    devices: list[FoundDevice] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return all(check.is_ok for check in self.checks)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpufleet.selftest", description="Test the devices of this job.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args(arguments)
    report = Report(python=f"{platform.python_version()} ({sys.executable})", environment=job_environment(os.environ))
    tell: Callable[[str], None] = _silence if options.json else _print
    run(report, os.environ, tell)
    if options.json:
        print(json.dumps(asdict(report) | {"is_ok": report.is_ok}))
    return 0 if report.is_ok else 1


def run(report: Report, environment: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Fill the report, telling each line as soon as it is known."""

    def judged(check: Check) -> None:
        report.checks.append(check)
        tell(_check_line(check))

    began = time.perf_counter()
    torch, trouble = _import_torch()
    imported_ms = (time.perf_counter() - began) * 1000
    if torch is not None:
        report.torch = str(torch.__version__)
        report.cuda = torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else None)
        report.devices = devices_seen(torch, environment)
    for line in _heading(report):
        tell(line)
    judged(
        Check(name="torch", place="", is_ok=torch is not None, duration_ms=imported_ms, detail=trouble or "imported")
    )
    if torch is not None:
        judged(_devices_match(torch, report.devices, environment))
        for place in dict.fromkeys(device.place for device in report.devices):
            for name, check in (("start", _start), ("copy", _copy), ("matmul", _matmul), ("training", _train)):
                judged(judge(name, place, partial(check, torch, place)))
    tell(_verdict(report))


def judge(name: str, place: str, check: Callable[[], str]) -> Check:
    """Run one check, timed: it passes with the detail that it returns and fails with what it raises."""
    began = time.perf_counter()
    try:
        detail, is_ok = check(), True
    except Exception as error:
        detail, is_ok = (str(error).strip().splitlines() or [type(error).__name__])[0], False
    duration_ms = (time.perf_counter() - began) * 1000
    return Check(name=name, place=place, is_ok=is_ok, duration_ms=round(duration_ms, 3), detail=detail)


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the job was told: GPUFLEET_* and its devices; the values of secrets are not shown."""
    names = sorted(name for name in environment if name.startswith("GPUFLEET_") or name.endswith("_VISIBLE_DEVICES"))
    return {name: "(hidden)" if any(word in name for word in SECRET_WORDS) else environment[name] for name in names}


def devices_seen(torch: Any, environment: Mapping[str, str]) -> list[FoundDevice]:
    """The job's GPUs as torch sees them; its virtual ones by name; without either the CPU, where checks then run."""
    seen = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        seen.append(
            FoundDevice(
                place=f"cuda:{index}",
                name=properties.name,
                uuid=f"GPU-{uuid}" if uuid else "",
                memory_bytes=total_bytes,
                memory_free_bytes=free_bytes,
            )
        )
    virtual = [uuid for uuid in environment.get(VIRTUAL_VARIABLE, "").split(",") if uuid]
    seen += [FoundDevice(place="cpu", name=VIRTUAL_NOTE, uuid=uuid) for uuid in virtual]
    return seen or [FoundDevice(place="cpu", name=f"CPU, {torch.get_num_threads()} threads")]


def _import_torch() -> tuple[Any, str]:
    with warnings.catch_warnings():
        # torch works without NumPy and says at import that it is missing; nothing here uses it.
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        try:
            return importlib.import_module("torch"), ""
        except ModuleNotFoundError as error:
            if error.name != "torch":
                return None, f"does not import: {error}"
            return None, f"not installed for {sys.executable}: pip install 'gpufleet[torch]'"
        except (ImportError, OSError) as error:
            return None, f"does not import: {str(error).strip().splitlines()[0]}"


def _devices_match(torch: Any, devices: Sequence[FoundDevice], environment: Mapping[str, str]) -> Check:
    """Whether as many GPUs are seen as the job was given; outside a job there is nothing to compare."""
    count = sum(bool(device.uuid) or device.place != "cpu" for device in devices)
    given = environment.get("GPUFLEET_GPUS_PER_NODE", "")
    is_ok = not given.isdigit() or int(given) == count
    detail = f"{count} GPUs seen" + (f", {given} given" if given.isdigit() else "")
    if not is_ok and count == 0 and torch.version.cuda is None and torch.version.hip is None:
        detail += f": torch {torch.__version__} is built for CPUs only; install a CUDA build of it in the job's Python"
    elif not is_ok:
        detail += ": look at the *_VISIBLE_DEVICES above and run nvidia-smi on the node"
    return Check(name="devices", place="", is_ok=is_ok, duration_ms=0.0, detail=detail)


def _start(torch: Any, place: str) -> str:
    """The first use of a device loads its driver context, which would spoil the next time."""
    torch.manual_seed(0)
    torch.ones(1, device=place).add_(1)
    _finish(torch, place)
    return "device answers"


def _copy(torch: Any, place: str) -> str:
    there_and_back = 2
    data = torch.arange(COPY_BYTES // 4, dtype=torch.int32)
    began = time.perf_counter()
    back = data.to(place, copy=True).to("cpu", copy=True)
    seconds = time.perf_counter() - began
    if not torch.equal(data, back):
        raise RuntimeError(f"{int((data != back).sum())} of {data.numel()} numbers came back changed")
    megabytes = COPY_BYTES // 10**6
    return f"{megabytes} MB there and back, {there_and_back * COPY_BYTES / seconds / 1e9:.1f} GB/s"


def _matmul(torch: Any, place: str) -> str:
    size = MATMUL_SIZE_CPU if place == "cpu" else MATMUL_SIZE_GPU
    left, right = (torch.randn(size, size, device=place) for _ in range(2))
    (left @ right).sum().item()
    began = time.perf_counter()
    product = left @ right
    _finish(torch, place)
    seconds = time.perf_counter() - began
    expected = left[0].double().cpu() @ right.double().cpu()
    error = float((product[0].double().cpu() - expected).abs().max() / expected.abs().max())
    # Written so that NaN fails as well.
    if not error <= MATMUL_ERROR_MAX:
        raise RuntimeError(f"wrong result: relative error {error:.2g} is over {MATMUL_ERROR_MAX:g}")
    return f"{size} x {size}, {2 * size**3 / seconds / 1e9:,.0f} GFLOP/s"


def _train(torch: Any, place: str) -> str:
    """A small network learns a surface of two variables; its loss must fall."""
    points = torch.rand(TRAINING_POINTS, 2, device=place) * 2 - 1
    heights = torch.sin(3 * points[:, :1]) * points[:, 1:]
    layers = torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    network = torch.nn.Sequential(*layers).to(place)
    losses = []
    for _ in range(TRAINING_STEPS):
        loss = (network(points) - heights).square().mean()
        network.zero_grad()
        loss.backward()
        # By hand: the first optimizer of a process imports torch's compiler, for seconds.
        with torch.no_grad():
            for weights in network.parameters():
                weights -= TRAINING_RATE * weights.grad
        losses.append(loss.detach())
    first, last = float(losses[0]), float(losses[-1])
    if not last <= first * TRAINING_LOSS_RATIO_MAX:
        raise RuntimeError(f"the loss did not fall: {first:.4f} -> {last:.4f} in {TRAINING_STEPS} steps")
    return f"loss {first:.4f} -> {last:.4f} in {TRAINING_STEPS} steps"


def _finish(torch: Any, place: str) -> None:
    """Wait until the device has done what it was given; a CPU has by then."""
    if place != "cpu":
        torch.cuda.synchronize(place)


def _heading(report: Report) -> list[str]:
    lines = [f"python   {report.python}"]
    if report.torch is not None:
        lines.append(f"torch    {report.torch}, CUDA {report.cuda or 'none'}")
    lines += [f"job      {name}={value}" for name, value in report.environment.items()] or [
        "job      none: not in a job"
    ]
    for device in report.devices:
        memory = ""
        if device.memory_bytes is not None and device.memory_free_bytes is not None:
            memory = f", {device.memory_bytes // 10**6:,} MB, {device.memory_free_bytes // 10**6:,} MB free"
        lines.append(f"device   {device.place}  {device.name}{memory}  {device.uuid}".rstrip())
    return lines


def _check_line(check: Check) -> str:
    verdict = "ok  " if check.is_ok else "FAIL"
    return f"{verdict}  {check.name:<8}{check.duration_ms:9.1f} ms  {check.place:<6}  {check.detail}"


def _verdict(report: Report) -> str:
    failed = [check.name for check in report.checks if not check.is_ok]
    if failed:
        return f"self-test FAILED: {', '.join(dict.fromkeys(failed))}"
    return f"self-test passed: {len(report.checks)} checks"


def _print(line: str) -> None:
    print(line, flush=True)


def _silence(line: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
