"""The doctor asks the page how it is, and says what starts it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.doctor.page import check_page
from cli.local.folders import Record, folders_of, write_record
from gpufleet.config.contexts import save_context
from gpufleet.config.paths import contexts_file
from gpufleet.fleet.finding import Verdict
from tests.cli.conftest import Gpuctl
from tests.cli.doctor.test_doctor import healthy
from tests.cli.fake_scheduler import FakeScheduler


class _Page(BaseHTTPRequestHandler):
    status = HTTPStatus.OK

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else HTTPStatus.NOT_FOUND)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A page that is well."""
    monkeypatch.setattr(_Page, "status", HTTPStatus.OK)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_page_that_answers_is_well_and_one_that_hears_no_scheduler_is_not(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_page(page).verdict is Verdict.OK
    monkeypatch.setattr(_Page, "status", HTTPStatus.SERVICE_UNAVAILABLE)
    found = check_page(page)
    assert (found.verdict, found.sentence) == (
        Verdict.FAILED,
        f"{page} answers with 503: it does not hear the scheduler",
    )


def test_a_page_that_has_died_is_told_with_what_starts_it_again(tmp_path: Path) -> None:
    found = check_page("http://127.0.0.1:1")
    assert found.verdict is Verdict.FAILED and "Connection refused" in found.sentence
    assert found.fix == "Start it again with: gpuctl up"
    folders = folders_of(tmp_path / "my fleet")
    record = Record(address="127.0.0.1:50051", scheduler_data="", agent_data="", node="", programs=())
    write_record(folders.record, record)
    values = {"scheduler": record.address, "token_file": str(folders.admin_token)}
    save_context(contexts_file(), "local", values, make_current=True)
    assert check_page("http://127.0.0.1:1").fix == f"Start it again with: gpuctl up --data '{tmp_path}/my fleet'"
    assert check_page("http://gpufleet.invalid:7860").fix == "Does the gateway run on gpufleet.invalid?"


def test_the_doctor_checks_the_page_that_the_settings_name(
    fake: FakeScheduler, gpuctl: Gpuctl, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy(fake)
    monkeypatch.setattr("cli.doctor.checks.own_version", lambda: "0.1.0")
    assert "page" not in gpuctl("doctor").text
    monkeypatch.setenv("GPUCTL_GATEWAY", page)
    done = gpuctl("doctor")
    assert done.code == 0 and f"page        ok    {page} answers, and hears the scheduler" in done.text
    monkeypatch.setattr(_Page, "status", HTTPStatus.SERVICE_UNAVAILABLE)
    assert gpuctl("doctor").code == 1
