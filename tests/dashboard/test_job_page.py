"""A job's page: its output as it comes, what its GPUs did, why it waits, what happened; against real programs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2
from playwright.async_api import WebSocketRoute, expect

from tests.dashboard.house import RUNNING, House
from tests.dashboard.reading import NBSP, ChartOf, JobPage, gpuctl
from tests.e2e.client import span
from tests.e2e.processes import until
from tests.page.theatre import DESKTOP, PHONE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

HTML = "<b onclick=alert(1)>bold</b><img src=x onerror=alert(2)>"
LINES_SHOWN = 5_000
OWN_STEPS = timedelta(seconds=5)
"""From its beginning and from its end: longer than a step of a history may be that a job shares with another one."""


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_stays(house: House) -> AsyncIterator[None]:
    """No test leaves a job to the next one, however it ended."""
    yield
    async with house.client("ann") as ann:
        mine = scheduler_pb2.JobSelector(all_mine=True)
        for change in (await ann.stub.Cancel(scheduler_pb2.CancelRequest(jobs=mine))).changes:
            await ann.wait(change.job_id)


async def test_the_charts_show_the_load_that_was_played_and_gpuctl_tells_the_same(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit("sleep", "600", gpus=2, name="trains")
        await ann.turn(f"job/{job}", f"Job {job}: trains")
        load, memory = ChartOf(ann.page, "utilisation"), ChartOf(ann.page, "memory")
        for chart in (load, memory, ChartOf(ann.page, "temperature"), ChartOf(ann.page, "power")):
            await chart.has_points(3)

        async def is_played() -> bool:
            ranges = ("GPU 0: smallest 88 %, largest 97 %", "GPU 1: smallest 0 %, largest 3 %")
            heard = await load.heard()
            return all(each in heard for each in ranges)

        await until("all of the load was heard of", is_played)
        assert re.search(r"GPU 0: smallest 6 GB, largest 7 GB|GPU 0: smallest 7 GB", await memory.heard())
        assert re.search(r"GPU 0: .*largest 318 W", await ChartOf(ann.page, "power").heard())
        legend = await load.legend()
        assert list(legend) == ["GPU 0", "GPU 1"]
        mean = re.fullmatch(r"mean (\d\d) % 88–97 %", legend["GPU 0"])
        assert mean is not None and 88 <= int(mean[1]) <= 97, legend
        # The arrow keys go back in time, step by step, and what is read there is told to ears, too; all charts follow.
        await load.plot.focus()
        for _ in range(2):
            await ann.page.keyboard.press("ArrowLeft")
        while (read := await load.read("memory")).value == "–":  # a busy machine has left out a reading
            await ann.page.keyboard.press("ArrowLeft")
        assert 88 <= int(read.value.split()[0]) <= 97, read
        assert f"GPU 0 {read.value}" in read.told, read
        assert read.step < read.steps, read
        assert re.fullmatch(r"\d\d:\d\d:\d\d", read.when)
        assert read.when_there == read.when

        async def is_summed_up() -> bool:
            stats = (await gpuctl(house, "stats", str(job)))["gpu_stats"]
            return bool(stats) and (stats["0"]["utilization"]["min"], stats["0"]["utilization"]["max"]) == (88, 97)

        await until("the statistics have all of the load", is_summed_up)
        [rank] = (await client.job(job)).attempts[0].ranks

        async def is_kept_of_it_alone() -> bool:
            # What a busy machine reads but once, in the second in which it begins or ends, is in no step of its own.
            placed = (await client.job(job)).attempts[0].place_time.ToDatetime(UTC)
            asked = capacity_pb2.GetNodeHistoryRequest(node=rank.node, index=0)
            asked.start_time.FromDatetime(placed + OWN_STEPS)
            asked.end_time.FromDatetime(max(placed + 2 * OWN_STEPS, datetime.now(UTC) - OWN_STEPS))
            [device] = (await client.stub.GetNodeHistory(asked)).devices
            loads = [
                value for value in (*device.utilization_percent.min, *device.utilization_percent.max) if value >= 0
            ]
            return (min(loads, default=-1), max(loads, default=-1)) == (88, 97)

        await until("the history of the job alone has all of the load", is_kept_of_it_alone)
        await house.ended("ann", job)
        await expect(ann.page.locator(".job-title .badge")).to_have_text("cancelled")
        table = ann.page.get_by_role("region", name="Each GPU: mean, and from the smallest to the largest value")
        await expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(r"88–97\s%"))
        await expect(JobPage(ann.page).fact("Watched for")).not_to_contain_text("so far")
        stats = await gpuctl(house, "stats", str(job))
        for index in ("0", "1"):
            device = stats["gpu_stats"][index]
            row = table.get_by_role("row").filter(has=ann.page.get_by_role("rowheader", name=f"GPU {index}"))
            cells = [cell.replace(NBSP, " ") for cell in await row.get_by_role("cell").all_inner_texts()]
            mean = device["utilization"]["mean"] + 1e-9  # JavaScript rounds a half up, Python to the even one
            wanted = f"{mean:.0f}" if mean >= 9.95 else f"{mean:.1f}".removesuffix(".0")
            assert cells[1].startswith(f"{wanted} % "), (cells, device)
            most = device["memory_used_mb"]["max"]
            assert (f"{most / 1e3:g} GB" if most >= 1e3 else f"{most:g} MB") in cells[2], (cells, device)
        samples = JobPage(ann.page).fact("Samples")
        await expect(samples).to_have_text(f"{stats['sample_count']:,}")

        async def is_kept() -> bool:
            return "smallest 88 %, largest 97 %" in await load.heard()

        await until("the chart of the ended job has all of the load", is_kept)
        placed = ann.page.get_by_role("region", name="Each GPU as it was when it was chosen")
        await expect(placed.get_by_role("row")).to_have_count(3)
        await expect(JobPage(ann.page).part("How it was placed")).to_contain_text("(score)")


async def test_the_crosshair_stays_at_its_time_while_the_chart_grows(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit("sleep", "600", gpus=1, name="grows")
        await ann.turn(f"job/{job}", f"Job {job}: grows")
        load = ChartOf(ann.page, "utilisation")
        await load.has_points(4)
        await load.plot.focus()
        await ann.page.keyboard.press("ArrowLeft")
        before = await load.read("memory")
        await load.has_points(before.steps + 9)
        after = await load.read("memory")
        # The history is read anew now and then, and its steps begin at other moments than readings do.
        moments = [datetime.strptime(each, "%H:%M:%S") for each in (before.when, after.when, after.when_there)]
        assert max(moments) - min(moments) <= timedelta(seconds=2), (before, after)
        await house.ended("ann", job)


async def test_output_comes_as_it_is_written_in_order_and_html_in_it_is_text(house: House) -> None:
    script = (
        f"echo 'first {HTML}'; printf '\\033[31mred\\033[0m 10 %%\\r100 %%\\n'; until [ -e go ]; do sleep 0.05; done; "
    )
    script += "printf '\\033[1;91msecond\\033[0m\\033[2J\\n'; "
    script += "printf '\\033[38;5;208;48;2;16;32;48mthird\\033[m\\n' >&2;"
    script += "printf open; until [ -e end ]; do sleep 0.05; done; echo ' and closed'"
    async with house.client("ann") as client, house.visitor("vic") as vic:
        job = await client.submit("sh", "-c", script, name="writes")
        page = JobPage(vic.page)
        await vic.turn(f"job/{job}", f"Job {job}: writes")
        await expect(page.lines).to_have_text([f"first {HTML}", "100 %"])
        (house.stage.fleet.work / "go").touch()
        await expect(page.lines).to_have_count(5)
        assert sorted(await page.texts()) == sorted([f"first {HTML}", "100 %", "second", "third", "open"])
        await expect(page.page.locator(".line.stderr")).to_have_text(["third"])
        await expect(page.page.locator(".line .bold.fg-9")).to_have_text(["second"])
        own = page.page.locator(".line .fg-own.bg-own")
        await expect(own).to_have_text(["third"])
        grounds = await own.evaluate("(run) => [run.style.cssText, getComputedStyle(run).backgroundColor]")
        assert grounds[0] == "--fg: #ff8700; --bg: #102030;" and grounds[1] != "rgba(0, 0, 0, 0)", grounds
        await vic.check("output in colours")
        (house.stage.fleet.work / "end").touch()
        await expect(page.lines.filter(has_text="closed")).to_have_text("open and closed")
        await expect(page.part("Output")).to_contain_text("complete")
        assert await vic.page.locator(".output-pane b, .output-pane img").count() == 0
        await vic.page.get_by_role("combobox", name="Stream").select_option("standard error")
        await expect(page.lines).to_have_text(["third"])
        await expect(page.fact("Ran for")).to_contain_text("s")
        await expect(page.fact("Runs for")).to_be_hidden()
        # A viewer may look, and change nothing.
        await expect(vic.button("Actions …")).to_be_hidden()


async def test_both_streams_stand_in_the_order_of_arrival_also_when_they_are_read_later(house: House) -> None:
    wanted = [f"{name} {number}" for number in range(4) for name in ("out", "err")]
    steps = [
        f"until [ -e turn-{turn} ]; do sleep 0.02; done; echo {line}{' >&2' if 'err' in line else ''}"
        for turn, line in enumerate(wanted)
    ]
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit("sh", "-c", "; ".join(steps), name="alternates")
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: alternates")
        for turn, line in enumerate(wanted):
            (house.stage.fleet.work / f"turn-{turn}").touch()
            await expect(page.lines.last).to_have_text(line)
        await client.wait(job)
        assert await page.texts() == wanted, "live"
        await ann.page.reload()
        await expect(page.lines).to_have_text(wanted)
        await expect(page.part("Output")).to_contain_text("complete")


async def test_an_output_of_100_000_lines_leaves_the_page_bounded_and_usable(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit(
            "sh", "-c", "until [ -e flood ]; do sleep 0.05; done; seq 100000; sleep 600", name="floods"
        )
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: floods")
        await expect(page.part("Output")).to_contain_text("live")
        (house.stage.fleet.work / "flood").touch()
        await expect(page.lines.last).to_have_text("100000")
        await expect(page.lines).to_have_count(LINES_SHOWN)
        await expect(page.lines.first).to_have_text(str(100_000 - LINES_SHOWN + 1))
        await expect(page.part("Output")).to_contain_text(
            f"The newest 5,000 lines are shown; all of them: gpuctl logs {job}"
        )
        assert await ann.page.evaluate("document.querySelectorAll('*').length") < 3 * LINES_SHOWN
        # Whoever scrolls back is left alone, and comes back by the switch.
        follow = ann.page.get_by_label("Follow")
        await expect(follow).to_be_checked()
        pane = ann.page.locator(".output-pane")
        await pane.evaluate("pane => { pane.scrollTop = 0; }")
        await expect(follow).not_to_be_checked()
        await follow.check()
        assert await pane.evaluate("pane => pane.scrollHeight - pane.clientHeight - pane.scrollTop") < 2
        # Somebody who comes later is sent the newest lines only.
        await ann.page.reload()
        await expect(page.lines.first).to_have_text(str(100_000 - LINES_SHOWN + 1))
        await expect(page.lines.last).to_have_text("100000")
        await house.ended("ann", job)


async def test_a_window_of_another_size_goes_on_following_the_output(house: House) -> None:
    line = "a line that takes more than one on a phone, since it is as long as those that people write to logs"
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit("sh", "-c", f"seq -f '%g {line}' 200; sleep 600", name="long-lines")
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: long-lines")
        await expect(page.lines).to_have_count(200)
        pane, follow = ann.page.locator(".output-pane"), ann.page.get_by_label("Follow")
        is_at_its_end = "pane => pane.scrollHeight - pane.clientHeight - pane.scrollTop < 2"
        for screen in (PHONE, DESKTOP, PHONE):
            await ann.page.set_viewport_size(screen["viewport"])
            await until("the end of the output is shown", lambda: pane.evaluate(is_at_its_end))
            await ann.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            await expect(follow).to_be_checked()
            assert await pane.evaluate(is_at_its_end)
        await house.ended("ann", job)


async def test_a_scheduler_that_restarts_is_told_and_the_page_goes_on_where_it_was(own_house: House) -> None:
    fleet = own_house.stage.fleet
    script = "i=0; while :; do i=$((i+1)); echo line $i; until [ -e step$i ]; do sleep 0.05; done; done"
    async with own_house.client("ann") as client, own_house.visitor("ann") as ann:
        job = await client.submit("sh", "-c", script, gpus=1, name="steps")
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: steps")
        await expect(page.lines).to_have_text(["line 1"])
        stale = ann.page.locator("p.stale")
        await expect(stale).to_be_hidden()
        await fleet.scheduler.stop()
        await expect(stale).to_contain_text("The scheduler is not heard just now. What you see is from")
        await expect(page.part("Output")).to_contain_text("not live: it goes on where it was")
        (fleet.work / "step1").touch()
        await fleet.scheduler.start()
        await expect(stale).to_be_hidden()
        await expect(page.lines).to_have_text(["line 1", "line 2"])
        (fleet.work / "step2").touch()
        await expect(page.lines).to_have_text(["line 1", "line 2", "line 3"])
        await expect(ann.page.locator(".job-title .badge")).to_have_text("running")
        before = int(await ChartOf(ann.page, "utilisation").root.get_attribute("data-points") or 0)
        await ChartOf(ann.page, "utilisation").has_points(before + 1)
    async with own_house.client("ann") as client:
        await client.cancel(job)
        await client.wait(job)


async def test_a_job_that_ended_while_nobody_was_heard_is_shown_as_it_ended(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit("sh", "-c", "until [ -e quiet ]; do sleep 0.05; done", name="quiet")
        await client.wait(job, RUNNING)
        is_cut = True

        async def pass_on(socket: WebSocketRoute) -> None:
            if is_cut:
                await socket.close()
            else:
                socket.connect_to_server()

        await ann.page.route_web_socket("**/api/v1/streams", pass_on)
        await ann.page.reload()
        await ann.turn(f"job/{job}", f"Job {job}: quiet")
        badge = ann.page.locator(".job-title .badge")
        await expect(badge).to_have_text("running")
        await expect(ann.page.locator("p.stale")).to_be_visible()
        (house.stage.fleet.work / "quiet").touch()
        await client.wait(job)
        await expect(badge).to_have_text("running")
        is_cut = False
        await expect(badge).to_have_text("succeeded")
        await expect(ann.page.locator("p.stale")).to_be_hidden()
        await expect(JobPage(ann.page).story.last).to_contain_text("succeeded")


async def test_a_job_that_waits_says_why_where_it_stands_and_what_happens_to_it(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        holders = [await client.submit("sleep", "600", gpus=2, seconds=3_600) for _ in range(2)]
        for holder in holders:
            await client.wait(holder, RUNNING)
        first = await client.submit("sleep", "600", gpus=2, name="next", seconds=600)
        job = await client.submit("true", gpus=2, name="behind")
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: behind")
        why = page.part("Why it waits")
        await expect(why.locator(".reason")).to_contain_text("GPU")
        await expect(page.fact("Place")).to_have_text("2")
        await expect(page.fact("Behind").get_by_role("link")).to_have_text(str(first))
        await expect(page.fact("Latest start")).to_contain_text("in")
        await why.get_by_text("Node by node").click()
        rows = ann.page.get_by_role("region", name="Each node, and why it does not take the job now").get_by_role("row")
        await expect(rows).to_have_count(3)
        await expect(page.part("Output")).to_contain_text("It has not started yet.")
        await expect(page.story).to_have_text([f"Job {job} was submitted by ann in band normal."])
        await ann.button("Actions …").click()
        await ann.page.get_by_role("dialog").get_by_role("button", name="Hold", exact=True).click()
        await expect(ann.page.locator(".job-title .badge")).to_have_text("held")
        await expect(page.story.last).to_have_text(f"ann holds job {job}.")
        await ann.button("Actions …").click()
        await ann.page.get_by_role("dialog").get_by_role("button", name="Release", exact=True).click()
        await expect(ann.page.locator(".job-title .badge")).to_have_text("queued")
        await page.fact("Behind").get_by_role("link").click()
        await expect(ann.heading).to_have_text(f"Job {first}: next")
        await ann.page.go_back()
        await house.ended("ann", *holders, first)
        await expect(ann.page.locator(".job-title .badge")).to_have_text("succeeded")
        await expect(why).to_be_hidden()
        await expect(page.story.last).to_contain_text("succeeded")

        async def is_all_told() -> bool:
            kinds = "each => each.map((line) => line.dataset.kind)"
            return bool(await ann.page.locator(".timeline li").evaluate_all(kinds) == await client.kinds(job))

        await until("the page tells the whole story", is_all_told)


async def test_each_attempt_can_be_looked_at_with_its_own_output_and_end(house: House) -> None:
    script = "echo attempt $GPUFLEET_ATTEMPT; [ $GPUFLEET_ATTEMPT = 2 ] || exit 7; sleep 600"
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit("sh", "-c", script, gpus=1, name="again", retries=1)
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: again")
        await expect(page.fact("Attempt")).to_have_text("2 of 2")
        await expect(page.lines.last).to_contain_text("attempt 2")
        await ann.page.get_by_role("combobox", name="Attempt", exact=True).select_option("1")
        await expect(page.lines).to_have_text(["attempt 1"])
        ranks = ann.page.get_by_role("region", name="Each rank", exact=True)
        await expect(ranks).to_contain_text("exited with code 7")
        await ann.page.get_by_role("combobox", name="Attempt", exact=True).select_option("newest")
        await expect(page.lines.last).to_contain_text("attempt 2")
        await house.ended("ann", job)


async def test_ranks_of_several_nodes_are_told_apart(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit(
            "sh", "-c", "echo I am $GPUFLEET_NODE_RANK; sleep 600", gpus=4, node_count=2, name="gang"
        )
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: gang")
        await expect(page.lines).to_have_count(2)
        assert sorted(await page.texts()) == ["rank 0I am 0", "rank 1I am 1"]
        await ann.page.get_by_role("combobox", name="Rank", exact=True).select_option("1")
        await expect(page.lines.locator("span:last-child")).to_have_text(["I am 1"])
        lines = ChartOf(ann.page, "memory").root.locator(".chart-name")
        await expect(lines).to_have_text(["n1:0", "n1:1", "n2:0", "n2:1"])
        await ann.page.get_by_role("combobox", name="GPU", exact=True).select_option("n2:1")
        await expect(lines).to_have_text(["n2:1"])
        await page.fact("Runs on").get_by_role("link", name="n2").click()
        await expect(ann.heading).to_have_text("Node n2")
        await house.ended("ann", job)


async def test_an_array_has_its_counts_and_a_link_to_each_item(house: House) -> None:
    array = job_pb2.ArraySpec(indices="1-3")
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit("sh", "-c", "exit $((GPUFLEET_ARRAY_INDEX == 2))", array=array, name="sweep")
        page = JobPage(ann.page)
        await ann.turn(f"job/{job}", f"Job {job}: sweep")
        await expect(page.page.locator(".counts li")).to_have_text(["3 items", "2 succeeded", "1 failed"])
        await expect(page.part("Output")).to_be_hidden()
        items = ann.page.get_by_role("region", name="Items of the array").get_by_role("row")
        await expect(items).to_have_count(4)
        await ann.page.get_by_role("combobox", name="Items that are").select_option("failed")
        await expect(items).to_have_count(2)
        await items.nth(1).get_by_role("link").click()
        await expect(ann.heading).to_have_text(f"Job {job + 2}: sweep")
        await expect(page.fact("Item of")).to_have_text(f"array {job}, index 2")
        await expect(page.page.locator(".job-head > .end")).to_contain_text("exited with code 1")
        await expect(page.part("Output")).to_contain_text("It wrote nothing.")


async def test_a_warning_is_told_where_it_cannot_be_overlooked(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        # A fifth of the limit is left to warn of it: long enough for a machine that is busy just then.
        job = await client.submit("sleep", "600", time_limit=span(25), name="short")
        await ann.turn(f"job/{job}", f"Job {job}: short")
        await expect(ann.page.locator(".warnings li").first).to_contain_text(re.compile("(80|95) % of its time limit"))
        await expect(ann.page.locator(".job-title .badge")).to_have_text("timed out")
        await expect(ann.page.locator(".job-head > .end")).to_contain_text("time limit")


async def test_a_job_that_is_not_there_is_told_with_a_way_on(house: House) -> None:
    async with house.visitor("ann") as ann:
        await ann.turn("job/999999", "No such job")
        await expect(ann.page.locator("#view .lead")).to_contain_text("999999")
        await ann.turn("job/first", "No such job")
        await expect(ann.page.locator("#view .lead")).to_contain_text("“first” is no job id")
        await ann.page.locator("#view").get_by_role("link", name="The queue").click()
        await expect(ann.heading).to_contain_text("Queue")


async def test_the_page_is_for_everybody_in_every_state_of_a_job(house: House) -> None:
    script = "for i in 1 2 3; do echo step $i; done; echo careful >&2; sleep 600"
    async with house.client("ann") as client, house.visitor("ann") as ann:
        runs = await client.submit(
            "sh", "-c", script, gpus=4, node_count=2, name="runs", seconds=3_600, labels={"team": "vision"}
        )
        waits = await client.submit("true", gpus=2, name="waits")
        await client.wait(runs, RUNNING)
        await ann.turn(f"job/{runs}", f"Job {runs}: runs")
        await ChartOf(ann.page, "power").has_points(3)
        await expect(JobPage(ann.page).lines).to_have_count(8)
        await ann.check("a job that runs on two nodes")
        await ann.turn(f"job/{waits}", f"Job {waits}: waits")
        await ann.page.get_by_text("Node by node").click()
        await ann.check("a job that waits")
        await client.cancel(runs)
        await client.wait(waits)
        await ann.turn(f"job/{runs}", f"Job {runs}: runs")
        await expect(JobPage(ann.page).part("What it used")).to_contain_text("GPU-seconds")
        await ann.check("a job that was cancelled")
        array = await client.submit("true", array=job_pb2.ArraySpec(indices="1-30"), name="many")
        await client.wait(array)
        await ann.turn(f"job/{array}", f"Job {array}: many")
        await expect(ann.page.get_by_role("region", name="Items of the array")).to_be_visible()
        await ann.check("an array")
