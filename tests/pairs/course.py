"""Takes one row through its life: what is typed, what is done to its job, and what is seen of it."""

from __future__ import annotations

import asyncio
import shlex
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.e2e.environments import REQUIREMENTS, wheel
from tests.e2e.processes import until
from tests.pairs.acting import ACTIONS
from tests.pairs.features import Row, levels
from tests.pairs.oracle import Sight, expected, runs_of
from tests.pairs.seen import seen
from tests.pairs.site import Person, Site
from tests.pairs.typed import FILE, FOLDER, GROUP, INPUT, PACKAGE, SECRET, Places, line, stays, words
from tests.pairs.typing_at import Done
from tests.ports import kept_port

ROW_SECONDS_MAX = 240.0
"""The whole life of a row; far more than it takes."""

STDOUT, HELD, QUEUED = job_pb2.STREAM_STDOUT, job_pb2.JOB_STATE_HELD, job_pb2.JOB_STATE_QUEUED

Event = Callable[["Course"], Awaitable[None]]


@dataclass(slots=True)
class Result:
    """What became of a row: without differences and trouble it passed."""

    row: Row
    typed: str
    differences: list[str] = field(default_factory=list)
    trouble: str = ""
    story: str = ""
    """What happened to the job of a row that did not pass."""

    @property
    def is_good(self) -> bool:
        return not self.differences and not self.trouble

    def __str__(self) -> str:
        chosen = ",".join(f"{name}={level}" for name, level in levels(self.row).items())
        again = f"again: make pairs ARGS={shlex.quote(f'--row {shlex.quote(chosen)}')}"
        return "\n".join([f"typed: {self.typed}", again, *self.differences, self.trouble, self.story]).rstrip()


@dataclass(slots=True)
class Course:
    """A row on its way."""

    row: Row
    at: Places
    person: Person
    job: int = 0
    sight: dict[str, object] = field(default_factory=dict)
    """What is seen on the way."""

    async def run(self, event: Event) -> None:
        """Type the row's line, do what else belongs to it, and wait for the end of its job."""
        begun = asyncio.create_task(self._begin())
        try:
            await self._is_known(begun)
            if self.row.hold == "yes":
                await self._is_released()
            if stays(self.row):
                await self._stays(begun)
                for name, action in ACTIONS.items():
                    if getattr(self.row, name) != "no":
                        self.sight |= await action(self.row, self.at, self.person, self.job)
                await event(self)
                if not self.is_cut():
                    await self.typed("signal", "USR1", str(self.job))
                if self.row.event == "store restored" and len(list(runs_of(self.row))) > 1:
                    await self._may_run_again()
            if self.row.typed != "submit":
                self.sight[f"exit code of {self.row.typed}"] = (await begun).code
            self.sight["exit code of wait"] = (await self.person.type("wait", *self._waited_for(), stays=True)).code
        finally:
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)

    async def typed(self, *words: str, stdin: bytes = b"") -> Done:
        """Type a command that must succeed."""
        done = await self.person.type(*words, stdin=stdin)
        assert done.code == 0, f"gpuctl {' '.join(words)}: {done.err}"
        return done

    def is_cut(self) -> bool:
        """Whether what happens ends the first attempt."""
        return not next(runs_of(self.row)).goes_on

    async def pins(self) -> str:
        """The GPUs that the job has, as `--node-gpu-ids` names them."""
        held: dict[str, set[int]] = {}
        for job in await self.ids():
            for rank in (await self.person.client.job(job)).attempts[-1].ranks:
                held.setdefault(rank.node, set()).update(rank.device_indices)
        return ";".join(f"{node}:{','.join(map(str, sorted(indices)))}" for node, indices in sorted(held.items()))

    async def ids(self) -> list[int]:
        """The job, or the items of the array."""
        if self.row.array == "no":
            return [self.job]
        shown = [await self.person.shown("job", f"{self.job}.{item}") for item in ("1", "2")]
        return [int(each["id"]) for each in shown]

    async def _begin(self) -> Done:
        keys = INPUT.encode() if self.row.typed in ("run -i", "shell") else b""
        ranks = 2 if self.row.nodes == "two" else 1
        terminal = ranks if self.row.typed == "shell" else 0
        return await self.person.type(*words(self.row, self.at), stdin=keys, stays=True, on_terminal=terminal)

    async def _is_known(self, begun: asyncio.Task[Done]) -> None:
        """Wait for the job's id."""

        async def is_there() -> bool:
            request = {"user": self.person.name, "include_finished": True}
            jobs = (await self.person.client.queue(**request)).jobs
            mine = [each.id for each in jobs if each.spec.name == self.at.name and not each.array_id]
            self.job = min(mine, default=0)
            assert mine or not begun.done() or begun.result().code == 0, begun.result()
            return bool(mine)

        await until("the job is known", is_there)

    async def _is_released(self) -> None:
        """See that the job is held, and let it go."""
        self.sight["is held first"] = (await self.person.client.job(self.job)).state == HELD
        await self.typed("release", str(self.job))

    async def _may_run_again(self) -> None:
        """Let it go: what a store knew that was put back else waits for the fence (docs/rules/jobs.md 4.34)."""

        async def waits() -> bool:
            jobs = [await self.person.client.job(each) for each in await self.ids()]
            return all(job.state == QUEUED and job.attempt_count for job in jobs)

        await until("the job waits to run again", waits)
        await self.typed("release", str(self.job))

    async def _stays(self, begun: asyncio.Task[Done]) -> None:
        """Wait until every process of the job has said that it stays."""
        count = (2 if self.row.array == "yes" else 1) * (2 if self.row.nodes == "two" else 1)

        async def all_stay() -> bool:
            streams = [await self.person.client.output(each, follow=False) for each in await self.ids()]
            said = [data for each in streams for (_, _, stream), data in each.items() if stream == STDOUT]
            assert not begun.done() or self.row.typed == "submit" or self.row.event == "time limit", begun.result()
            return sum(data.rstrip().endswith(b"stays") for data in said) == count

        await until("the job stays", all_stay)

    def _waited_for(self) -> tuple[str, ...]:
        match self.row.waits_by:
            case "id":
                return (str(self.job),)
            case "name":
                return ("--name", self.at.newest_name(self.row))
            case "label":
                return ("--label", self.at.label)


def lay_out(folder: Path) -> None:
    """The files of the folder in which a row is typed."""
    (folder / "lies").mkdir()
    (folder / "lies" / "more.txt").write_text(f"{FILE}\n")
    (folder / "words.txt").write_text(f"{FOLDER}\n")
    (folder / "requirements.txt").write_text(REQUIREMENTS)
    wheel(folder / "wheels", PACKAGE)


async def prepare(row: Row, at: Places, person: Person) -> str:
    """The folder in which a row is typed, and what must be there before; answers the job that ended before."""
    lay_out(person.folder)
    if row.secret == "yes":
        assert (await person.type("secret", "set", "pairs", stdin=SECRET.encode())).code == 0
    if row.group == "yes":
        async with person.site.admin() as admin:
            done = await admin.type("group", "set", GROUP, "--gpus", "1000", "--add", person.name)
            assert done.code == 0, done.err
    if row.after == "nothing":
        return ""
    program = {"ok": "true", "fail": "false"}[row.after]
    done = await person.type("submit", "--cwd", "/", "--", program)
    assert done.code == 0, done.err
    await person.type("wait", done.out.strip())
    return done.out.strip()


async def followed(row: Row, number: int, site: Site, event: Event) -> Result:
    """Run a row to its end and compare what is seen with what must be."""
    at = Places(number=number, outputs=site.outputs, url=f"{site.hook.url}/{number}", port=kept_port())
    result = Result(row, line(row, at))
    async with site.person(f"person-{number}") as person:
        course = Course(row, at, person)
        try:
            async with asyncio.timeout(ROW_SECONDS_MAX):
                at.before = await prepare(row, at, person)
                await course.run(event)
                found = {**course.sight, **await seen(row, at, person, course.job)}
            result.differences = list(differences(expected(row), found))
        except Exception:
            result.trouble = traceback.format_exc(limit=-4)
        if not result.is_good and course.job:
            result.story = (await person.type("story", str(course.job))).out
    return result


def differences(wanted: Sight, found: Sight) -> Iterator[str]:
    """What was expected and not seen, and the other way round."""
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            yield f"{name}:\n  expected {wanted.get(name)!r}\n  seen     {found.get(name)!r}"
