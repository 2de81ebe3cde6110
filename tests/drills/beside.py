"""The outsider beside a drill: how its process is started, what it is told, and what it found."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from gpufleet.v1 import scheduler_pb2

from gpufleet.security.tokens import write_token_file
from tests.e2e.client import Client
from tests.e2e.processes import clean_environment
from tests.several_nodes.network import Machine

ROOT = Path(__file__).parents[2]
FOLDER, NOTES, NEWS, VERDICTS, LOG = "outsider", "notes", "news.jsonl", "verdicts.jsonl", "log"
PEOPLE = {"fay": scheduler_pb2.ROLE_USER, "gil": scheduler_pb2.ROLE_USER, "ivy": scheduler_pb2.ROLE_ADMIN}
"""Two who submit, and an admin who reads everybody's."""

SECONDS_PER_SUBMIT, SECONDS_PER_LOOK = 10.0, 4.0
"""Of each user, and of each of two who look: a command is a quarter of a second of one processor."""

SECONDS_MAX = 20.0
"""No job of it runs for longer."""

END_SECONDS_MAX = 600.0
"""When all has ended, the outsider has looked at everything within this."""


def privacy_of(seed: int) -> str:
    """Who reads output in the drill of this seed: everybody, or its owner alone."""
    return random.Random(f"privacy {seed}").choice(("owner", "team"))


class Outsider:
    """The process, its folder, and the news that it is told."""

    def __init__(self, folder: Path, seed: int, python: str) -> None:
        self._folder = folder / FOLDER
        self._python = python
        self._seed = seed
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, admin: Client, place: Machine, scheduler: str) -> None:
        """Make its people's tokens, and let it begin on this machine."""
        (self._folder / NOTES).mkdir(parents=True)
        (self._folder / NOTES).chmod(0o1777)  # jobs write here, whoever they run as
        people = {}
        for name, role in PEOPLE.items():
            made = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user=name, role=role))
            file = self._folder / f"{name}.token"
            write_token_file(file, made.secret)
            people[name] = {"role": "admin" if role == scheduler_pb2.ROLE_ADMIN else "user", "token_file": str(file)}
        plan = {
            "seed": self._seed,
            "gpuctl": [sys.executable, "-P", "-m", "gpufleet.cli"],
            "python": self._python,
            "scheduler": scheduler,
            "privacy": privacy_of(self._seed),
            "people": people,
            "seconds_per_submit": SECONDS_PER_SUBMIT,
            "seconds_per_look": SECONDS_PER_LOOK,
            "seconds_max": SECONDS_MAX,
        }
        (self._folder / "plan.json").write_text(json.dumps(plan))
        with (self._folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*place.inside, sys.executable, "-S", "-m", "tests.drills.outsider", str(self._folder / "plan.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=clean_environment(self._folder, {}),
            )

    def tell(self, what: str, **facts: int) -> None:
        """What the operator tells everybody: `cut` with since_ns and until_ns, and `over`."""
        with (self._folder / NEWS).open("a") as file:
            file.write(json.dumps({"what": what, **facts}) + "\n")

    async def ended(self) -> None:
        """Return once it has judged, or has been given up."""
        process = self._process
        assert process is not None, "the outsider was not started"
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS_MAX):
                while process.poll() is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def verdict_of(folder: Path) -> tuple[list[tuple[str, str]], str]:
    """What the outsider found, as (rule, sentence), and how much it looked at; no verdict is a finding, too."""
    file = folder / FOLDER / VERDICTS
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = [(line["rule"], line["text"]) for line in lines if line["what"] == "finding"]
    last = lines[-1] if lines and lines[-1]["what"] == "verdict" else None
    if last is None:
        log = folder / FOLDER / LOG
        said = log.read_text(errors="replace")[-2000:] if log.exists() else "it was never started"
        return [*found, ("its verdict", f"the outsider came to no end: {said}")], "the outsider did not end"
    return (
        found,
        f"the outsider asked for {last['asked']} jobs, saw {last['ended']} end, and looked {last['looks']} times",
    )
