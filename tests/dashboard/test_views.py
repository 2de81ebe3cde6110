"""GPUs, the queue, finished jobs and the form: live, against real programs, with nothing loaded anew."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2
from playwright.async_api import expect

from tests.dashboard.house import RUNNING, House
from tests.dashboard.reading import JobPage
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.stage import Stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

LOAD = re.compile(r"^(88|91|97)\s%$")


async def test_gpus_are_shown_with_what_they_do_and_who_has_them_as_it_changes(house: House) -> None:
    async with house.visitor("ann", "devices") as ann, house.client("bob") as bob:
        await expect(ann.page.locator(".totals")).to_contain_text(
            re.compile(r"4\sGPUs on 2\snodes · 4 free · mean load")
        )
        busy, idle = ann.gpu("n1", 0), ann.gpu("n1", 1)
        await expect(busy.locator(".cell-load .measure span")).to_have_text(LOAD)
        await expect(busy.locator(".cell-memory")).to_contain_text(re.compile(r"[67] of 16\sGB"))
        await expect(busy.locator(".cell-heat")).to_have_text(re.compile(r"(64|71|74)\s°C"))
        await expect(busy.locator(".cell-power")).to_have_text(re.compile(r"(248|318|301)\sW"))
        await expect(idle.locator(".cell-power")).to_have_text("–")
        await expect(idle.locator(".cell-score")).to_have_text(re.compile(r"0\.9\d"))
        await expect(idle.locator(".cell-holder")).to_have_text("free")
        seen: set[str] = set()

        async def has_moved() -> bool:
            seen.add(await busy.locator(".cell-load .measure span").inner_text())
            return len(seen) >= 2

        await until("the load moves", has_moved)
        bar = busy.locator(".cell-load .bar i")
        assert "scaleX(0." in (await bar.get_attribute("style") or "")

        job = await bob.submit("sleep", "600", gpus=2, name="holds-two")
        where = (await bob.wait(job, RUNNING)).attempts[0].ranks[0].node
        await expect(ann.gpu(where, 0).locator(".cell-holder")).to_have_text(f"#{job}bob")
        await expect(ann.page.get_by_role("region", name=where, exact=True)).to_contain_text(
            re.compile(r"0 of 2\sGPUs")
        )
        await ann.page.get_by_label("Show", exact=True).select_option("free")
        await expect(ann.page.get_by_role("region", name=where, exact=True)).to_be_hidden()
        await ann.page.get_by_label("Show", exact=True).select_option("all")
        await ann.page.get_by_label("Filter by node, model, user or job").fill("bob")
        await expect(ann.page.locator(".device:visible")).to_have_count(2)
        await house.ended("bob", job)
        await expect(ann.page.locator(".device:visible")).to_have_count(0)
        await expect(ann.page.get_by_text("No GPU is as you filter.")).to_be_visible()
        await ann.page.get_by_label("Show", exact=True).select_option("mine")
        await ann.page.get_by_label("Show", exact=True).select_option("all")
        await ann.page.get_by_label("Filter by node, model, user or job").fill("")
        await expect(ann.page.locator(".device:visible")).to_have_count(4)


async def test_an_admin_drains_a_node_and_resumes_it(house: House) -> None:
    async with house.visitor("admin", "devices") as admin, house.visitor("vic", "devices") as vic:
        node = vic.page.get_by_role("region", name="n2", exact=True)
        await admin.button("Drain n2").click()
        await admin.page.get_by_label("Reason").fill("a new driver")
        await admin.page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
        await admin.is_told("n2 drains")
        await expect(node.locator(".badge")).to_have_text("draining")
        await expect(node.locator(".note")).to_contain_text("nothing new starts (a new driver)")
        await admin.button("Resume n2").click()
        await expect(node.locator(".badge")).to_have_text("ready")
        await expect(node.locator(".note")).to_be_hidden()


async def test_the_queue_says_why_each_job_waits_and_what_runs_where(house: House) -> None:
    async with house.visitor("ann", "queue") as ann, house.client("ann") as client:
        runs = [
            await client.submit("sleep", "600", gpus=2, seconds=3_600, name=f"holder-{number}") for number in (1, 2)
        ]
        for job in runs:
            await client.wait(job, RUNNING)
        waits = await client.submit("sleep", "600", gpus=2, seconds=600, name="in-line")
        await expect(ann.job(runs[0])).to_contain_text(re.compile(r"running.*n[12]:0,1", re.DOTALL))
        await expect(ann.cell(runs[0], "time")).to_contain_text(re.compile(r"of 1\sh"))
        await expect(ann.cell(waits, "why")).to_contain_text("in use")
        await expect(ann.cell(waits, "place")).to_have_text("1")
        await expect(ann.cell(waits, "starts")).to_contain_text(
            re.compile(r"about (\d+\s\w+\s)?\d\d:\d\d, in \d+\smin")
        )
        await expect(ann.cell(waits, "starts")).to_contain_text("at the latest")
        await expect(ann.page.locator(".totals")).to_have_text("2 running · 1 waiting")
        # A second one of another band goes ahead of it, and the page shows it in its order.
        first = await client.submit("sleep", "600", gpus=2, seconds=600, name="ahead", band=job_pb2.BAND_HIGH)
        await expect(ann.cell(first, "place")).to_have_text("1")
        await expect(ann.cell(waits, "place")).to_have_text("2")
        order = "[...document.querySelectorAll('.waiting .row[data-key]')].map((row) => row.dataset.key)"
        assert await ann.page.evaluate(order) == [str(first), str(waits)]
        await house.ended("ann", first, waits, *runs)
        await expect(ann.page.get_by_text("Nothing runs.")).to_be_visible()
        await expect(ann.page.get_by_text("Nothing waits.")).to_be_visible()


async def test_beside_the_estimate_stands_its_range_and_no_bound_where_none_is_told(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        runs = [
            await client.submit("sleep", "600", gpus=2, seconds=3_600, name=f"holder-{number}") for number in (1, 2)
        ]
        for job in runs:
            await client.wait(job, RUNNING)
        ranged, bounded = [
            await client.submit("sleep", "600", gpus=2, seconds=600, name=name) for name in ("ranged", "bounded")
        ]
        # A scheduler tells a range once it has seen some jobs wait, and then only a bound that helps: as it would be.
        now = datetime.now(UTC)
        ends = {"earliest": now + timedelta(minutes=30), "latest": now + timedelta(minutes=90)}
        told: dict[str, Any] = {f"likely_{end}_start_time": at.isoformat() for end, at in ends.items()}
        await ann.told(ranged, **told, latest_start_time=None, bound_sentence="")
        await ann.page.reload()
        await ann.turn("queue", "Queue")
        starts, other = ann.cell(ranged, "starts"), ann.cell(bounded, "starts")
        await expect(starts).to_contain_text(re.compile(r"about .*between \d\d\smin and 1\sh( \d\d\smin)?", re.DOTALL))
        await expect(starts).to_contain_text("from now, 9 of 10 such jobs")
        await expect(starts).not_to_contain_text("at the latest")
        await expect(ann.cell(ranged, "why")).to_contain_text("in use")
        await expect(other).to_contain_text("at the latest")
        await expect(other).not_to_contain_text("such jobs")
        await ann.check("a range beside an estimate")
        page = JobPage(ann.page)
        await ann.turn(f"job/{ranged}", f"Job {ranged}: ranged")
        await expect(page.fact("Estimated start")).to_contain_text("in")
        await expect(page.fact("Likely start")).to_contain_text("from now, 9 of 10 such jobs")
        await expect(page.fact("Latest start")).to_be_hidden()
        await ann.turn(f"job/{bounded}", f"Job {bounded}: bounded")
        await expect(page.fact("Latest start")).to_contain_text("in")
        await expect(page.fact("Likely start")).to_be_hidden()
        await house.ended("ann", ranged, bounded, *runs)


async def test_a_job_is_held_released_moved_requeued_and_cancelled_from_the_page(house: House) -> None:
    async with house.visitor("bob", "queue") as bob, house.client("bob") as client:
        running = await client.submit("sleep", "600", gpus=2, name="requeued")
        await client.wait(running, RUNNING)
        blocker = await client.submit("sleep", "600", gpus=2, name="blocker")
        await client.wait(blocker, RUNNING)
        waits = await client.submit("sleep", "600", gpus=1, name="changed")
        dialog = await bob.change(waits)
        await dialog.get_by_role("button", name="Hold").click()
        await expect(bob.cell(waits, "why")).to_contain_text("held")
        assert (await client.job(waits)).state == job_pb2.JOB_STATE_HELD
        dialog = await bob.change(waits)
        await dialog.get_by_role("button", name="Release").click()
        await expect(bob.cell(waits, "place")).to_have_text("1")
        dialog = await bob.change(waits)
        await dialog.get_by_label("Band").select_option("BAND_LOW")
        await dialog.get_by_role("button", name="Move").click()
        await expect(bob.cell(waits, "band")).to_have_text("low")
        dialog = await bob.change(running)
        await dialog.get_by_role("button", name="Requeue").click()

        async def runs_again() -> bool:
            job = await client.job(running)
            return job.requeue_count == 1 and job.state == RUNNING

        await until("it runs again", runs_again)
        dialog = await bob.change(waits)
        await dialog.get_by_label("Reason").fill("not needed")
        await dialog.get_by_role("button", name="Cancel the job").click()
        await expect(bob.job(waits)).to_have_count(0)
        story = await client.stub.GetStory(scheduler_pb2.GetStoryRequest(job_id=waits), timeout=DEADLINE_SECONDS)
        assert any("not needed" in line.sentence for line in story.lines)
        # What came too late says so, and changes nothing.
        dialog = await bob.change(blocker)
        await house.ended("bob", blocker)
        await dialog.get_by_role("button", name="Requeue").click()
        await bob.is_told(f"Job {blocker} has ended")
        await house.ended("bob", running)


async def test_finished_jobs_come_by_themselves_with_their_gpus_and_are_submitted_again(house: House) -> None:
    async with house.visitor("ann", "finished") as ann, house.client("ann") as client:
        is_read = house.stage.folder / "is-read"
        command = f"until [ -e {is_read} ]; do sleep 0.05; done; exit 3"
        failed = await client.submit("/bin/sh", "-c", command, gpus=1, name="fails", seconds=300, labels={"a": "b"})

        async def has_stats() -> bool:
            return (await client.job(failed)).has_stats

        await until("its GPU was read once", has_stats)
        is_read.touch()
        plain = await client.submit("true", name="no-gpu")
        await expect(ann.cell(failed, "state")).to_contain_text("exit 3")
        await expect(ann.cell(failed, "gpus")).to_contain_text(re.compile(r"1 ×\svirtual"))
        await expect(ann.cell(failed, "gpus").get_by_role("link", name=f"stats of job {failed}")).to_be_visible()
        await expect(ann.cell(plain, "gpus")).to_contain_text("N/A")
        await expect(ann.cell(plain, "state")).to_contain_text("succeeded")
        await expect(ann.cell(plain, "ended")).to_contain_text("ago")
        await ann.page.get_by_role("link", name=f"Resubmit job {failed}", exact=True).click()
        await expect(ann.heading).to_have_text("Submit a job")
        await expect(ann.page.get_by_label("Command")).to_have_value(command)
        await expect(ann.page.get_by_label("Time limit")).to_have_value("5m")
        await expect(ann.page.locator("#view .lead")).to_contain_text("Kept as they were, too: labels.")
        await ann.button("Check").click()
        await ann.button("Submit the job").click()
        await ann.page.wait_for_url("**/dashboard#/job/*")
        again = int(ann.page.url.rpartition("/")[2])
        job = await client.wait(again)
        assert (job.spec.name, list(job.spec.argv), dict(job.spec.labels)) == (
            "fails",
            ["/bin/sh", "-c", command],
            {"a": "b"},
        )
        assert job.spec.time_limit.seconds == 300 and job.spec.devices[0].count == 1


async def test_the_form_says_what_is_wrong_at_its_field_and_what_would_happen_before_it_does(house: House) -> None:
    async with house.visitor("ann", "submit") as ann, house.client("ann") as client:
        await ann.page.get_by_label("Memory of each GPU").fill("8")
        await ann.page.get_by_label("Time limit").fill("1x")
        await ann.page.get_by_label("Working directory").fill("here")
        await ann.button("Check").click()
        await expect(ann.page.get_by_label("Command")).to_be_focused()
        for field, words in (
            ("command", "Write the command"),
            ("cwd", "an absolute path"),
            ("min_memory", "8 has no unit. Write 8MB or 8GB."),
            ("time_limit", '"x" is not a unit of time'),
        ):
            await expect(ann.page.locator(f"#field-{field}-wrong")).to_contain_text(words)
        await ann.page.get_by_label("Command").fill("echo hello")
        await expect(ann.page.locator("#field-command-wrong")).to_be_hidden()
        await ann.page.get_by_label("Working directory").fill("/tmp")
        await ann.page.get_by_label("Memory of each GPU").fill("")
        await ann.page.get_by_label("Time limit").fill("10m")
        # What only the scheduler knows: no node is that large.
        await ann.page.get_by_label("GPUs", exact=True).fill("64")
        await ann.button("Check").click()
        wrong = ann.page.locator("#field-gpus-wrong")
        await expect(wrong).to_contain_text("No node could ever hold this request")
        form = await ann.page.locator(".submit-form").bounding_box()
        said = await wrong.bounding_box()
        assert form is not None and said is not None
        assert said["width"] >= 0.9 * form["width"], "a sentence is not squeezed into the column of a number"
        assert said["height"] <= 60, said
        await ann.page.get_by_label("GPUs", exact=True).fill("1")
        # What it works on decides whether it is for a GPU: a text is not.
        await ann.page.get_by_label("GPU mode", exact=True).select_option("GPU_MODE_AUTO")
        await ann.button("Check").click()
        await expect(ann.page.locator("#field-content_type-wrong")).to_contain_text("audio/mpeg")
        await ann.page.get_by_label("Content type").fill("text/plain")
        await ann.button("Check").click()
        await expect(ann.page.locator(".foretold")).to_contain_text("It would be accepted")
        before = await client.stub.Queue(
            scheduler_pb2.QueueRequest(user="ann", include_finished=True, name="from-a-form")
        )
        assert not before.jobs
        # Whatever is typed behind it wants to be checked again.
        await ann.page.locator("summary").click()
        await ann.page.get_by_label("Name").fill("from-a-form")
        await expect(ann.page.locator(".foretold")).to_be_hidden()
        await ann.button("Check").click()
        await ann.button("Submit the job").click()
        await ann.page.wait_for_url("**/dashboard#/job/*")
        job = await client.wait(int(ann.page.url.rpartition("/")[2]))
        assert (job.state, job.user, job.spec.name) == (job_pb2.JOB_STATE_SUCCEEDED, "ann", "from-a-form")
        assert (job.gpu_choice.mode, job.spec.content_type) == (job_pb2.GPU_MODE_NEVER, "text/plain")


async def test_who_has_the_focus_keeps_it_while_rows_come_go_and_move(house: House) -> None:
    async with house.visitor("ann", "queue") as ann, house.client("ann") as client:
        jobs = [await client.submit("true", is_held=True, name=f"row-{number}") for number in range(4)]
        await expect(ann.job(jobs[3])).to_be_visible()
        button = ann.page.get_by_role("button", name=f"Change job {jobs[2]}", exact=True)
        await button.focus()
        await house.ended("ann", jobs[0])
        await expect(ann.job(jobs[0])).to_have_count(0)
        await expect(button).to_be_focused()
        more = await client.submit("true", is_held=True, name="one-more", band=job_pb2.BAND_URGENT)
        await expect(ann.job(more)).to_be_visible()
        await expect(button).to_be_focused()
        # From the keyboard alone: into the dialog, out of it, and back to where one was.
        await ann.page.keyboard.press("Enter")
        await expect(ann.page.get_by_role("dialog")).to_be_visible()
        await ann.page.keyboard.press("Escape")
        await expect(button).to_be_focused()
        await house.ended("ann", *jobs[1:], more)


async def test_nodes_that_come_and_go_are_rows_that_come_and_go(own_house: House) -> None:
    house = own_house
    async with house.visitor("admin", "devices") as admin:
        await expect(admin.page.get_by_role("heading", name="n1", exact=True)).to_be_visible()
        agent = await house.stage.fleet.add_node("n10", "--virtual-gpus", "1")
        await house.stage.fleet.add_node("n2", "--virtual-gpus", "1")
        await expect(admin.page.locator(".node h2")).to_have_text(["n1", "n2", "n10"])
        await agent.stop()
        await agent.end_keeper()
        del house.stage.fleet.agents["n10"]
        await expect(admin.page.get_by_role("region", name="n10", exact=True).locator(".badge")).not_to_have_text(
            "ready"
        )


async def test_a_node_that_is_lost_says_since_when_and_its_gpus_are_in_no_sum(house: House, tmp_path: Path) -> None:
    settings = tmp_path / "fast.toml"
    settings.write_text('[nodes]\nheartbeat = "1s"\nmissed_heartbeats_max = 5\nlease = "6s"\n')
    stage = Stage(tmp_path / "house")
    stage.fleet.scheduler.flags += ["--config", str(settings)]
    try:
        await stage.start()
        own = House(stage, house.browser)
        await own.start("n1")
        async with own.visitor("vic", "devices") as vic:
            totals, node = vic.page.locator(".totals"), vic.page.get_by_role("region", name="n1", exact=True)
            await expect(totals).to_contain_text("mean load")
            agent = stage.fleet.agents["n1"]
            await agent.stop()
            await agent.end_keeper()
            del stage.fleet.agents["n1"]
            await expect(node.locator(".badge")).to_have_text("lost")
            await expect(node.locator(".note")).to_contain_text(
                re.compile(r"^Not heard since \d\d:\d\d:\d\d; .*forget n1\.$")
            )
            await expect(totals).to_have_text("2 GPUs on 1 node · 0 free")
            await expect(node.locator(".device.old")).to_have_count(2)
    finally:
        await stage.end()


async def test_the_form_and_a_jobs_changes_offer_the_bands_that_a_person_has(house: House) -> None:
    async with (
        house.visitor("cy", "submit") as cy,
        house.visitor("ann", "submit") as ann,
        house.client("cy") as client,
        house.client("admin") as admin,
    ):
        for visitor, own in ((cy, ["low", "normal"]), (ann, ["low", "normal", "high", "urgent"])):
            await visitor.page.get_by_text("More: name, band").click()
            choice = visitor.page.get_by_label("Band", exact=True)
            assert await choice.locator("option").all_inner_texts() == own
            await expect(choice).to_have_value("BAND_NORMAL")
        job = await client.submit("true", is_held=True, name="lifted")
        selected = scheduler_pb2.JobSelector(job_ids=[job])
        moved = scheduler_pb2.UpdateJobRequest(jobs=selected, band=job_pb2.BAND_URGENT)
        moved.update_mask.paths.append("band")
        await admin.stub.UpdateJob(moved)
        # A band that somebody else gave is shown as what it is, and not offered; one like it is in an own band.
        await cy.turn("queue", "Queue")
        dialog = await cy.change(job)
        choice = dialog.get_by_label("Band")
        await expect(choice).to_have_value("BAND_URGENT")
        assert await choice.locator("option:not([disabled])").all_inner_texts() == ["low", "normal"]
        await cy.check("the changes of a job in a band that one does not have")
        await dialog.get_by_role("link", name="Submit one like it").click()
        await expect(cy.page.locator(".lead")).to_contain_text(
            "Its band is urgent, which you do not have: this one is normal."
        )
        await expect(cy.page.get_by_label("Band", exact=True)).to_have_value("BAND_NORMAL")
        await house.ended("cy", job)
