"""What a page does while programs are away, and when it is left open for long: it says so, comes back, stays small."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gpufleet.v1 import scheduler_pb2
from playwright.async_api import Page, expect

from tests.dashboard.house import House, Visitor
from tests.e2e.disks import small_disk
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.stage import Stage

pytestmark = [pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

JOBS, ROUNDS = 300, 4
"""So many jobs come and go in each round: a thousand messages or so."""

NODES_MORE_MAX, LISTENERS_MORE_MAX, HEAP_MORE_MAX = 100, 20, 3_000_000
"""What a page may hold more of after many messages than after some: nothing that follows their number."""


async def test_while_the_scheduler_starts_again_the_page_is_marked_stale_and_comes_back(own_house: House) -> None:
    house = own_house
    async with house.visitor("ann", "queue") as ann, house.visitor("bob", "devices") as bob:
        async with house.client("ann") as client:
            kept = await client.submit("true", is_held=True, name="kept")
        await expect(ann.job(kept)).to_be_visible()
        await expect(bob.gpu("n1", 0)).to_be_visible()
        await house.stage.fleet.scheduler.stop()
        for visitor in (ann, bob):
            await expect(visitor.page.locator(".stale")).to_contain_text("The scheduler is not heard just now.")
            await expect(visitor.page.locator(".stale")).to_contain_text("What you see is from")
        # What was known stays on the screen, and a call says why it cannot be made.
        await expect(ann.job(kept)).to_be_visible()
        await expect(bob.gpu("n1", 0)).to_be_visible()
        dialog = await ann.change(kept)
        await dialog.get_by_role("button", name="Release").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("No scheduler answers")
        await ann.page.keyboard.press("Escape")
        await house.stage.fleet.scheduler.start()
        await house.stage.fleet.node_is_ready("n1")
        for visitor in (ann, bob):
            await expect(visitor.page.locator(".stale")).to_be_hidden()
        async with house.client("ann") as client:
            new = await client.submit("sleep", "600", gpus=1, name="new")
        await expect(ann.job(new)).to_contain_text("running")
        await expect(
            bob.gpu("n1", 0)
            .locator(".cell-holder")
            .or_(bob.gpu("n1", 1).locator(".cell-holder"))
            .filter(has_text="ann")
        ).to_be_visible()
        await expect(ann.job(kept)).to_be_visible()


async def test_a_scheduler_that_hangs_is_told_though_its_connection_stands(own_house: House) -> None:
    scheduler = own_house.stage.fleet.scheduler
    async with own_house.visitor("bob", "devices") as bob:
        await expect(bob.gpu("n1", 0)).to_be_visible()
        scheduler.signal(signal.SIGSTOP)
        try:
            await expect(bob.page.locator(".stale")).to_contain_text("The scheduler is not heard just now.")
            await expect(bob.gpu("n1", 0)).to_be_visible()
        finally:
            scheduler.signal(signal.SIGCONT)
        await expect(bob.page.locator(".stale")).to_be_hidden()
        await expect(bob.gpu("n1", 0)).to_be_visible()


async def test_a_gateway_that_starts_again_is_come_back_to_without_a_new_login(own_house: House) -> None:
    house = own_house
    async with house.visitor("ann", "queue") as ann, house.client("ann") as client:
        job = await client.submit("true", is_held=True, name="before")
        await expect(ann.job(job)).to_be_visible()
        assert house.stage.sides[0].end() == 0
        await expect(ann.page.locator(".stale")).to_contain_text("The gateway is not heard just now.")
        port = house.stage.gateway.rpartition(":")[2]
        await house.stage.another_gateway("gateway-again", "--port", port).address()
        await expect(ann.page.locator(".stale")).to_be_hidden()
        later = await client.submit("true", is_held=True, name="later")
        await expect(ann.job(later)).to_be_visible()
        await expect(ann.page.locator(".person .who")).to_have_text("ann · user")


async def test_a_page_that_nobody_looks_at_lets_go_of_its_streams_and_takes_them_up_again(house: House) -> None:
    async with house.visitor("ann", "queue") as ann, house.client("ann") as client:
        await expect(ann.page.locator(".totals")).to_contain_text("running")
        await ann.page.clock.install()
        await _hide(ann.page, is_hidden=True)
        await ann.page.clock.run_for(30_000)
        missed = await client.submit("true", is_held=True, name="missed")
        await _hide(ann.page, is_hidden=False)
        await ann.page.clock.resume()
        await expect(ann.job(missed)).to_be_visible()
        await house.ended("ann", missed)
        await expect(ann.job(missed)).to_have_count(0)


async def _hide(page: Page, *, is_hidden: bool) -> None:
    """As if another tab were in front: Chromium without a window hides none."""
    await page.evaluate(
        """isHidden => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


async def test_a_page_left_open_neither_grows_nor_loses_its_streams(house: House) -> None:
    async with house.visitor("ann", "queue") as ann, house.visitor("bob", "finished") as bob:
        await _jobs_come_and_go(house, ann)
        before = [await _size(each) for each in (ann, bob)]
        for _ in range(ROUNDS):
            await _jobs_come_and_go(house, ann)
            for each in (ann, bob):
                await each.page.context.set_offline(True)
                await each.page.context.set_offline(False)
        after = [await _size(each) for each in (ann, bob)]
        # The list of finished jobs is bounded, and grows to its bound.
        assert await bob.page.locator(".finished .row[data-key]").count() <= 1_000
        for more, less in zip(after, before, strict=True):
            assert more["JSEventListeners"] - less["JSEventListeners"] <= LISTENERS_MORE_MAX
            assert more["JSHeapUsedSize"] - less["JSHeapUsedSize"] <= HEAP_MORE_MAX
        assert after[0]["Nodes"] - before[0]["Nodes"] <= NODES_MORE_MAX
        # Both still follow.
        async with house.client("ann") as client:
            job = await client.submit("true", is_held=True, name="at-last")
        await expect(ann.job(job)).to_be_visible()
        await house.ended("ann", job)
        await expect(bob.job(job)).to_be_visible()


async def _jobs_come_and_go(house: House, visitor: Visitor) -> None:
    """Many jobs are submitted, held, and cancelled; return once the page has seen the last of them go."""
    async with house.client("ann") as client:
        specs = [client.spec("true", is_held=True, name=f"many-{number}") for number in range(JOBS)]
        first = (await client.submit_specs(specs)).first_job_id
        await expect(visitor.job(first)).to_be_visible()
        selected = scheduler_pb2.JobSelector(job_ids=range(first, first + JOBS))
        await client.stub.Cancel(scheduler_pb2.CancelRequest(jobs=selected), timeout=DEADLINE_SECONDS)
        await expect(visitor.page.get_by_text("Nothing waits.")).to_be_visible()


async def _size(visitor: Visitor) -> dict[str, float]:
    """What the page holds once its garbage is collected and it has come to rest."""
    session = await visitor.page.context.new_cdp_session(visitor.page)
    await session.send("Performance.enable")
    sizes: list[dict[str, float]] = []

    async def rests() -> bool:
        await session.send("HeapProfiler.collectGarbage")
        told = await session.send("Performance.getMetrics")
        sizes.append({each["name"]: each["value"] for each in told["metrics"]})
        return len(sizes) > 1 and sizes[-1]["Nodes"] == sizes[-2]["Nodes"]

    await until("the page rests", rests)
    await session.detach()
    return sizes[-1]


async def test_a_job_whose_output_is_blocked_says_why_on_its_page_and_in_the_queue(
    house: House, tmp_path: Path
) -> None:
    stage = Stage(tmp_path / "full")
    with small_disk(4_000_000) as disk:
        data = stage.fleet.scheduler.data
        data.mkdir(parents=True)
        (data / "output").symlink_to(disk.path, target_is_directory=True)
        try:
            await stage.start()
            full = House(stage, house.browser)
            await full.start("n1")
            async with full.visitor("ann", "queue") as ann, full.visitor("ann") as other, full.client("ann") as client:
                writes = "i=0; while [ ! -e enough ]; do i=$((i+1)); echo $i $(seq 200); sleep 0.05; done"
                job = await client.submit("sh", "-c", writes, name="writes")
                await expect(ann.job(job)).to_contain_text("running")
                await other.turn(f"job/{job}", f"Job {job}: writes")
                disk.fill()
                why = "Its output is blocked: what it writes waits on its node, as the scheduler cannot store it"
                await expect(ann.cell(job, "where")).to_contain_text(why)
                told = other.page.locator(".warnings li").first
                await expect(told).to_contain_text(why)
                await ann.check("the queue with a job whose output is blocked")
                await other.check("a job whose output is blocked")
                disk.make_room()
                await expect(told).to_be_hidden()
                await expect(ann.cell(job, "where")).not_to_contain_text("blocked")
                await client.cancel(job)
                await client.wait(job)
        finally:
            await stage.end()
