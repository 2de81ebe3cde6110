"""Runs rows on fleets: many at once, in batches of what happens to them, and a bystander's job meanwhile."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tests.containers.engine import why_no_engine
from tests.pairs.course import Course, Result, followed
from tests.pairs.events import OWN, SHARED, Happening
from tests.pairs.features import FEATURES, Row
from tests.pairs.site import Site, machine, running_site

ROWS_AT_ONCE = 8

Numbered = tuple[int, Row]


async def run_rows(rows: Sequence[Row], say: Callable[[Result], None]) -> list[Result]:
    """Run all rows, and say each result as it comes; a fleet for each way in which nodes run jobs."""
    results: list[Result] = []
    with machine(has_engine=any(row.image == "yes" for row in rows)) as on:
        for isolation in FEATURES["isolation"]:
            numbered = [(number, row) for number, row in enumerate(rows, 1) if row.isolation == isolation]
            if numbered:
                async with running_site(isolation, on) as site:
                    async for result in _on_site(site, numbered):
                        say(result)
                        results.append(result)
    return results


def rows_that_can_run(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """The rows for which this machine has what they need, and why the others are left out."""
    why = why_no_engine()
    return [row for row in rows if not why or row.image == "no"], why


async def _on_site(site: Site, rows: Sequence[Numbered]) -> AsyncIterator[Result]:
    for each in await _each_by_itself(site, [each for each in rows if each[1].event in OWN]):
        yield each
    for event, happening in SHARED.items():
        hit = [each for each in rows if each[1].event == event]
        for first in range(0, len(hit), ROWS_AT_ONCE):
            for each in await _together(site, hit[first : first + ROWS_AT_ONCE], happening):
                yield each


async def _each_by_itself(site: Site, rows: Sequence[Numbered]) -> list[Result]:
    if not rows:
        return []
    turns = asyncio.Semaphore(ROWS_AT_ONCE)

    async def in_turn(number: int, row: Row) -> Result:
        async with turns:
            return await followed(row, number, site, OWN[row.event])

    running = asyncio.gather(*(in_turn(number, row) for number, row in rows))
    trouble = await _trouble(site.bystander())
    return _blamed(await running, trouble)


async def _together(site: Site, rows: Sequence[Numbered], happening: Happening) -> list[Result]:
    event = _Shared(len(rows))
    running = [asyncio.create_task(followed(row, number, site, event)) for number, row in rows]
    for task in running:
        task.add_done_callback(event.has_ended)
    await event.all_wait.wait()
    trouble = await _trouble(happening(site)) or await _trouble(site.bystander())
    event.is_over.set()
    return _blamed(await asyncio.gather(*running), trouble)


async def _trouble(what: Awaitable[None]) -> str:
    """Where it fails, how."""
    try:
        await what
    except Exception:
        return traceback.format_exc(limit=-4)
    return ""


def _blamed(results: list[Result], trouble: str) -> list[Result]:
    """Trouble of the whole batch is told with each of its rows."""
    for each in results:
        each.trouble = "\n".join(filter(None, [each.trouble, trouble]))
    return results


class _Shared:
    """An event of all rows of a batch, which waits until each of them is ready, or over."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._waiting = 0
        self.all_wait, self.is_over = asyncio.Event(), asyncio.Event()

    async def __call__(self, course: Course) -> None:
        self._waiting += 1
        self._look()
        await self.is_over.wait()

    def has_ended(self, _: asyncio.Task[Result]) -> None:
        if not self.is_over.is_set():
            self._missing -= 1
            self._look()

    def _look(self) -> None:
        if self._waiting >= self._missing:
            self.all_wait.set()


def report(results: Sequence[Result]) -> str:
    """The rows that are not as they must be, each with its line and what was seen in place of what."""
    bad = [each for each in results if not each.is_good]
    return "\n\n".join([*map(str, bad), f"{len(results) - len(bad)} of {len(results)} rows are as they must be"])
