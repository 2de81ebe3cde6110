"""A driver library for tests: NVML's names in C, steered through a file while a program uses it.

`FakeNvml(folder, devices=2)` describes a machine; give its `environment()` to a child process and
nvidia-ml-py there loads it in place of the driver's library. The child may be anything, up to a whole agent.
`nvml.c` is the library.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
COMPILE_TIMEOUT_SECONDS = 60

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIBRARY_VERSION_MISMATCH = 18
UNKNOWN = 999

DEFAULTS = {
    "memory_total": 80_000_000_000,
    "memory_used": 500_000_000,
    "memory_reserved": 500_000_000,
    "utilization": 0,
    "memory_utilization": 0,
    "temperature": 35,
    "power": 70_000,
    "power_limit": 700_000,
    "energy": 123_456_789,
    "clock_sm": 1980,
    "clock_memory": 2619,
    "fan": 30,
    "throttle": 0,
    "ecc_uncorrected": 0,
    "remap_pending": 0,
    "remap_failed": 0,
    "retired_pending": 0,
    "mig": 0,
}


def compiler() -> str | None:
    """The C compiler of this machine: $CC, cc, gcc or clang."""
    names = [os.environ.get("CC"), "cc", "gcc", "clang"]
    return next((name for name in names if name and shutil.which(name)), None)


@functools.cache
def build() -> Path:
    """Compile the library, once in this process; the directory that holds libnvidia-ml.so.1."""
    command = compiler()
    if command is None:
        raise RuntimeError("no C compiler for the NVML test library; Debian, Ubuntu: apt-get install gcc libc6-dev")
    directory = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = directory / "libnvidia-ml.so.1"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    argv = [command, *flags, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"the NVML test library does not compile:\n{done.stderr}")
    return directory


class FakeNvml:
    """A machine with `devices` GPUs of 80 GB, as the control file in `folder` has it at each call."""

    def __init__(self, folder: Path, *, devices: int = 2, name: str = "NVIDIA H100 80GB HBM3") -> None:
        self.control = folder / "nvml-control"
        self._system: dict[str, object] = {"devices": devices, "driver": "580.95.05", "cuda": 13000}
        self._values: dict[str, object] = {}
        self._rules: set[str] = set()
        self._processes: dict[tuple[int, int], str] = {}
        self._xids: list[str] = []
        for index in range(devices):
            texts = {"uuid": self.uuid(index), "name": name, "pci": f"00000000:{index + 1:02X}:00.0"}
            self._values |= {f"{index}.{key}": value for key, value in (DEFAULTS | texts).items()}
        self._write()

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-00000000-0000-4000-8000-{index:012d}"

    def environment(self) -> dict[str, str]:
        """Variables for a child process, to be put over its own."""
        paths = [str(build()), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": ":".join(path for path in paths if path),
            "FAKE_NVML_CONTROL": str(self.control),
        }

    def set(self, index: int, **values: int) -> None:
        """Change counters (the names of DEFAULTS) of one device."""
        unknown = values.keys() - DEFAULTS.keys()
        assert not unknown, f"no such counter: {unknown}"
        self._values |= {f"{index}.{key}": value for key, value in values.items()}
        self._write()

    def lack(self, index: int, *counters: str) -> None:
        """The device does not support these counters (the names of DEFAULTS)."""
        for counter in counters:
            del self._values[f"{index}.{counter}"]
        self._write()

    def fail(self, index: int | None, function: str, code: int = UNKNOWN) -> None:
        """This NVML function (or "*") fails with `code`, on this device or (None) on the whole system."""
        self._rule(index, f"fail {function} {code}")

    def hang(self, index: int | None, function: str) -> None:
        """This NVML function (or "*") does not return until `heal`."""
        self._rule(index, f"hang {function}")

    def lose(self, index: int) -> None:
        """The device falls off the bus."""
        self._rule(index, "lost")

    def take_down(self, code: int = DRIVER_NOT_LOADED) -> None:
        """The driver is being reset: every call of everybody fails with `code` until `bring_up`."""
        self._system["down"] = code
        self._write()

    def bring_up(self) -> None:
        """The driver is back from a reset: what was opened before it does not work, its own counts begin at 0."""
        del self._system["down"]
        self._system["driver_start"] = int(str(self._system.get("driver_start", 1))) + 1
        self._values |= {key: 0 for key in self._values if key.endswith((".energy", ".ecc_uncorrected"))}
        self._write()

    def heal(self, index: int | None) -> None:
        """End every failure, hang and loss of this device, or (None) of the system."""
        prefix = "" if index is None else f"{index}."
        kinds = tuple(f"{prefix}{kind}" for kind in ("fail", "hang", "lost"))
        self._rules = {rule for rule in self._rules if not rule.startswith(kinds)}
        self._write()

    def raise_xid(self, index: int, xid: int) -> None:
        self._xids.append(f"xid {index} {xid}")
        self._write()

    def start_process(
        self, index: int, pid: int, memory_bytes: int | None = None, *, is_graphics: bool = False
    ) -> None:
        """A process appears on the device; `memory_bytes` None: the driver does not tell."""
        kind = "graphics" if is_graphics else "process"
        self._processes[index, pid] = f"{index}.{kind} {pid} {-1 if memory_bytes is None else memory_bytes}"
        self._write()

    def end_process(self, index: int, pid: int) -> None:
        del self._processes[index, pid]
        self._write()

    def _rule(self, index: int | None, rule: str) -> None:
        self._rules.add(rule if index is None else f"{index}.{rule}")
        self._write()

    def _write(self) -> None:
        values = {**self._system, **self._values}
        lines = [f"{key} {value}" for key, value in values.items()]
        lines += [*sorted(self._rules), *self._processes.values(), *self._xids]
        draft = self.control.with_suffix(".new")
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
        draft.replace(self.control)
