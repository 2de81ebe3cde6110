"""As much of PyTorch as tests/gpu/load.py uses, on the fake driver's devices: what it holds and computes, they show.

It stands for no figure of a real GPU; it shows that the tests of tests/gpu do what they say where they have one.
"""

from __future__ import annotations

import atexit
import fcntl
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.0+fake"
version = SimpleNamespace(cuda="0.0")
bfloat16, float16, uint8 = "bfloat16", "float16", "uint8"
BYTES_OF = {bfloat16: 2, float16: 2, uint8: 1}
BUSY_W, IDLE_W = 650, 70
device = str


class Array:
    """So many bytes on the device."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * BYTES_OF[dtype]

    def __matmul__(self, other: Array) -> Array:
        return Array(self.shape, self.dtype)

    def __getitem__(self, place: int) -> Array:
        return self

    def item(self) -> int:
        return 1


class Machine:
    """The control file, which several processes change: one after the other."""

    def __init__(self) -> None:
        # Where the file is stands beside this one: a job has an environment of its own.
        self.file = Path(Path(__file__).with_name("control").read_text())
        self.held_bytes = 0
        self.shown_at = time.monotonic()

    @property
    def uuid(self) -> str:
        """The first device that is visible."""
        values = self._values()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        return values[f"{first}.uuid"] if first.isdigit() else first

    def change(self, work: Callable[[dict[str, str], int], None]) -> None:
        """Change the values of the own device."""
        with self.file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = self._values()
            index = next(int(key.partition(".")[0]) for key, value in values.items() if value == self.uuid)
            work(values, index)
            draft = self.file.with_suffix(f".{os.getpid()}")
            draft.write_text("".join(f"{key} {value}\n" for key, value in values.items()))
            draft.replace(self.file)

    def hold(self, size_bytes: int) -> None:
        """Take memory; the process is on the device from then on."""
        self.held_bytes += size_bytes

        def taken(values: dict[str, str], index: int) -> None:
            values[f"{index}.memory_used"] = str(int(values[f"{index}.memory_used"]) + size_bytes)
            values[f"{index}.process"] = f"{os.getpid()} {self.held_bytes}"

        self.change(taken)

    def show(self) -> None:
        """Compute since the last time."""
        before, self.shown_at = self.shown_at, time.monotonic()

        def busy(values: dict[str, str], index: int) -> None:
            used_mj = round((self.shown_at - before) * BUSY_W * 1000)
            values[f"{index}.energy"] = str(int(values[f"{index}.energy"]) + used_mj)
            values[f"{index}.utilization"], values[f"{index}.power"] = "99", str(BUSY_W * 1000)

        self.change(busy)

    def leave(self) -> None:
        """Give everything back."""

        def idle(values: dict[str, str], index: int) -> None:
            values[f"{index}.memory_used"] = str(int(values[f"{index}.memory_used"]) - self.held_bytes)
            values[f"{index}.utilization"], values[f"{index}.power"] = "0", str(IDLE_W * 1000)
            values.pop(f"{index}.process", None)

        if self.held_bytes:
            self.change(idle)

    def _values(self) -> dict[str, str]:
        lines = self.file.read_text().splitlines()
        return dict(line.partition(" ")[::2] for line in lines if line)


_machine = Machine()
atexit.register(_machine.leave)


def randn(*shape: int, device: str, dtype: str) -> Array:
    """A matrix."""
    return ones(shape, dtype=dtype, device=device)


def ones(shape: int | tuple[int, ...], *, dtype: str, device: str) -> Array:
    """Memory that is held."""
    made = Array((shape,) if isinstance(shape, int) else shape, dtype)
    _machine.hold(made.nbytes)
    return made


def _synchronize() -> None:
    time.sleep(0.05)
    _machine.show()


cuda = SimpleNamespace(
    is_available=lambda: True,
    is_bf16_supported=lambda: True,
    device_count=lambda: 1,
    memory_allocated=lambda: _machine.held_bytes,
    synchronize=_synchronize,
    get_device_properties=lambda index: SimpleNamespace(uuid=_machine.uuid.removeprefix("GPU-")),
)
