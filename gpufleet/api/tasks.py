"""Calls of Python made into files that go along with an array: its items make them, `task_program.py` says how."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import cloudpickle

from gpufleet.errors import GpufleetError, invalid

FOLDER = ".gpufleet-calls"
"""Where its files lie in the folder of a job's files."""
LEFT = f"{FOLDER}/left"
"""Where it leaves what its calls gave."""

LOT_BYTES_MAX = 64 * 2**20
"""Calls of one array, pickled: each of its processes gets all of them. More are several arrays."""
LOT_CALLS_MAX = 10_000
"""Calls of one array."""

VERSION = "{}.{}".format(*sys.version_info)
"""What this interpreter is, and each that makes a call has to be."""

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""A function, what it is given by place, and by name."""


@dataclass(frozen=True, slots=True)
class Lot:
    """The calls of one array, `numbers` which of all calls each of them is."""

    functions: list[bytes]
    calls: list[tuple[int, bytes]]
    numbers: list[int]

    def job_count(self, chunk_size: int) -> int:
        """How many processes make them."""
        return -(-len(self.calls) // chunk_size)


def lots(calls: Sequence[Call], leave_out: Callable[[int, GpufleetError], None] | None = None) -> Iterator[Lot]:
    """The calls pickled, in lots within the bounds. Raises INVALID_ARGUMENT for what cannot be pickled.

    With `leave_out` it is given to that instead, by its number, and the others go on without it.
    """
    known: dict[int, bytes] = {}
    lot, size = Lot([], [], []), 0
    held: dict[bytes, int] = {}
    for number, (function, given, named) in enumerate(calls):
        try:
            if id(function) not in known:
                known[id(function)] = _pickled("function", function)
            what = f"items[{number}]" if leave_out is None else "arguments"
            arguments = _pickled(what, (given, dict(named)))
        except GpufleetError as problem:
            if leave_out is None:
                raise
            leave_out(number, problem)
            continue
        pickled = known[id(function)]
        digest = hashlib.sha256(pickled).digest()
        added = len(arguments) + (0 if digest in held else len(pickled))
        if lot.calls and (size + added > LOT_BYTES_MAX or len(lot.calls) >= LOT_CALLS_MAX):
            yield lot
            lot, size, held = Lot([], [], []), 0, {}
        if digest not in held:
            held[digest] = len(lot.functions)
            lot.functions.append(pickled)
        lot.calls.append((held[digest], arguments))
        lot.numbers.append(number)
        size += len(arguments) + len(pickled)
    if lot.calls:
        yield lot


def write(lot: Lot, folder: Path, chunk_size: int) -> None:
    """Write what goes along with the array."""
    shutil.copyfile(Path(__file__).with_name("task_program.py"), folder / "run.py")
    with zipfile.ZipFile(folder / "cloudpickle.zip", "w", zipfile.ZIP_DEFLATED) as package:
        for source in sorted(Path(cloudpickle.__file__).parent.glob("*.py")):
            package.write(source, f"cloudpickle/{source.name}")
    data = [*lot.functions, *(arguments for _, arguments in lot.calls)]
    places = [(start, len(each)) for start, each in zip(accumulate(map(len, data), initial=0), data, strict=False)]
    given = places[len(lot.functions) :]
    with (folder / "calls").open("wb") as file:
        file.write(f"{VERSION} {chunk_size} {len(lot.calls)}\n".encode())
        for (function, _), place in zip(lot.calls, given, strict=True):
            file.write("{} {} {} {}\n".format(*places[function], *place).encode())
        file.writelines(data)


def _pickled(what: str, value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
        return data
    except Exception as problem:
        why = f"it cannot be pickled: {problem}"
        raise invalid(what, why, next_step="Open files, connections and locks inside the function.") from problem


def command_of(python: str | None, cwd: object) -> list[str]:
    """What each process runs; elsewhere than in the folder of its files the program is named by that folder."""
    interpreter = python or sys.executable
    if cwd is None:
        return [interpreter, f"{FOLDER}/run.py"]
    return ["/bin/sh", "-c", f'exec "$0" "$GPUFLEET_FILES/{FOLDER}/run.py"', interpreter]


def mismatch(head: Mapping[str, Any], node: str) -> GpufleetError:
    """The interpreter there is of another version than this one."""
    return invalid(
        "python",
        f"{head.get('interpreter')} on node {node} is Python {head.get('here')}, and what was sent needs {VERSION}",
        next_step=f"Name another that is there: python='python{VERSION}'",
    )
