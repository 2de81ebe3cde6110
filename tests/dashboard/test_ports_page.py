"""A job's ports from its page: opened in a window of its own, with the same login and without it."""

from __future__ import annotations

import sys

import pytest
from playwright.async_api import expect

from tests.dashboard.house import RUNNING, House
from tests.dashboard.reading import JobPage
from tests.gateway import job_app
from tests.ports import kept_port

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def test_somebody_opens_a_port_of_their_job_and_its_page_works_as_at_a_host_of_its_own(house: House) -> None:
    port, gateway = kept_port(), house.stage.gateway.rpartition(":")[2]
    async with house.client("ann") as client, house.visitor("ann") as ann:
        job = await client.submit(sys.executable, job_app.__file__, str(port), str(kept_port()), name="board")
        await client.wait(job, RUNNING)
        # By the name below which ports have hosts: at a number there are none.
        await ann.page.goto(f"http://localhost:{gateway}/dashboard#/job/{job}")
        await ann.log_in(house.tokens["ann"])
        part = JobPage(ann.page).part("Ports")
        await part.get_by_label("Port").fill("no port")
        await ann.button("Open").click()
        await expect(part.get_by_role("alert")).to_contain_text("a whole number from 1 to 65535")
        await ann.check("the ports of a job")
        await part.get_by_label("Port").fill(str(port))
        async with ann.page.context.expect_page() as coming:
            await ann.button("Open").click()
        board = await coming.value
        # Its script, style, storage, cookies and WebSocket are those of a page at home.
        own = f"http://job-{job}-port-{port}.localhost:{gateway}"
        await expect(board.locator("#who")).to_have_text("ann kept own=1")
        await expect(board.locator("#heard")).to_have_text(f"http://127.0.0.1:{port} said hello")
        await expect(board.get_by_role("heading", name="Board")).to_have_css("color", "rgb(15, 111, 104)")
        assert board.url == f"{own}/"
        assert await board.evaluate("opener") is None
        # It reaches nothing of the dashboard, whose login the browser has.
        asked = (
            f"fetch('http://localhost:{gateway}/api/v1/me', {{ credentials: 'include' }}).then(String, () => 'refused')"
        )
        assert await board.evaluate(asked) == "refused"
        await client.cancel(job)
        await expect(part).to_be_hidden()


async def test_a_port_is_offered_to_nobody_else(house: House) -> None:
    async with house.client("ann") as client, house.visitor("bob") as bob:
        job = await client.submit("sleep", "600", name="board")
        await client.wait(job, RUNNING)
        await bob.turn(f"job/{job}", f"Job {job}: board")
        await expect(JobPage(bob.page).part("Output")).to_be_visible()
        await expect(JobPage(bob.page).part("Ports")).to_be_hidden()
        await client.cancel(job)
