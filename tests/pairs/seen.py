"""Looks at a row's job once it has ended, by every way that its user has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2

from tests.pairs.features import Row
from tests.pairs.oracle import Sight, named
from tests.pairs.site import Person
from tests.pairs.typed import Places

SETTLES_SECONDS = 30.0
"""What nodes remove, and what is counted, follows the end of a job within this."""

POLL_SECONDS = 0.2


async def seen(row: Row, at: Places, person: Person, job: int) -> Sight:
    """What the user sees of a job that has ended."""
    sight: dict[str, object] = {}
    items = ("1", "2") if row.array == "yes" else ("",)
    whole = await person.shown("job", str(job))
    sight["is renamed"] = whole["spec"]["name"] != at.name
    sight["time limit"] = whole["spec"].get("time_limit")
    sight["group"] = whole["spec"]["group"]
    sight["band"] = whole["spec"]["band"].removeprefix("BAND_").lower()
    sight["still in the queue"] = len((await person.shown("queue", "--user", person.name))["jobs"])
    for item in items:
        sight |= await _item(row, at, person, f"{job}.{item}" if item else str(job), item)
    entry = next(
        (each for each in (await person.shown("history", "--user", person.name))["jobs"] if each["job_id"] == str(job)),
        None,
    )
    attempts = {} if row.array == "yes" or entry is None else {"attempts": entry["attempt_count"]}
    sight["history"] = entry and {"state": _short(entry["state"]), **attempts}
    sight["usage"] = await _usage(person, len(items) + (row.after != "nothing"))
    sight["left on the nodes"] = await _left(person, job)
    return sight


async def _item(row: Row, at: Places, person: Person, typed: str, item: str) -> Sight:
    """One item of an array, or the job itself."""
    shown = await person.shown("job", typed)
    over_http = (await person.get(f"jobs/{shown['id']}"))["job"]
    sight: dict[str, object] = {
        named("state", item): _short(shown["state"]),
        named("state over HTTP", item): _short(over_http["state"]),
        named("attempts", item): shown["attempt_count"],
    }
    streams = await person.client.output(int(shown["id"]), all_attempts=True)
    for (attempt, rank, stream), data in streams.items():
        if stream == job_pb2.STREAM_STDOUT:
            sight[named("output", item, attempt, rank)] = data.decode(errors="replace").replace("\r\n", "\n")
    if row.output_file == "yes":
        for rank in range(2 if row.nodes == "two" else 1):
            names = dict.fromkeys((at.name, at.newest_name(row)))  # a later attempt takes the newest
            files = [at.outputs / f"{name}-{shown['id']}-{rank}.log" for name in names]
            sight[named("output file", item, rank=rank)] = "".join(_text(file) or "" for file in files)
    if row.notify != "no":
        sight[named("notices", item)] = await _notices(row, at, person, shown["id"], shown["attempt_count"])
    if row.download == "yes":
        for rank in range(2 if row.nodes == "two" else 1):
            sight[named("files", item, rank=rank)] = await _files(row, person, typed, rank)
    return sight


async def _files(row: Row, person: Person, typed: str, rank: int) -> object:
    """What the job left, by name; `gpuctl run` has brought it already."""
    if row.typed == "submit":
        folder = person.folder / f"brought-{typed}-{rank}"
        done = await person.type("cp", f"{typed}:", str(folder), "--rank", str(rank))
        if done.code != 0:
            return f"exit code {done.code}: {done.err}"
    else:
        folder = person.folder / f"rank-{rank}" if row.nodes == "two" else person.folder
    return dict(_contents(folder))


def _text(file: Path) -> str | None:
    """What stands in a file, as a terminal would show it."""
    return file.read_bytes().decode(errors="replace").replace("\r\n", "\n") if file.exists() else None


async def _notices(row: Row, at: Places, person: Person, job: str, attempts: int) -> list[str]:
    """The starts and ends of which its node has said something, each once, once the last one is there."""
    said: list[str] = []
    for _ in range(round(SETTLES_SECONDS / POLL_SECONDS)):
        if row.notify == "URL":
            told = person.site.hook.notices(str(at.number))
            lines = [f"{each['job_id']} {each['attempt']} {each['notice']}" for each in told]
        else:
            lines = (_text(at.notices) or "").splitlines()
        said = [line.partition(" ")[2] for line in lines if line.split()[0] == job and line.endswith(("start", "end"))]
        if f"{attempts} end" in said:
            break
        await asyncio.sleep(POLL_SECONDS)
    return sorted(dict.fromkeys(said), key=lambda each: int(each.split()[0]))  # attempts may be on two nodes


def _contents(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((folder / "out").rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_text()


async def _usage(person: Person, jobs: int) -> Sight:
    """What was counted for the user, once as many jobs are."""
    total: dict[str, Any] = {}
    for _ in range(round(SETTLES_SECONDS / POLL_SECONDS)):
        total = (await person.shown("usage", "--user", person.name))["total"]
        if int(total["job_count"]) >= jobs:
            break
        await asyncio.sleep(POLL_SECONDS)
    return {
        "jobs": int(total["job_count"]),
        "starts": int(total["start_count"]),
        "has GPU time": total["gpu_seconds"] > 0,
    }


async def _left(person: Person, job: int) -> list[str]:
    """What nodes have of the job after they had the time to remove it."""
    for _ in range(round(SETTLES_SECONDS / POLL_SECONDS)):
        if not person.site.left_of(job):
            break
        await asyncio.sleep(POLL_SECONDS)
    return person.site.left_of(job)


def _short(state: str) -> str:
    return state.removeprefix("JOB_STATE_")
