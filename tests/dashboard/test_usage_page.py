"""The usage page: who used how much, the queue's history, and what a node's GPUs did; against real programs."""

from __future__ import annotations

import re

import pytest
from gpufleet.v1 import capacity_pb2, job_pb2
from playwright.async_api import expect

from tests.dashboard.house import RUNNING, House
from tests.dashboard.reading import NBSP, ChartOf
from tests.e2e.processes import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def _rows(house: House, group: capacity_pb2.UsageGroup.ValueType) -> dict[str, capacity_pb2.UsageRow]:
    """What the scheduler itself tells of the last hour."""
    async with house.client("admin") as admin:
        answer = await admin.stub.ListUsage(capacity_pb2.ListUsageRequest(group=group))
    return {row.name: row for row in answer.rows}


async def test_usage_is_shown_by_user_node_model_and_band_with_its_figures(house: House) -> None:
    async with house.client("ann") as ann, house.client("bob") as bob, house.visitor("vic") as vic:
        await ann.run("sleep", "2", gpus=2, name="long")
        failed = await bob.run("sh", "-c", "sleep 1; exit 1", gpus=1, band=job_pb2.BAND_HIGH)
        assert failed.state == job_pb2.JOB_STATE_FAILED
        told = await _rows(house, capacity_pb2.USAGE_GROUP_USER)
        people = list(told)  # who used most is the first
        assert sorted(people) == ["ann", "bob"] and told["ann"].gpu_seconds > 4 and told["bob"].gpu_seconds > 1
        await vic.turn("usage", "Usage")
        await vic.page.get_by_role("combobox", name="Span").select_option("1 hour")
        table = vic.page.get_by_role("region", name="Usage by user")
        rows = table.get_by_role("row")
        await expect(rows).to_have_count(4)
        await expect(rows.get_by_role("rowheader")).to_have_text([*people, "all"])
        row = rows.nth(1 + people.index("bob"))
        cells = [each.replace(NBSP, " ") for each in await row.get_by_role("cell").all_inner_texts()]
        seconds = f"{round(told['bob'].gpu_seconds, 1):g}"
        assert cells[0] == f"{seconds} GPU-seconds", cells
        assert (cells[2], cells[3], cells[4]) == ("1", "1 (100 %)", "1"), cells
        # The bars hold what the table says, name by name, and of all time steps together.
        chart = ChartOf(vic.page, "usage")
        legend = await chart.legend()
        assert list(legend) == people
        shown = float(legend["ann"].split()[0])
        assert shown == pytest.approx(told["ann"].gpu_seconds / 3_600, abs=0.0006), legend
        assert "ann: smallest 0 GPU-hours" in await chart.heard()
        by = vic.page.get_by_role("combobox", name="By")
        await by.select_option("node")
        nodes = await _rows(house, capacity_pb2.USAGE_GROUP_NODE)
        await expect(vic.page.get_by_role("region", name="Usage by node").get_by_role("row")).to_have_count(
            len(nodes) + 2
        )
        await by.select_option("GPU model")
        await expect(
            vic.page.get_by_role("region", name="Usage by GPU model").get_by_role("rowheader").first
        ).to_have_text("gpufleet virtual GPU")
        await by.select_option("band")
        bands = vic.page.get_by_role("region", name="Usage by band").get_by_role("rowheader")
        told_bands = [*(await _rows(house, capacity_pb2.USAGE_GROUP_BAND)), "all"]
        assert sorted(told_bands) == ["all", "high", "normal"]
        await expect(bands).to_have_text(told_bands)
        assert set(await chart.legend()) == {"normal", "high"}
        for span in ("1 day", "1 week", "30 days", "90 days"):
            await vic.page.get_by_role("combobox", name="Span").select_option(span)
            await expect(vic.page.locator(".chart .hint").first).to_contain_text(re.compile("30 min|3 h|day"))
            await expect(bands).to_have_text(told_bands)


async def test_the_queue_s_length_and_its_waits_are_shown_as_they_were(house: House) -> None:
    async with house.client("ann") as ann, house.visitor("ann") as visitor:
        holders = [await ann.submit("sleep", "600", gpus=2) for _ in range(2)]
        for holder in holders:
            await ann.wait(holder, RUNNING)
        waiting = [await ann.submit("true", gpus=1) for _ in range(3)]
        await visitor.turn("usage", "Usage")
        span = visitor.page.get_by_role("combobox", name="Span")
        queued, waits = ChartOf(visitor.page, "queued"), ChartOf(visitor.page, "waits")

        async def ask_again() -> None:
            for each in ("1 day", "1 hour"):
                # Whoever chooses anew before the answer is there never sees one.
                async with visitor.page.expect_response(re.compile("/GetQueueHistory$")):
                    await span.select_option(each)

        async def are_seen() -> bool:
            await ask_again()
            return "largest 3 jobs" in await queued.heard()

        await until("three jobs were seen waiting", are_seen)
        await house.ended("ann", *holders)
        for job in waiting:
            await ann.wait(job)

        async def have_started() -> bool:
            await ask_again()
            return "normal: smallest" in await waits.heard()

        await until("their waits were seen", have_started)


async def test_a_node_s_gpus_are_shown_over_time_and_go_on_live(house: House) -> None:
    async with house.visitor("vic", "devices") as vic:
        await vic.page.get_by_role("region", name="n1", exact=True).get_by_role("link", name="n1", exact=True).click()
        await expect(vic.heading).to_have_text("Node n1")
        await vic.page.get_by_role("combobox", name="Span").select_option("1 hour")
        load = ChartOf(vic.page, "utilisation")

        async def is_told() -> bool:
            return "GPU 0: smallest 88 %, largest 97 %" in await load.heard()

        await until("the load of the node is shown", is_told)
        before = int(await load.root.get_attribute("data-points") or 0)
        await load.has_points(before + 2)
        assert list(await load.legend()) == ["GPU 0", "GPU 1"]
        await vic.page.get_by_role("link", name="Usage of all nodes").click()
        await expect(vic.heading).to_have_text("Usage")
        nodes = vic.page.get_by_role("region", name="Nodes").locator('[data-chart="utilisation"] .chart-name')
        await expect(nodes).to_have_text(["n1", "n2"])


async def test_a_node_that_is_not_there_is_told(house: House) -> None:
    async with house.visitor("vic") as vic:
        await vic.turn("usage/n9", "Node n9")
        await expect(vic.page.get_by_role("region", name="GPUs")).to_contain_text("n9")


async def test_the_usage_page_is_for_everybody(house: House) -> None:
    async with house.client("ann") as ann, house.visitor("vic") as vic:
        await ann.run("sleep", "1", gpus=1)
        await vic.turn("usage", "Usage")
        await expect(vic.page.get_by_role("region", name="Usage by user").get_by_role("rowheader").first).to_have_text(
            "ann"
        )
        await expect(ChartOf(vic.page, "queued").plot).to_be_visible()
        await vic.check("usage")
        await vic.turn("usage/n1", "Node n1")
        await expect(ChartOf(vic.page, "power").plot).to_be_visible()
        await vic.check("a node")
