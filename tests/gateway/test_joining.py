"""Who is let in to a model, through a real gateway: by its pass phrase, by the dashboard's login, and by address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gpufleet.v1 import sessions_pb2
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gpufleet.security.pass_phrases import hash_pass_phrase
from scheduler.api.sessions.joining import TRIES_MAX
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.asking import ask
from tests.gateway.stage import Browser, Stage, cookie_of
from tests.gateway.test_dashboard import logged_in, revoke, token_for

PHRASE = "correct horse"


async def serve(stage: Stage, name: str, **limits: Any) -> sessions_pb2.Model:
    """A model without workers: who may join stands in its line."""
    model = sessions_pb2.Model(name=name, limits=sessions_pb2.SessionLimits(**limits))
    async with stage.fleet.client() as admin:
        await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model), timeout=DEADLINE_SECONDS)
        listed = await admin.stub.ListModels(sessions_pb2.ListModelsRequest(), timeout=DEADLINE_SECONDS)
    return next(each for each in listed.models if each.name == name)


@asynccontextmanager
async def browser_of(
    stage: Stage, cookie: str = "", address: str = "", origin: str | None = None
) -> AsyncIterator[Browser]:
    """A page, or another program, that comes from an address: the gateway of the stage believes this machine."""
    headers = {"Cookie": cookie} | ({"X-Forwarded-For": address} if address else {})
    url = f"ws://{stage.gateway}/ws"
    async with connect(url, additional_headers=headers, origin=origin, proxy=None) as socket:  # type: ignore[arg-type]
        yield Browser(socket)


async def join(page: Browser, model: str, phrase: str | None = None, **more: Any) -> Mapping[str, Any]:
    """Say hello; answers the place, or the end."""
    said = more if phrase is None else {"pass_phrase": phrase} | more
    await page.say(type="hello", version=1, model=model, **said)
    async with asyncio.timeout(DEADLINE_SECONDS):
        return dict(json.loads(await page.socket.recv()))


async def reason(stage: Stage, model: str, phrase: str | None = None, *, cookie: str = "", address: str = "") -> str:
    """How somebody's join is answered: `place`, or why they are not let in. They leave at once."""
    async with browser_of(stage, cookie, address) as page:
        told = await join(page, model, phrase)
        if told["type"] == "place":
            await page.say(type="leave")
            assert (await page.text("end"))["reason"] == "LEFT"
        return str(told.get("reason", told["type"]))


async def test_only_who_says_the_pass_phrase_is_let_in(stage: Stage) -> None:
    model = await serve(stage, "secret", pass_phrase_hash=hash_pass_phrase(PHRASE))
    assert model.limits.access == sessions_pb2.MODEL_ACCESS_PASS_PHRASE
    assert model.limits.pass_phrase_hash == ""  # not even to an admin
    lobby = (await ask(stage.gateway, "/api/v1/lobby")).json["models"]
    assert next(each["access"] for each in lobby if each["name"] == "secret") == "pass-phrase"
    assert "scrypt" not in json.dumps(lobby)
    home = "203.0.113.1"
    assert await reason(stage, "secret", address=home) == "PASS_PHRASE_MISSING"
    assert await reason(stage, "secret", "", address=home) == "PASS_PHRASE_MISSING"
    assert await reason(stage, "secret", PHRASE.upper(), address=home) == "PASS_PHRASE_WRONG"
    assert await reason(stage, "secret", PHRASE, address=home) == "place"
    # What is known to be right is right again, and all else still wrong.
    assert await reason(stage, "secret", PHRASE, address=home) == "place"
    assert await reason(stage, "secret", f"{PHRASE} ", address=home) == "PASS_PHRASE_WRONG"
    said = stage.fleet.scheduler.log.read_text() + stage.sides[0].log.read_text()
    assert PHRASE not in said and PHRASE.upper() not in said and "scrypt$" not in said


async def test_wrong_pass_phrases_of_one_address_end_in_a_wait_for_it_alone(stage: Stage) -> None:
    await serve(stage, "guessed", pass_phrase_hash=hash_pass_phrase(PHRASE))
    eve, ann = "203.0.113.66", "203.0.113.2"
    async with AsyncExitStack() as pages:
        # All at once: no more are tried than may be.
        crowd = [await pages.enter_async_context(browser_of(stage, address=eve)) for _ in range(TRIES_MAX + 3)]
        told = await asyncio.gather(*(join(each, "guessed", f"guess {n}") for n, each in enumerate(crowd)))
    reasons = [each["reason"] for each in told]
    assert (reasons.count("PASS_PHRASE_WRONG"), reasons.count("TOO_MANY_TRIES")) == (TRIES_MAX, 3)
    async with browser_of(stage, address=eve) as page:
        right = await join(page, "guessed", PHRASE)
    assert right["reason"] == "TOO_MANY_TRIES"
    assert right["message"].startswith("too many wrong pass phrases came from your address: try again in ")
    assert await reason(stage, "guessed", PHRASE, address=ann) == "place"


async def test_who_has_a_place_keeps_it_when_the_pass_phrase_changes(stage: Stage) -> None:
    await serve(stage, "changed", pass_phrase_hash=hash_pass_phrase(PHRASE))
    async with browser_of(stage) as ann:
        assert (await join(ann, "changed", PHRASE))["type"] == "place"
        await serve(stage, "changed", pass_phrase_hash=hash_pass_phrase("another one"))
        assert await reason(stage, "changed", PHRASE) == "PASS_PHRASE_WRONG"
        async with browser_of(stage, cookie_of(ann)) as again:
            assert (await join(again, "changed"))["type"] == "place"
            await again.say(type="leave")
            assert (await again.text("end"))["reason"] == "LEFT"
    # Other numbers change nothing of who may join; that it is open to everybody is said.
    await serve(stage, "changed", line_length=5)
    assert await reason(stage, "changed") == "PASS_PHRASE_MISSING"
    await serve(stage, "changed", access=sessions_pb2.MODEL_ACCESS_OPEN)
    assert await reason(stage, "changed") == "place"


async def test_only_who_is_logged_in_to_the_dashboard_is_let_in(stage: Stage) -> None:
    await serve(stage, "team", access=sessions_pb2.MODEL_ACCESS_LOGIN)
    made = await token_for(stage, "joins", "viewer")
    cookie = (await logged_in(stage, made.secret)).cookie
    assert await reason(stage, "team") == "LOGIN_NEEDED"
    assert await reason(stage, "team", PHRASE) == "LOGIN_NEEDED"
    assert await reason(stage, "team", cookie=cookie) == "place"
    name, _, sealed = cookie.partition("=")
    assert await reason(stage, "team", cookie=f"{name}={sealed[:-6]}AAAAA=") == "LOGIN_NEEDED"
    assert await reason(stage, "team", cookie=f"{name}={made.secret}") == "LOGIN_NEEDED"
    await revoke(stage, made)
    assert await reason(stage, "team", cookie=cookie) == "LOGIN_NEEDED"


async def test_a_page_from_elsewhere_brings_no_login(stage: Stage) -> None:
    """Also one whose sessions are allowed: a browser adds the cookie, whoever made the page."""
    await serve(stage, "guarded", access=sessions_pb2.MODEL_ACCESS_LOGIN)
    cookie = (await logged_in(stage, (await token_for(stage, "visits")).secret)).cookie
    try:
        async with browser_of(stage, cookie, origin="http://elsewhere.example"):
            raise AssertionError("a page from elsewhere was let in")
    except InvalidStatus as refused:
        assert refused.response.status_code == 403
    file = stage.folder / "friendly.toml"
    file.write_text('origins = ["http://friend.example"]\n')
    side = stage.another_gateway("friendly", "--config", str(file))
    url = f"ws://{await side.address()}/ws"
    headers = {"Cookie": cookie}
    for origin, expected in (("http://friend.example", "LOGIN_NEEDED"), (None, "place")):
        async with connect(url, additional_headers=headers, origin=origin, proxy=None) as socket:  # type: ignore[arg-type]
            told = await join(Browser(socket), "guarded")
            assert told.get("reason", told["type"]) == expected
    assert side.end() == 0


async def test_a_fourth_person_of_one_address_is_refused(stage: Stage) -> None:
    await serve(stage, "crowded")
    office, home = "203.0.113.7", "203.0.113.8"
    async with AsyncExitStack() as pages:
        three = [await pages.enter_async_context(browser_of(stage, address=office)) for _ in range(3)]
        for each in three:
            assert (await join(each, "crowded"))["type"] == "place"
        assert await reason(stage, "crowded", address=office) == "ADDRESS_FULL"
        assert await reason(stage, "crowded", address=f"::ffff:{office}") == "ADDRESS_FULL"
        assert await reason(stage, "crowded", address=home) == "place"
        await three[0].say(type="leave")
        assert (await three[0].text("end"))["reason"] == "LEFT"
        assert await reason(stage, "crowded", address=office) == "place"
