"""A program's page at a host of its own: who is logged in to the dashboard is known there, and it may be what it is."""

from __future__ import annotations

import sys

import pytest
from gpufleet.v1 import sessions_pb2
from playwright.async_api import expect

from tests.dashboard.house import House

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PROGRAM = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = '''<!doctype html><title>A program</title><h1>Hello</h1><p id="who"></p><p id="kept"></p>
<script>
  document.cookie = "own=1; path=/";
  localStorage.setItem("kept", "kept here");
  fetch("/who", { method: "POST" }).then((answer) => answer.text()).then((who) => {
    document.querySelector("#who").textContent = who;
    document.querySelector("#kept").textContent = localStorage.getItem("kept") + " " + document.cookie;
  });
</script>'''

class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.say(PAGE, "text/html")
    def do_POST(self):
        self.say(f"{self.headers['Gpufleet-User']} with {self.headers['Cookie']}", "text/plain")
    def say(self, text, kind):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *about):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


async def test_somebody_opens_a_program_logs_in_and_is_known_there(own_house: House) -> None:
    async with own_house.stage.fleet.client() as admin:
        (admin.cwd / "page.py").write_text(PROGRAM)
        worker = admin.spec(sys.executable, "-P", "-m", "gpufleet.inference")
        program = sessions_pb2.HttpService(argv=[sys.executable, "page.py", "$PORT"])
        model = sessions_pb2.Model(name="pages", worker=worker, http=program, min_workers=1, max_workers=1)
        await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))
    port = own_house.stage.gateway.rpartition(":")[2]
    async with own_house.visitor() as ann:
        await ann.page.goto(f"http://pages.localhost:{port}/some/where?x=1")
        # Nobody is logged in yet: the dashboard asks, and leads back.
        await expect(ann.page.get_by_label("Your token")).to_be_visible()
        await ann.log_in(own_house.tokens["ann"])
        await expect(ann.page.get_by_role("heading", name="Hello")).to_be_visible()
        assert ann.page.url == f"http://pages.localhost:{port}/some/where?x=1"
        await expect(ann.page.locator("#who")).to_have_text("ann with own=1")
        await expect(ann.page.locator("#kept")).to_have_text("kept here own=1")
        # Somebody who is logged in is asked nothing.
        await ann.page.context.clear_cookies(domain="pages.localhost")
        await ann.page.goto(f"http://pages.localhost:{port}/")
        await expect(ann.page.locator("#who")).to_have_text("ann with own=1")


async def test_a_way_that_leads_nowhere_says_why(own_house: House) -> None:
    async with own_house.visitor("ann", "open/pages%2Fwrong%2F") as ann:
        await expect(ann.heading).to_have_text("Opening pages")
        await expect(ann.page.locator("#view p")).to_contain_text("by a host name that program_hosts in gateway.toml")
        await ann.check("a way to a program")
