"""`python -S -m tests.drills.outsider PLAN.json`: ask, look and judge until it is told that all is over.

The plan says who the people are and how gpuctl is called. Beside it lie `notes/`, what the jobs wrote, `news.jsonl`,
what the operator tells everybody (a store that was put back, and the end), and `verdicts.jsonl`, what is found here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.drills.outsider.commands import Gpuctl, Said, now_ns
from tests.drills.outsider.evidence import About, Cut, Finding, Look, Wish, ran
from tests.drills.outsider.judge import OK, OUT_OF_TIME, UNAVAILABLE, Judge

JOB = Path(__file__).with_name("job.py")
LOOKERS = 2
AGAIN_SECONDS = 0.5
ANYBODY_MAX = 300
"""So many ids of jobs that the queue showed are remembered, to ask for what one may not see."""

OTHERS_LOOKED_AT_MAX = 40
"""In the end so many jobs are looked at by those whom they are not, too."""

KINDS = ((0.0, 1, 0), (0.2, 20, 0), (1.0, 100, 4), (2.0, 5_000, 0), (8.0, 200, 0), (20.0, 400, 0))
"""Jobs: for how many seconds, how many lines they print, and the code that they end with."""


class Outsider:
    """Three people and what they know."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self._folder, self._plan = folder, plan
        self._rng = random.Random(f"outsider {plan['seed']}")
        self._judge = Judge({name: who["role"] for name, who in plan["people"].items()}, plan["privacy"])
        self._gpuctl = {
            name: Gpuctl(
                argv=plan["gpuctl"], scheduler=plan["scheduler"], token_file=who["token_file"], home=folder / "home"
            )
            for name, who in plan["people"].items()
        }
        self._users = [name for name, who in plan["people"].items() if who["role"] == "user"]
        self._verdicts = (folder / "verdicts.jsonl").open("a", buffering=1)
        self._is_over = asyncio.Event()
        self._anybodys: list[int] = []
        self._heard = 0
        self._found = 0

    async def live(self) -> int:
        """Do it all; answers the number of findings."""
        (self._folder / "home").mkdir(exist_ok=True)
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(self._hear())
            async with asyncio.TaskGroup() as busy:
                for person in self._users:
                    busy.create_task(self._ask_for_work(person))
                for _ in range(LOOKERS):
                    busy.create_task(self._look_around())
            await self._look_at_all()
            hearing.cancel()
        self._tell(self._judge.ended(ran(self._folder / "notes")))
        known = self._judge.known.values()
        self._write(
            what="verdict",
            findings=self._found,
            asked=len(known),
            ended=sum(bool(each.outcome) for each in known),
            looks=self._judge.looks,
        )
        return self._found

    # --- the operator's word

    async def _hear(self) -> None:
        while True:
            self._read_news()
            await asyncio.sleep(AGAIN_SECONDS / 2)

    def _read_news(self) -> None:
        file = self._folder / "news.jsonl"
        news = file.read_text().splitlines(keepends=True) if file.exists() else []
        for line in news[self._heard :]:
            if not line.endswith("\n"):
                return
            self._heard += 1
            told = json.loads(line)
            if told["what"] == "cut":
                self._judge.cut(Cut(told["since_ns"], told["until_ns"]))
            else:
                self._is_over.set()

    # --- asking

    async def _ask_for_work(self, person: str) -> None:
        """At least one job each."""
        for number in itertools.count(1):
            seconds, count, code = self._rng.choice(KINDS)
            wish = Wish(
                request=f"{person}-{number}",
                person=person,
                word=secrets.token_hex(8),
                value=secrets.token_hex(8),
                seconds=min(seconds, self._plan["seconds_max"]),
                lines=count,
                code=code,
            )
            await self._submit(wish)
            await self._pause(self._rng.expovariate(1 / self._plan["seconds_per_submit"]))
            if self._is_over.is_set():
                return

    async def _submit(self, wish: Wish) -> None:
        """Until it is acknowledged."""
        command = (self._plan["python"], "-S", "-E", str(JOB), str(self._folder / "notes"), wish.word)
        told = (f"{wish.seconds}", f"{wish.lines}", f"{wish.code}")
        options = ("-o", "json", "--request-id", wish.request, "--name", wish.request, "--cwd", "/", "--grace", "2s")
        self._judge.asked(wish, now_ns())
        while True:
            value = f"OUTSIDERS_VALUE={wish.value}"
            said = await self._gpuctl[wish.person]("submit", *options, "--env", value, "--", *command, *told)
            if said.code == OK:
                job = int(json.loads(said.out)["first_job_id"])
                self._read_news()
                self._tell(self._judge.acknowledged(wish.request, job, said.ended_ns))
                self._write(what="answered", request=wish.request, word=wish.word, job=job, ns=said.ended_ns)
                return
            if said.code not in (UNAVAILABLE, OUT_OF_TIME):
                text = f"submit of {wish.request} ended with {said.code}: {said.err.decode(errors='replace')[-500:]}"
                self._tell([Finding("nothing strange", text)])
                return
            await asyncio.sleep(AGAIN_SECONDS)

    # --- looking

    async def _look_around(self) -> None:
        """Sample what people may see, and what they may not."""
        while not self._is_over.is_set():
            person = self._rng.choice(list(self._plan["people"]))
            about = self._rng.choice((About.JOB, About.LOGS, About.LOGS, About.STORY, About.QUEUE))
            mine = [each.job for each in self._judge.known.values() if each.job]
            pool = mine if mine and self._rng.random() < 0.7 else self._anybodys or mine
            if about is About.QUEUE or not pool:
                await self._look(person, About.QUEUE)
            else:
                await self._look(person, about, self._rng.choice(pool[-20:]))
            await self._pause(self._rng.expovariate(1 / self._plan["seconds_per_look"]))

    async def _look(self, person: str, about: About, job: int = 0) -> Said:
        words = {
            About.JOB: ("job", str(job), "-o", "json"),
            About.LOGS: ("logs", str(job), "--raw", "--stdout"),
            About.STORY: ("story", str(job), "-o", "json"),
            About.QUEUE: ("queue", "--all", "--limit", "200", "-o", "json"),
            About.WAIT: ("wait", str(job)),
        }[about]
        said = await self._gpuctl[person](*words)
        self._read_news()
        look = Look(
            person=person,
            about=about,
            job=job,
            code=said.code,
            out=said.out,
            err=said.err,
            begun_ns=said.begun_ns,
            ended_ns=said.ended_ns,
        )
        self._tell(self._judge.looked(look))
        if about is About.QUEUE and said.code == OK:
            shown = [int(job["id"]) for job in json.loads(said.out)["jobs"]]
            self._anybodys = sorted({*self._anybodys, *shown})[-ANYBODY_MAX:]
        return said

    async def _look_at_all(self) -> None:
        """Once it is over: everybody waits for the ends of what is theirs, and looks at all of it."""
        all_known = [each for each in self._judge.known.values() if each.job]
        for known in all_known:
            person = known.wish.person
            while not known.outcome:
                said = await self._look(person, About.JOB, known.job)
                if said.code not in (OK, UNAVAILABLE, OUT_OF_TIME):
                    break
                await asyncio.sleep(0 if known.outcome else AGAIN_SECONDS)
            await self._insist(person, About.JOB, known.job)
            await self._insist(person, About.LOGS, known.job)
        for known in self._rng.sample(all_known, min(len(all_known), OTHERS_LOOKED_AT_MAX)):
            for person in self._plan["people"]:
                if person != known.wish.person:
                    await self._insist(person, About.JOB, known.job)
                    await self._insist(person, About.LOGS, known.job)
            await self._insist(known.wish.person, About.WAIT, known.job)

    async def _insist(self, person: str, about: About, job: int) -> None:
        while (await self._look(person, about, job)).code in (UNAVAILABLE, OUT_OF_TIME):  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_over.wait()
        except TimeoutError:
            pass

    # --- telling

    def _tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._found += 1
            self._write(what="finding", rule=finding.rule, text=finding.text)

    def _write(self, **facts: object) -> None:
        self._verdicts.write(json.dumps({"ns": now_ns(), **facts}) + "\n")


def main() -> int:
    """Read the plan and carry it out."""
    file = Path(sys.argv[1])
    return 1 if asyncio.run(Outsider(file.parent, json.loads(file.read_text())).live()) else 0


if __name__ == "__main__":
    sys.exit(main())
