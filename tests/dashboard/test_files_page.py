"""What a job left, on its page: listed, pictures and texts shown, and nothing of it run."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Error, Request, expect

from tests.dashboard.house import House
from tests.dashboard.reading import NBSP, JobPage
from tests.e2e.client import Client
from tests.e2e.jobs.test_results import stored

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
SVG = f'<svg xmlns="http://www.w3.org/2000/svg">{HOSTILE}</svg>'
NAMED_ILL = "<img src=x onerror=alert(3)>.txt"


def picture(width: int, height: int) -> bytes:
    """A PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((15, 111, 104)) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


async def leave(client: Client, files: Mapping[str, bytes | str], script: str = "") -> int:
    """A job that has left these files, whose names and contents stand in its arguments, and what a script writes."""
    said: list[str] = []
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        said += [name, base64.b64encode(data).decode()]
    script += '\nwhile [ $# -gt 0 ]; do printf %s "$2" | base64 -d >"$1"; shift 2; done'
    job = await client.submit("/bin/sh", "-c", script, "sh", *said, cwd="", results=["*"], name="leaves")
    await client.wait(job)
    await stored(client, job)
    return job


async def test_a_jobs_page_shows_what_it_left(house: House, tmp_path: Path) -> None:
    text = "loss 0.5\n" * 20_000
    async with house.client("ann") as client, house.visitor("ann") as ann:
        files = {"loss.png": picture(640, 320), "model.pt": b"PK\0\1", "empty": b""}
        job = await leave(client, files, "yes 'loss 0.5' | head -n 20000 >train.log")
        await ann.turn(f"job/{job}", f"Job {job}: leaves")
        part = JobPage(ann.page).part("Files it left")
        await expect(part.locator("tbody th")).to_have_text(["empty", "loss.png", "model.pt", "train.log"])
        await expect(part.locator("tbody tr").nth(3)).to_contain_text(f"180{NBSP}kB")
        await expect(part.locator(".left-notes li")).to_contain_text(["kept until"])
        image = part.get_by_role("img", name="loss.png")
        await image.scroll_into_view_if_needed()
        await expect(image).to_have_js_property("naturalWidth", 640)
        await part.get_by_role("button", name="Show train.log").click()
        shown = part.locator(".preview")
        await expect(shown.locator("figcaption")).to_contain_text(f"the first 64{NBSP}kB of 180{NBSP}kB")
        assert await shown.locator("pre").text_content() == text[:64_000]
        await ann.check("a job that left files")
        await part.get_by_role("button", name="Show model.pt").click()
        await expect(shown.locator("pre")).to_have_text("This is no text. Download it by its name.")
        await shown.get_by_role("button", name="Close").click()
        await expect(shown).to_be_hidden()
        async with ann.page.expect_download() as coming:
            await part.get_by_role("link", name="model.pt").click()
        await (await coming.value).save_as(tmp_path / "model.pt")
        assert (tmp_path / "model.pt").read_bytes() == b"PK\0\1"


async def test_thousands_of_files_are_listed_a_page_at_a_time(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        asked: list[Any] = []

        def note(request: Request) -> None:
            if request.url.endswith("/ListFiles"):
                asked.append(request.post_data_json)

        ann.page.on("request", note)
        job = await leave(client, {"loss.png": picture(64, 32)}, "seq -w 0 2999 | split -d -a 4 -l 1 - part-")
        await ann.turn(f"job/{job}", f"Job {job}: leaves")
        part = JobPage(ann.page).part("Files it left")
        rows, count = part.locator("tbody tr"), part.get_by_role("status")
        await expect(rows).to_have_count(100)
        await expect(count).to_have_text("100 of 3,001 files are listed.")
        await expect(part.get_by_role("img", name="loss.png")).to_be_visible()
        await ann.check("a job that left thousands of files")
        for listed in range(200, 1_101, 100):
            await part.get_by_role("button", name="More files").click()
            await expect(rows).to_have_count(listed)
        await expect(rows.nth(1_099).locator("th")).to_have_text("part-1098")
        assert [each["page_size"] for each in asked] == [1_000, 1_000]
        await part.get_by_role("button", name="Show part-1098").click()
        await expect(part.locator(".preview pre")).to_have_text("1098\n")


async def test_nothing_of_what_a_job_left_runs_wherever_it_is_opened(house: House) -> None:
    async with house.client("ann") as client, house.visitor("ann") as ann:
        told: list[str] = []
        ann.page.on("dialog", lambda dialog: told.append(dialog.message))
        files = {"page.html": HOSTILE, "drawing.svg": SVG, "drawn.png": SVG, "log.txt": HOSTILE, NAMED_ILL: HOSTILE}
        job = await leave(client, files)
        await ann.turn(f"job/{job}", f"Job {job}: leaves")
        part = JobPage(ann.page).part("Files it left")
        await expect(part.locator("tbody th")).to_have_text(sorted(files))
        # What is called a picture and is none is not drawn; a drawing is not even tried.
        await expect(part.locator(".pictures li")).to_have_count(1)
        await expect(part.locator(".pictures li")).to_contain_text("cannot be shown")
        for name in sorted(set(files) - {"drawn.png"}):
            await part.get_by_role("button", name=f"Show {name}", exact=True).click()
            await expect(part.locator(".preview pre")).to_have_text(files[name])
        # A window of its own shows a text as text, and no page at all.
        address = f"http://{house.stage.gateway}/api/v1/jobs/{job}/files"
        page = await ann.page.context.new_page()
        page.on("dialog", lambda dialog: told.append(dialog.message))
        await page.goto(f"{address}/log.txt")
        assert await page.evaluate("document.contentType") == "text/plain"
        assert await page.evaluate("origin") == "null"
        await page.goto(f"{address}/drawn.png")
        assert await page.evaluate("document.contentType") == "image/png"
        async with page.expect_download():
            with pytest.raises(Error, match="Download is starting"):
                await page.goto(f"{address}/page.html")
        await page.close()
        assert not told


async def test_a_viewer_sees_it_too_and_a_job_that_leaves_nothing_has_no_such_part(house: House) -> None:
    async with house.client("ann") as client:
        job = await leave(client, {"a.txt": "told"})
        plain = await client.submit("true", name="plain")
        await client.wait(plain)
    async with house.visitor("vic") as vic:
        part = JobPage(vic.page).part("Files it left")
        await vic.turn(f"job/{job}", f"Job {job}: leaves")
        await expect(part.locator("tbody th")).to_have_text(["a.txt"])
        await vic.turn(f"job/{plain}", f"Job {plain}: plain")
        await expect(part).to_be_hidden()
