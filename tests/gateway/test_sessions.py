"""A person's session through real programs: scheduler, worker, gateway, and a WebSocket as a browser opens it."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.carriers import LOCAL_VARIABLE
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.line import Line
from tests.gateway.stage import Stage, browser, cookie_of

JPEG = b"\xff\xd8"


async def test_a_person_gets_a_turn_and_sees_what_they_did(stage: Stage) -> None:
    worker = stage.worker("seen")
    await worker.is_served()
    async with browser(stage) as ann:
        await ann.hello("seen")
        turn = await ann.text("turn")
        assert (turn["is_resumed"], turn["encoding"]) == (False, "jpeg")
        assert turn["place_key"].startswith("gp_")
        newest = 0
        for _ in range(5):
            clicked = await ann.click(0.5, 0.5)
            while newest < clicked:
                number, newest, picture = await ann.frame()
                assert number == ann.frames
                assert picture.startswith(JPEG)
        await ann.say(type="ping", number=7)
        while (await ann.text("pong"))["number"] != 7:
            pass
        await ann.say(type="leave")
        end = await ann.text("end")
        assert end["reason"] == "LEFT"
    worker.end()


async def is_claimed(stage: Stage, session: str) -> bool:
    async with stage.fleet.client() as admin:
        listed = await admin.stub.ListSessions(sessions_pb2.ListSessionsRequest(), timeout=DEADLINE_SECONDS)
    return any(each.id == session and each.state == sessions_pb2.SESSION_STATE_ACTIVE for each in listed.sessions)


async def test_two_people_share_a_seat_and_a_reload_keeps_the_turn(stage: Stage) -> None:
    worker = stage.worker("shared", seats="1")
    await worker.is_served()
    async with browser(stage) as bob:
        async with AsyncExitStack() as first:
            ann = await first.enter_async_context(browser(stage))
            await ann.hello("shared")
            turn = await ann.text("turn")
            await until("the scheduler has heard that her seat is claimed", lambda: is_claimed(stage, turn["session"]))
            await bob.hello("shared")
            place = await bob.text("place")
            assert (place["place"], place["line_length"]) == (1, 1)
            assert place["longest_wait_s"] <= 81, "ten seconds less than for a seat that is not claimed"
            limited = await ann.text("notice")
            assert limited["reason"] == "TURN_LIMITED"
            # The page's next connection stands before the old one closes: of the 2 s that a reload has, none are spent
            # on what a busy machine needs to open one.
            async with browser(stage, cookie_of(ann)) as again:
                await first.aclose()
                await again.hello("shared", turn["place_key"])
                back = await again.text("turn")
                assert (back["session"], back["is_resumed"]) == (turn["session"], True)
                assert (await again.frame())[0] == 1
                await again.say(type="leave")
                await again.text("end")
        assert (await bob.text("turn"))["is_resumed"] is False
        await bob.say(type="leave")
        await bob.text("end")
    worker.end()


async def test_a_killed_worker_puts_its_person_in_front_and_on_the_next(stage: Stage) -> None:
    worker = stage.worker("killed")
    await worker.is_served()
    async with browser(stage) as ann:
        await ann.hello("killed")
        await ann.text("turn")
        await ann.frame()
        before = ann.frames
        worker.end(signal.SIGKILL)
        assert (await ann.text("notice"))["reason"] == "WORKER_LOST"
        assert (await ann.text("place"))["bound_cause"] == "no worker is ready"
        another = stage.worker("killed")
        assert (await ann.text("turn"))["is_resumed"] is False
        number, _, _ = await ann.frame()
        assert number > before
        await ann.say(type="leave")
        await ann.text("end")
    another.end()


async def test_a_stream_to_the_worker_that_is_cut_is_opened_again(stage: Stage) -> None:
    line = Line()
    async with line.laid():
        worker = stage.worker("cut", advertise=line.address)
        line.lead_to(await worker.address())
        await worker.is_served()
        far = stage.another_gateway("far", variables={LOCAL_VARIABLE: "off"})
        async with browser(stage, gateway=await far.address()) as ann:
            await ann.hello("cut")
            turn = await ann.text("turn")
            for _ in range(2):
                clicked = await ann.click(0.5, 0.5)
                while ann.newest < clicked:
                    await ann.frame()
                line.cut()
                back = await ann.text("turn")
                assert (back["session"], back["is_resumed"]) == (turn["session"], True)
            await ann.frame()
            await ann.say(type="leave")
            await ann.text("end")
        far.end()
    worker.end()


async def test_a_turn_goes_on_while_the_scheduler_is_away(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    try:
        await stage.start()
        await stage.worker("away").is_served()
        async with browser(stage) as ann:
            await ann.hello("away")
            await ann.text("turn")
            stage.fleet.scheduler.kill()
            assert (await ann.text("notice"))["reason"] == "SCHEDULER_AWAY"
            clicked = await ann.click(0.1, 0.1)
            newest = 0
            while newest < clicked:
                _, newest, _ = await ann.frame()
            await stage.fleet.scheduler.start()
            assert (await ann.text("turn"))["is_resumed"] is True
            await ann.say(type="leave")
            assert (await ann.text("end"))["reason"] == "LEFT"
    finally:
        await stage.end()


async def test_a_line_stands_as_it_was_when_its_scheduler_starts_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    try:
        await stage.start()
        await stage.worker("kept", seats="1").is_served()
        async with browser(stage) as ann, browser(stage) as bob, browser(stage) as cid:
            await ann.hello("kept")
            await ann.text("turn")
            for place, each in enumerate((bob, cid), 1):
                await each.hello("kept")
                assert (await each.text("place"))["place"] == place
            stage.fleet.scheduler.kill()
            for each in (bob, cid):
                assert (await each.text("notice"))["reason"] == "SCHEDULER_AWAY"
            await stage.fleet.scheduler.start()
            # Who comes back first is not who is first.
            for place, each in ((2, cid), (1, bob)):
                assert (await each.text("place"))["place"] == place
            await ann.say(type="leave")
            await bob.text("turn")
            # News of the old place, its bound for one, may have been on the way.
            while (await cid.text("place"))["place"] != 1:
                pass
            await bob.say(type="leave")
            await cid.text("turn")
    finally:
        await stage.end()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("no json", "message"),
        ("[]", "message"),
        ('{"type": "pointer"}', "type"),
        ('{"type": "hello", "version": 2, "model": "m"}', "version"),
        ('{"type": "hello", "version": 1}', "model"),
        ('{"type": "hello", "version": 1, "model": "m", "width": -1}', "width"),
        ('{"type": "hello", "version": 1, "model": "m", "encodings": "jpeg"}', "encodings"),
    ],
)
async def test_a_wrong_hello_is_refused_by_its_field(stage: Stage, said: str, field: str) -> None:
    async with browser(stage) as page:
        await page.socket.send(said)
        error = await page.text("error")
        assert error["message"].startswith(f"{field}: ")
        with pytest.raises(ConnectionClosed) as closed:
            await page.socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4400


async def test_a_model_that_nobody_serves_ends_the_session_with_the_reason(stage: Stage) -> None:
    async with browser(stage) as page:
        await page.hello("nothing")
        end = await page.text("end")
        assert end["reason"] == "MODEL_NOT_FOUND"


async def test_a_message_that_is_too_long_closes_the_connection(stage: Stage) -> None:
    async with browser(stage) as page:
        await page.socket.send("x" * 20_000)
        with pytest.raises(ConnectionClosed) as closed:
            await page.socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_page_of_another_host_may_not_connect(stage: Stage) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with browser(stage, origin="http://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403
    async with browser(stage, origin=f"http://{stage.gateway}") as page:
        await page.hello("nothing")
        await page.text("end")


async def test_the_models_and_their_lines_are_for_everybody(stage: Stage) -> None:
    worker = stage.worker("listed", seats="3")
    await worker.is_served()
    listed: dict[str, Any] = {}

    async def is_ready() -> bool:
        answer = await asyncio.to_thread(_get, stage, "/api/v1/lobby")
        assert answer.status == 200
        assert answer.getheader("set-cookie", "").startswith("gpufleet_person=")
        found = [each for each in json.loads(answer.body)["models"] if each["name"] == "listed"]
        listed.update(*found)  # the gateway hears of a model a moment after its worker is known
        return bool(found) and bool(listed["state"] == "ready")

    await until("its worker is ready", is_ready)
    numbers = {
        "name": "listed",
        "waiting": 0,
        "turns": 0,
        "seats": 3,
        "free": 3,
        "workers": 1,
        "state": "ready",
        "progress": 0.0,
        "turn_s": 60.0,
        "access": "open",
    }
    assert {name: listed[name] for name in numbers} == numbers
    assert listed["about"] and listed["controls"], "what the model says of itself"
    worker.end()


async def test_the_workers_are_for_those_with_a_token(stage: Stage) -> None:
    path = "/api/v1/status/workers"
    assert (await asyncio.to_thread(_get, stage, path)).status == 401
    assert (await asyncio.to_thread(_get, stage, path, "gpufleet-nonsense")).status == 401
    answer = await asyncio.to_thread(_get, stage, path, stage.fleet.scheduler.token("admin"))
    assert answer.status == 200
    assert set(json.loads(answer.body)) == {"gpu_queue", "cpu_queue", "nodes", "models", "next_page_token"}


async def test_it_is_well_while_it_hears_the_scheduler(stage: Stage) -> None:
    answer = await asyncio.to_thread(_get, stage, "/healthz")
    assert (answer.status, json.loads(answer.body)["ok"]) == (200, True)


class Answer:
    """What came back of a GET."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.getheader = response.getheader
        self.body = response.read()


def _get(stage: Stage, path: str, token: str = "") -> Answer:
    connection = HTTPConnection(stage.gateway, timeout=DEADLINE_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return Answer(connection.getresponse())
    finally:
        connection.close()
