"""What must be seen of a row: computed from the row and what the documents say, from nothing of the programs.

What is seen of a job is a mapping from a name ("state of 1", "output of 1, attempt 2, rank 0") to a value, so that
what was expected and what was seen are compared, and printed, alike.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.pairs.features import Row
from tests.pairs.typed import (
    FILE,
    FOLDER,
    GROUP,
    INPUT,
    PACKAGE,
    SECRET,
    SETUP,
    VARIABLE,
    limit_seconds,
    stays,
)

Sight = Mapping[str, object]

TIMED_OUT_CODE, NO_CODE = 124, 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt: how it ended, and whether it was let go on before."""

    code: int | None
    """128 + n for a signal; None where nobody knows."""
    goes_on: bool = True


def expected(row: Row) -> Sight:
    """Everything that must be seen of the row's job once it has ended."""
    runs = list(runs_of(row))
    state, code = end_of(row, runs[-1])
    items = ("1", "2") if row.array == "yes" else ("",)
    seen: dict[str, object] = {"exit code of wait": code, "still in the queue": 0, "left on the nodes": []}
    if row.typed != "submit":
        seen[f"exit code of {row.typed}"] = code
    for item in items:
        seen |= _item(row, runs, item, state)
    if row.array == "yes":
        seen["history"] = {"state": "FAILED" if state == "TIMED_OUT" else state}
    else:
        seen["history"] = {"state": state, "attempts": len(runs)}
    before = 1 if row.after != "nothing" else 0
    seen["usage"] = {
        "jobs": before + len(items),
        "starts": before + len(items) * len(runs),
        "has GPU time": has_gpus(row),
    }
    return {**seen, **_settings(row), **_on_the_way(row)}


def has_gpus(row: Row) -> bool:
    """Whether the job holds GPUs."""
    return row.gpus != "none" and row.gpu_mode != "never"


def _item(row: Row, runs: list[Run], item: str, state: str) -> Sight:
    """What is seen of an item, or of a job that is no array."""
    seen: dict[str, object] = {
        named("state", item): state,
        named("state over HTTP", item): state,
        named("attempts", item): len(runs),
    }
    for rank in range(2 if row.nodes == "two" else 1):
        said = [output(row, run, item, attempt, rank) for attempt, run in enumerate(runs, 1)]
        seen |= {named("output", item, attempt, rank): text for attempt, text in enumerate(said, 1)}
        if row.output_file == "yes":
            seen[named("output file", item, rank=rank)] = "".join(said)
        if row.download == "yes":
            seen[named("files", item, rank=rank)] = {"out/left": f"{len(runs)}\n"}
    if row.notify != "no":
        attempts = range(1, len(runs) + 1)
        seen[named("notices", item)] = [f"{attempt} {what}" for attempt in attempts for what in ("start", "end")]
    return seen


def _settings(row: Row) -> Sight:
    """How the job is shown to be set."""
    limit = limit_seconds(row)
    return {
        "is renamed": row.update == "name",
        "time limit": "1800s" if row.update == "limit" else limit and f"{limit}s",
        "group": GROUP if row.group == "yes" else "",
        "band": row.band,
    }


def _on_the_way(row: Row) -> Sight:
    """What is seen before the job has ended."""
    seen: dict[str, object] = {}
    if row.hold == "yes":
        seen["is held first"] = True
    if row.event == "hold":
        seen["hold is refused"] = True
    if row.executes == "yes":
        rank = 1 if row.nodes == "two" else 0
        variable, secret = (VARIABLE if row.variable == "yes" else "none"), (SECRET if row.secret == "yes" else "none")
        seen["exec"] = (0, f"rank {rank}, {variable}, {secret}\n")
    if row.forward == "yes":
        seen["forward"] = "port open\n"
    if row.update != "no":
        seen["update"] = (0, "")
    return seen


def named(what: str, item: str, attempt: int | None = None, rank: int | None = None) -> str:
    """The name of a thing that is seen of an item, an attempt and a rank."""
    parts = [f"item {item}"] * bool(item) + [f"attempt {attempt}"] * (attempt is not None)
    return ", ".join([what, *parts, *[f"rank {rank}"] * (rank is not None)])


def runs_of(row: Row) -> Iterator[Run]:
    """The attempts of each item, in their order."""
    attempt, retries = 1, 1 if row.retries == "yes" else 0
    first = _cut(row)
    if first is not None:
        yield first
        if not is_run_again(row):
            return
        attempt += 1
    while True:
        code = {"well": 0, "badly": 3, "badly once": 3 if attempt == 1 else 0}[row.ends]
        yield Run(code=code)
        if code == 0 or not retries:
            return
        attempt, retries = attempt + 1, retries - 1


def _cut(row: Row) -> Run | None:
    """How the first attempt ends where the event ends it."""
    stopped = Run(code=128 + signal.SIGTERM, goes_on=False)
    match row.event:
        case "cancel" | "time limit":
            return stopped
        case "preemption":
            return stopped if row.preemptible == "yes" else None
        case "node lost":
            return Run(code=None, goes_on=False)
        case _:
            return None


def is_run_again(row: Row) -> bool:
    """Whether another attempt follows the one that the event has ended."""
    match row.event:
        case "time limit":
            return row.on_timeout == "requeued"
        case "node lost":
            return row.typed not in ("run -i", "shell")
        case _:
            return row.event == "preemption"


def end_of(row: Row, last: Run) -> tuple[str, int]:
    """The state of the job, and what `gpuctl run` and `gpuctl wait` exit with."""
    if row.event == "cancel":
        return "CANCELLED", NO_CODE
    if row.event == "time limit" and not last.goes_on:
        return "TIMED_OUT", TIMED_OUT_CODE
    if last.code is None:
        return "FAILED", NO_CODE
    return ("SUCCEEDED" if last.code == 0 else "FAILED"), last.code


def output(row: Row, run: Run, item: str, attempt: int, rank: int) -> str:
    """What the job says of itself (job.sh)."""
    environment = {"none": "none", "requirements": PACKAGE, "setup": SETUP}[row.environment]
    said = {
        "attempt": str(attempt),
        "item": item or "none",
        "rank": f"{rank} of {2 if row.nodes == 'two' else 1}",
        "gpus": "1" if has_gpus(row) else "0",
        "share": "0.5" if has_gpus(row) and row.gpus == "share" else "none",
        "mode": row.gpu_mode,
        "limit": "yes" if limit_seconds(row) or (row.update == "limit" and attempt > 1) else "none",
        "variable": VARIABLE if row.variable == "yes" else "none",
        "secret": SECRET if row.secret == "yes" else "none",
        "folder": FOLDER if row.upload == "yes" else "none",
        "file": FILE if row.file == "yes" else "none",
        "environment": environment,
        "image": "yes" if row.image == "yes" else "none",
        "nice": "19" if row.process == "nice" else "none",
        "descriptors": "4000" if row.process == "rlimit" else "none",
    }
    if row.typed in ("run -i", "shell"):
        said["input"] = INPUT if rank == 0 else "none"  # of several ranks, rank 0 is typed to
    lines = [f"{name}: {value}" for name, value in said.items()]
    if row.typed == "shell" and rank == 0:
        lines.insert(-1, INPUT)  # a terminal shows what is typed
    if stays(row) and attempt == 1:
        lines += ["stays", "goes on"] if run.goes_on else ["stays"]
    return "".join(f"{each}\n" for each in lines)
