"""Somebody who means harm, with a token of an ordinary user: submits hostile jobs until the drill is over."""

from __future__ import annotations

import asyncio
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError
from tests.drills.people import CALL_SECONDS_MAX, Person
from tests.e2e.client import Client

MAL = "mal"

WITHSTOOD = ("asks for others' jobs", "floods", "changes terminals", "bombs", "daemon")
"""What is borne on every node, and is in every drill."""

ISOLATED = ("reads", "kills")
"""What is borne where jobs run as their users: the agent is root, and isolates."""

LIMITED = ("eats memory", "forks")
"""What is borne where control groups keep jobs within their limits."""

HOSTILE = Path(__file__).with_name("hostile.py")
PACKAGES = sysconfig.get_path("purelib")
SECONDS_PER_SUBMIT = 8.0
TIME_LIMIT_SECONDS, GRACE_SECONDS = 20.0, 2.0
MEMORY_BYTES = 200_000_000


class Mal(Person):
    """What his jobs print is nobody's to check; what they get that they must not have is in `loot`."""

    def __init__(self, client: Client, seed: int, folder: Path, loot: Path, python: str, means: Sequence[str]) -> None:
        super().__init__(MAL, client, seed, folder, loot, python)
        self._chance = random.Random(f"drill {seed} {MAL}")
        self._place, self._loot = folder.parent, loot
        self._means = tuple(means)

    async def work(self, seconds: float, between_seconds: float = SECONDS_PER_SUBMIT) -> None:
        """Submit one of each, and then as chance has it."""
        loop = asyncio.get_running_loop()
        end, number = loop.time() + seconds, 0
        means = list(self._means)
        self._chance.shuffle(means)
        while loop.time() < end:
            how = means.pop() if means else self._chance.choice(self._means)
            number += 1
            spec = self._client.spec(
                *(self._python, "-S", str(HOSTILE), str(self._loot), str(self._place), PACKAGES, how),
                name=how,
                cpus=1,
                grace=GRACE_SECONDS,
                seconds=TIME_LIMIT_SECONDS,
                memory_bytes=MEMORY_BYTES,
            )
            request = scheduler_pb2.SubmitRequest(specs=[spec], request_id=f"{MAL}-{number}")
            answer = await self._insist(
                lambda request=request: self._client.stub.Submit(request, timeout=CALL_SECONDS_MAX)  # type: ignore[misc]
            )
            if not isinstance(answer, GpufleetError):
                self._diary.write("did", job=answer.first_job_id, how=how)
            await asyncio.sleep(self._chance.expovariate(1 / between_seconds))
