"""Ports of a running job at a real gateway: HTTP and WebSockets, for its owner and admins; its pages get no login."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import scheduler_pb2
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.dashboard.bounds import Streams
from gateway.job_ports.names import JobPort, port_at, port_called
from gateway.proxy.core.headers import SANDBOX
from gpufleet.errors import GpufleetError, Reason
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway import job_app
from tests.gateway.asking import Answer, ask, connection
from tests.gateway.stage import Stage
from tests.gateway.test_dashboard import logged_in, refused, token_for
from tests.ports import kept_port

BODY_BYTES = 3_000_000
PERSON = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none", "Accept": "text/html"}


@dataclass
class App:
    """A job that listens: its id, its ports, its owner's token and another person's."""

    stage: Stage
    job: int
    port: int
    of_before: int
    owner: str
    other: str

    def at(self, path: str, port: int = 0) -> str:
        return f"/jobs/{self.job}/ports/{port or self.port}{path}"

    @property
    def host(self) -> str:
        """Its own host."""
        return f"job-{self.job}-port-{self.port}.localhost:{self.stage.gateway.rpartition(':')[2]}"

    async def had(self, path: str, token: str = "", **more: Any) -> Answer:
        return await ask(self.stage.gateway, self.at(path), token=token or self.owner, **more)

    async def at_host(self, path: str, headers: Mapping[str, str], host: str = "") -> Answer:
        async with asyncio.timeout(DEADLINE_SECONDS), connection(self.stage.gateway) as asking:
            await asking.send("GET", path, host or self.host, headers, b"")
            status, told = await asking.head()
            return Answer(status, told, b"".join([chunk async for chunk in asking.chunks(told)]))


async def listening(stage: Stage) -> App:
    """The job once it answers."""
    owner, other = [(await token_for(stage, each)).secret for each in ("ann", "bob")]
    port, of_before = kept_port(), kept_port()
    async with stage.fleet.client(owner) as ann:
        job = await ann.submit(sys.executable, job_app.__file__, str(port), str(of_before), name="board")
    app = App(stage, job, port, of_before, owner, other)

    async def answers() -> bool:
        return (await app.had("/health")).status == 200

    await until("the job answers", answers)
    return app


@pytest.fixture(scope="module")
def app(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[App]:
    stage = Stage(tmp_path_factory.mktemp("stage"))

    async def start() -> App:
        await stage.start()
        await stage.fleet.add_node("n1")
        return await listening(stage)

    try:
        with long_lived("the gateway's programs and a job that listens"):
            made = asyncio.run(start())
        yield made
    finally:
        asyncio.run(stage.end())


async def test_requests_reach_the_port_and_are_told_what_it_knows_itself_by(app: App) -> None:
    headers = {
        "Origin": f"http://{app.stage.gateway}",
        "Referer": f"http://{app.stage.gateway}{app.at('/tree?a=b')}",
        "Cookie": "theirs=1; gpufleet_login_0=secret",
    }
    told = await app.had("/who?x=1%2F2", headers=headers, body=b"x" * BODY_BYTES)
    own = f"127.0.0.1:{app.port}"
    assert told.json == {
        "host": own,
        "origin": f"http://{own}",
        "referer": f"http://{own}/tree?a=b",
        "cookie": "theirs=1",
        "authorization": "",
        "gpufleet-user": "ann",
        "x-forwarded-prefix": app.at(""),
        "path": "/who",
        "query": "x=1%2F2",
        "bytes": BODY_BYTES,
    }
    assert told.headers["content-security-policy"] == SANDBOX.decode(), "its page is not one of the gateway's"
    assert told.headers["set-cookie"] == f"own=2; SameSite=lax; Path={app.at('/')}", "a cookie of this port alone"
    assert (await app.had("/go")).headers["location"] == app.at("/who")
    bare = await app.had("")
    assert (bare.status, bare.headers["location"]) == (308, app.at("/"))
    ranked = await ask(app.stage.gateway, f"/jobs/{app.job}/ranks/0/ports/{app.port}/health", token=app.owner)
    assert ranked.content == b"well"
    before = await ask(app.stage.gateway, app.at("/whole", app.of_before), token=app.owner)
    assert (before.status, before.content) == (200, b"begun\n")


async def test_messages_pass_both_ways_over_a_websocket(app: App) -> None:
    url = f"ws://{app.stage.gateway}{app.at('/echo')}"
    headers = {"Authorization": f"Bearer {app.owner}"}
    there: dict[str, Any] = {"host": "127.0.0.1", "port": int(app.stage.gateway.rpartition(":")[2])}
    for address, origin in ((url, app.stage.gateway), (f"ws://{app.host}/echo", app.host)):
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            connect(
                address,
                additional_headers=headers,
                origin=f"http://{origin}",  # type: ignore[arg-type]
                subprotocols=["first", "second"],  # type: ignore[list-item]
                proxy=None,
                **there,
            ) as socket,
        ):
            assert socket.subprotocol == "second"
            for said in ("hello", "x" * 1_000_000):
                await socket.send(said)
                assert await socket.recv() == f"http://127.0.0.1:{app.port} said {said}"
    with pytest.raises(InvalidStatus) as raised:
        await connect(url, additional_headers={"Authorization": f"Bearer {app.other}"}, proxy=None)
    assert raised.value.response.status_code == 403


async def test_a_port_is_its_owners_and_admins_and_who_came_is_told(app: App) -> None:
    assert refused(await app.had("/health", app.other)) == (403, "NOT_YOUR_JOB")
    viewer = (await token_for(app.stage, "vic", "viewer")).secret
    assert refused(await app.had("/health", viewer)) == (403, "PERMISSION_DENIED")
    assert refused(await ask(app.stage.gateway, app.at("/health"))) == (401, "LOGIN_NEEDED")
    assert refused(await app.had("/health", f"gf_{'A' * 43}")) == (401, "TOKEN_INVALID")
    admin = (await token_for(app.stage, "root", "admin")).secret
    assert (await app.had("/who", admin)).json["gpufleet-user"] == "root"
    async with app.stage.fleet.client() as client:
        story = await client.stub.GetStory(scheduler_pb2.GetStoryRequest(job_id=app.job), timeout=DEADLINE_SECONDS)
    came = [line.sentence for line in story.lines if f"port {app.port}" in line.sentence]
    assert sum("root" in each for each in came) == 1, came
    assert not any("bob" in each for each in came)


async def test_a_login_counts_for_the_gateways_own_pages_and_is_no_pages_of_a_job(app: App) -> None:
    cookie = (await logged_in(app.stage, app.owner)).cookie
    own = {"Sec-Fetch-Site": "same-origin"}
    assert (await ask(app.stage.gateway, app.at("/health"), cookie=cookie, headers=own)).content == b"well"
    for foreign in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}, {"Origin": f"http://{app.host}"}):
        answer = await ask(app.stage.gateway, app.at("/health"), cookie=cookie, headers=foreign)
        assert refused(answer) == (401, "LOGIN_NEEDED"), foreign
    # The login of the gateway's own pages is none at the port's host, nor that of a page there one at the gateway's.
    assert refused(await app.at_host("/health", {"Cookie": cookie})) == (401, "LOGIN_NEEDED")
    from_page = {"Cookie": cookie, "Origin": f"http://{app.host}", "Sec-Fetch-Site": "same-site"}
    assert refused(await ask(app.stage.gateway, "/api/v1/me", headers=from_page)) == (403, "PERMISSION_DENIED")


async def test_a_port_has_a_host_of_its_own_to_which_a_browser_is_sent(app: App) -> None:
    home = app.host.partition(".")[2]
    sent = await app.at_host(app.at("/tree?a=%2F"), PERSON, home)
    assert (sent.status, sent.headers["location"]) == (307, f"http://{app.host}/tree?a=%2F")
    begun = await app.at_host("/tree", PERSON)
    assert begun.status == 303 and begun.headers["location"].startswith(f"http://{home}/dashboard#/open/job-{app.job}")
    told = await app.at_host("/who", {"Authorization": f"Bearer {app.owner}"})
    assert (json.loads(told.content)["x-forwarded-prefix"], json.loads(told.content)["path"]) == ("", "/who")
    assert told.headers["content-security-policy"] == "frame-ancestors 'self'"
    assert told.headers["set-cookie"] == "own=2; SameSite=lax; Path=/", "no cookie of all names below the gateway's"
    assert refused(await app.at_host("/who", {"Authorization": f"Bearer {app.other}"})) == (403, "NOT_YOUR_JOB")
    strange = await app.at_host("/", {"Authorization": f"Bearer {app.owner}"}, "job-0041-port-1.localhost")
    assert refused(strange) == (404, "MODEL_NOT_FOUND"), "a port has one name"


async def test_what_is_not_there_is_told_with_the_next_thing_to_do(app: App) -> None:
    gateway, token = app.stage.gateway, app.owner
    assert refused(await ask(gateway, app.at("/", kept_port()), token=token)) == (409, "PORT_NOT_OPEN")
    assert refused(await ask(gateway, "/jobs/4000000/ports/80/", token=token)) == (404, "JOB_NOT_FOUND")
    for path in (
        "/jobs/",
        "/jobs/1/ports/0/",
        "/jobs/1/ports/65536/",
        "/jobs/01/ports/80/",
        f"/jobs/{'9' * 30}/ports/1/",
    ):
        assert refused(await ask(gateway, path, token=token)) == (404, "PATH_UNKNOWN"), path
    ranked = await ask(gateway, f"/jobs/{app.job}/ranks/7/ports/{app.port}/", token=token)
    assert (*refused(ranked), ranked.json["error"]["field"]) == (400, "INVALID_ARGUMENT", "target.rank")
    greeted = await ask(gateway, app.at("/greet", app.of_before), token=token)
    assert refused(greeted) == (502, "REPLICA_FAILED")
    assert "gpuctl forward" in greeted.json["error"]["next_step"]
    async with app.stage.fleet.client(token) as ann:
        ended = await ann.submit("true")
        await ann.wait(ended)
    assert refused(await ask(gateway, f"/jobs/{ended}/ports/80/", token=token)) == (409, "JOB_FINISHED")


@asynccontextmanager
async def own_app(folder: Path) -> AsyncIterator[App]:
    stage = Stage(folder)
    try:
        await stage.start()
        await stage.fleet.add_node("n1")
        yield await listening(stage)
    finally:
        await stage.end()


async def test_an_answer_that_is_cut_is_not_taken_for_the_whole_and_ports_are_back_with_the_scheduler(
    tmp_path: Path,
) -> None:
    async with own_app(tmp_path) as app:
        async with asyncio.timeout(DEADLINE_SECONDS), connection(app.stage.gateway) as asking:
            bearer = {"Authorization": f"Bearer {app.owner}"}
            await asking.send("GET", app.at("/endless", app.of_before), app.stage.gateway, bearer, b"")
            status, headers = await asking.head()
            chunks = asking.chunks(headers)
            assert (status, headers["transfer-encoding"], await anext(chunks)) == (200, "chunked", b"begun\n")
            app.stage.fleet.scheduler.kill()
            with pytest.raises((ValueError, asyncio.IncompleteReadError)):
                await anext(chunks)  # it breaks off where the last chunk would say that all of it came
        await app.stage.fleet.scheduler.start()

        async def is_back() -> bool:
            return (await app.had("/health")).content == b"well"

        await until("the port is reached again", is_back)


def test_each_port_has_one_name_and_one_path() -> None:
    for port in (JobPort(41, 8888), JobPort(41, 8888, 3), JobPort(10**17, 65_535, 2**31 - 1)):
        assert port_called(port.host_name) == port
        assert len(port.host_name) <= 63, "a label of a host name"
        assert port_at(f"{port.prefix}/a%2Fb".encode()) == (port, b"/a%2Fb")
        assert port_at(port.prefix.encode()) == (port, b"")
    for name in (
        "job-41",
        "job-041-port-1",
        "job-41-port-0",
        "job-41-rank-0-port-1",
        "job-41-port-65536",
        "xjob-41-port-1",
    ):
        assert port_called(name) is None, name
    for path in (b"/jobs/41/ports/80x/", b"/jobs//ports/80/", b"/jobs/41/ports/-1/", b"/jobs/0/ports/80/"):
        assert port_at(path) is None, path


def test_one_person_takes_no_more_than_their_share() -> None:
    opened = Streams(2, "connections to ports of jobs", "Close a page.")
    opened.open("ann")
    opened.open("ann")
    with pytest.raises(GpufleetError) as raised:
        opened.open("ann")
    assert (raised.value.reason, raised.value.next_step) == (Reason.TOO_MANY_STREAMS, "Close a page.")
    assert "2 connections to ports of jobs" in raised.value.message
    opened.open("bob")
    opened.closed("ann")
    opened.open("ann")
