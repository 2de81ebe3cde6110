"""What makes a job's environment, followed: each byte once, through agents that are away, and to the next attempt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from scheduler.api.output import setup_output
from scheduler.api.output.setup_output import SetupReader
from scheduler.state.ids import JobId, RankKey

JOB = JobId(1)
DEADLINE_SECONDS = 60


def attempt(number: int, *, has_started: bool = False) -> Any:
    rank = SimpleNamespace(started_at=1 if has_started else None, placement=SimpleNamespace(node=f"n{number}"))
    return SimpleNamespace(number=number, ranks=(rank,), keys=lambda job: (RankKey(job, number, 0),), lineage="")


@dataclass
class Site:
    """A job and its nodes, as each look finds them: `looks` change something before the next answer."""

    looks: list[Any]
    past: list[Any] = field(default_factory=list)
    attempt: Any = None
    has_ended: bool = False
    written: bytes = b""
    is_away: bool = False
    asked: list[tuple[int, int]] = field(default_factory=list)

    async def of_setup(self, node: str, key: RankKey, offset: int = 0) -> tuple[bytes, int]:
        if self.is_away:
            raise GpufleetError(Reason.NODE_UNREACHABLE, f"the agent of node {node} is not connected")
        self.asked.append((key.attempt, offset))
        return self.written[offset:], len(self.written)

    async def find(self, job_id: int) -> Any:
        if self.looks:
            self.looks.pop(0)(self)
        environment = object()
        return SimpleNamespace(
            id=JOB, spec=SimpleNamespace(environment=environment), past=tuple(self.past), attempt=self.attempt
        )

    async def show(self, job: JobId) -> tuple[job_pb2.Job, bool]:
        return job_pb2.Job(id=JOB), self.has_ended

    def follow_job(self, job: JobId, wakeup: asyncio.Event) -> None:
        wakeup.set()

    def unfollow_job(self, job: JobId, wakeup: asyncio.Event) -> None:
        pass


def changed(**fields: Any) -> Any:
    def change(site: Any) -> None:
        for name, value in fields.items():
            setattr(site, name, value)

    return change


async def read(site: Any, **asked: Any) -> list[tuple[int, int, bytes]]:
    """Attempt, offset and bytes of each piece."""
    request = scheduler_pb2.StreamOutputRequest(job_id=JOB, of_setup=True, **asked)
    reader = SetupReader(request, site, site, site.find, site.show)
    async with asyncio.timeout(DEADLINE_SECONDS):
        answers = [each async for each in reader.stream(await site.find(JOB))]
    assert answers[-1].is_end and answers[0].HasField("job")
    return [(each.attempt, each.offset, each.data) for each in answers if each.data]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_output, "LOOK_SECONDS", 0.0)


async def test_each_byte_comes_once_until_the_rank_runs() -> None:
    site = Site(
        [
            changed(),
            changed(attempt=attempt(1)),
            changed(written=b"one\n"),
            changed(),
            changed(is_away=True),
            changed(is_away=False, written=b"one\ntwo\n", attempt=attempt(1, has_started=True)),
        ]
    )
    assert await read(site, follow=True) == [(1, 0, b"one\n"), (1, 4, b"two\n")]
    assert site.asked == [(1, 0), (1, 0), (1, 4), (1, 4)], "what was read is not sent again"


async def test_a_reader_that_comes_back_gets_the_rest_and_one_that_wants_lines_the_newest() -> None:
    runs = attempt(1, has_started=True)
    position = scheduler_pb2.StreamPosition(attempt=1, stream=job_pb2.STREAM_STDOUT, offset=4)
    written = b"one\ntwo\nthree\n"
    assert await read(Site([], attempt=runs, written=written), positions=[position]) == [(1, 4, b"two\nthree\n")]
    assert await read(Site([], attempt=runs, written=written), tail_lines=1) == [(1, 8, b"three\n")]
    later = Site([changed(attempt=attempt(1), written=b"one\ntwo\n"), changed(written=written, attempt=runs)])
    assert await read(later, follow=True, tail_lines=1) == [(1, 4, b"two\n"), (1, 8, b"three\n")]


async def test_what_an_agent_began_anew_comes_behind_what_came_before() -> None:
    site = Site(
        [
            changed(attempt=attempt(1), written=b"begun\n"),
            changed(written=b"a\n"),
            changed(written=b"again\n", attempt=attempt(1, has_started=True)),
        ]
    )
    assert await read(site, follow=True) == [(1, 0, b"begun\n"), (1, 6, b"a\n"), (1, 8, b"ain\n")]


async def test_a_job_that_is_queued_again_is_followed_to_its_next_attempt() -> None:
    site = Site(
        [
            changed(attempt=attempt(1), written=b"one\n"),
            changed(attempt=None, past=[attempt(1)]),
            changed(attempt=attempt(2), written=b"two\n"),
            changed(attempt=attempt(2, has_started=True)),
        ]
    )
    assert await read(site, follow=True) == [(1, 0, b"one\n"), (2, 0, b"two\n")]
    ended = Site([changed(attempt=attempt(1), written=b"one\n"), changed(attempt=None, past=[attempt(1)])])
    assert await read(ended, follow=True, attempt=1) == [(1, 0, b"one\n")]


@pytest.mark.parametrize(
    ("site", "asked", "reason"),
    [
        (Site([]), {}, Reason.ATTEMPT_NOT_FOUND),
        (Site([], has_ended=True), {"follow": True}, Reason.ATTEMPT_NOT_FOUND),
        (Site([], attempt=attempt(1)), {"attempt": 2, "follow": True}, Reason.ATTEMPT_NOT_FOUND),
        (Site([], attempt=attempt(1)), {"rank": 1, "follow": True}, Reason.INVALID_ARGUMENT),
        (Site([], attempt=attempt(1, has_started=True)), {"follow": True}, Reason.OUTPUT_NOT_FOUND),
        (Site([], attempt=attempt(1), is_away=True), {}, Reason.NODE_UNREACHABLE),
        (Site([], past=[attempt(1)], is_away=True, has_ended=True), {"follow": True}, Reason.OUTPUT_NOT_FOUND),
    ],
)
async def test_what_cannot_be_had_is_told(site: Site, asked: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(GpufleetError) as refused:
        await read(site, **asked)
    assert refused.value.reason is reason
