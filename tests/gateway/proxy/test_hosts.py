"""A program at a host of its own: what leads there, how a login gets there, and whose pages may use it."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import pytest
from gpufleet.v1 import sessions_pb2
from starlette.requests import HTTPConnection
from starlette.responses import Response

from gateway.dashboard.login import Seals
from gateway.dashboard.serving import Dashboard
from gateway.proxy import handover
from gateway.proxy.core.headers import IN_NO_OTHER_FRAME, SANDBOX
from gateway.proxy.core.hosts import ProgramHost, is_path, program_at
from gateway.proxy.handover import Handover
from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.errors import GpufleetError
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target
from gpufleet.security.tokens import make_token
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.proxy.stage import GATEWAY_TOKEN, Call, Stage, program, stage

LOGIN = sessions_pb2.MODEL_ACCESS_LOGIN
PERSON = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none", "Accept": "text/html"}
"""What a browser says when somebody opens an address."""


@dataclass
class Said:
    """An answer; a header that comes twice has two lines."""

    status: int
    lines: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str:
        return ", ".join(value for key, value in self.lines if key.lower() == name)

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"]["reason"])


@dataclass
class Browser:
    """It keeps the cookies of each host apart, as browsers do with those that name no domain."""

    at: Stage
    cookies: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    async def ask(
        self, host: str, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Said:
        sent = {"Host": host, "Connection": "close", "Content-Length": str(len(body))} | dict(headers or {})
        if kept := self.cookies[host]:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in kept.items())
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        data = f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
        async with asyncio.timeout(DEADLINE_SECONDS), self.at.raw(data) as (reader, _):
            text = await reader.read()
        head, _, content = text.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        said = Said(int(first.split()[1]), [tuple(line.split(": ", 1)) for line in rest], content)  # type: ignore[misc]
        for name, value in said.lines:
            if name.lower() == "set-cookie":
                key, _, kept_value = value.partition(";")[0].partition("=")
                assert "domain" not in value.lower() and "httponly" in value.lower()
                self.cookies[host].pop(key, None)
                if kept_value.strip('"'):
                    self.cookies[host][key] = kept_value
        return said

    async def opened(self, host: str, path: str) -> tuple[str, str, str]:
        """The name, the state and the path with which the program's host sends somebody to the dashboard."""
        sent = await self.ask(host, path, headers=PERSON)
        home = host.partition(".")[2]
        begun, _, route = sent["location"].partition("#/open/")
        assert (sent.status, begun) == (303, f"http://{home}/dashboard"), sent
        name, state, *rest = unquote(route).split("/")
        return name, state, f"/{'/'.join(rest)}"

    async def enter(self, home: str, name: str, said: object, headers: Mapping[str, str] | None = None) -> Said:
        """What the dashboard's page asks for."""
        more = {"Content-Type": "application/json", "Origin": f"http://{home}", "Sec-Fetch-Site": "same-origin"}
        path = f"/api/v1/programs/{name}/enter"
        return await self.ask(home, path, "POST", json.dumps(said).encode(), more | dict(headers or {}))

    def log_in(self, home: str, token: str) -> None:
        name, _, value = self.at.cookie(token).partition("=")
        self.cookies[home][name] = value


async def who(call: Call) -> None:
    said = {name: call.head[name] for name in ("gpufleet-user", "cookie", "x-forwarded-prefix", "host")}
    said["target"] = call.head.target
    headers = {"Set-Cookie": "own=1; Path=/; HttpOnly", "Content-Security-Policy": "default-src *"}
    await call.reply(json.dumps(said).encode(), headers=headers)


def test_a_host_names_a_program() -> None:
    homes = ("localhost", "gpus.example")
    assert program_at("chat.localhost:7860", homes) == ProgramHost("chat", "localhost:7860")
    assert program_at("Chat.GPUS.example", homes) == ProgramHost("chat", "gpus.example")
    assert program_at("v1.2.gpus.example", homes) == ProgramHost("v1.2", "gpus.example")
    for host in ("localhost", "gpus.example:80", "", ".localhost", "-a.localhost", "127.0.0.1:7860", "[::1]:80"):
        assert program_at(host, homes) is None, host
    for host in ("chat.localhost.evil.example", "chatgpus.example", "a b.localhost", f"{'a' * 64}.localhost"):
        assert program_at(host, homes) is None, host
    assert program_at("chat.localhost", ()) is None
    nested = ("gpus.example", "lab.gpus.example")
    assert program_at("lab.gpus.example", nested) is None, "else a program `lab` would stand for the dashboard"
    assert program_at("chat.lab.gpus.example:80", nested) == ProgramHost("chat", "lab.gpus.example:80")


def test_a_path_leads_to_no_other_host() -> None:
    assert all(map(is_path, ("/", "/a?b=c", "/a//b", "/%20")))
    assert not any(
        map(is_path, ("", "a", "//evil.example", "/\\evil.example", "/\t/evil", "/a\n", "/a b", "http://a/"))
    )


def test_a_setting_that_is_no_host_name_is_refused() -> None:
    for wrong in ("GPUs.example", "http://gpus.example", "gpus.example:80", "", ".example", "a..b"):
        ((field_name, why),) = GatewaySettings(program_hosts=(wrong,)).conflicts()
        assert field_name == "program_hosts" and "host name" in why
    assert not list(GatewaySettings(program_hosts=("gpus.example", "lab")).conflicts())


async def test_everything_at_a_programs_host_is_the_programs() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica)
        browser = Browser(at)
        for path in ("/", "/dashboard", "/api/v1/lobby", "/v1/models", "/m/chat/", "/healthz?a=%2F"):
            said = await browser.ask("chat.localhost:1", path)
            told = json.loads(said.body)
            assert (said.status, told["target"], told["host"]) == (200, path, "chat.localhost:1")
            assert told["x-forwarded-prefix"] == ""
        # It has a whole origin: cookies of all its paths, and what it says of its own content; no sandbox.
        assert said["set-cookie"] == "own=1; HttpOnly; Path=/"
        assert said["content-security-policy"] == "default-src *"
        assert SANDBOX.decode() in (await browser.ask("localhost:1", "/m/chat/"))["content-security-policy"]
        assert (await browser.ask("other.localhost", "/")).error == "MODEL_NOT_FOUND"


async def test_a_login_is_handed_over_and_the_program_gets_nothing_of_it() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica, access=LOGIN)
        ann = at.person("ann")
        browser = Browser(at)
        name, state, path = await browser.opened("chat.localhost:1", "/tree/a%20b?x=1")
        assert (name, path) == ("chat", "/tree/a%20b?x=1")
        browser.log_in("localhost:1", ann)
        told = await browser.enter("localhost:1", name, {"state": state, "path": path})
        address = urlsplit(json.loads(told.body)["address"])
        assert (told.status, address.netloc) == (200, "chat.localhost:1")
        entered = await browser.ask(address.netloc, f"{address.path}?{address.query}", headers=PERSON)
        assert (entered.status, entered["location"]) == (303, path)
        assert not replica.calls, "nothing of it was passed on"
        said = await browser.ask("chat.localhost:1", path, headers=PERSON)
        told_program = json.loads(said.body)
        assert (told_program["gpufleet-user"], told_program["cookie"]) == ("ann", "")
        assert IN_NO_OTHER_FRAME.decode() in said["content-security-policy"]
        # Its own page may ask, and send.
        own = {"Origin": "http://chat.localhost:1", "Sec-Fetch-Site": "same-origin"}
        assert (await browser.ask("chat.localhost:1", "/", "POST", headers=own)).status == 200
        assert not any(ann.encode() in head.text for head in replica.calls)
        # A code is of one browser, one program, and one moment.
        again = await browser.ask(address.netloc, f"{address.path}?{address.query}", headers=PERSON)
        assert (again.status, again.error) == (401, "LOGIN_NEEDED")


def test_over_tls_a_page_of_another_host_sets_none_of_the_cookies() -> None:
    def asked(host: str, cookie: str = "", query: str = "") -> HTTPConnection:
        headers = [(b"host", host.encode()), (b"cookie", cookie.encode())]
        scope = {"type": "http", "method": "GET", "scheme": "https", "path": "/", "raw_path": b"/", "headers": headers}
        return HTTPConnection({**scope, "query_string": query.encode(), "server": None})

    def cookie_of(said: Response) -> str:
        """The one that it sets, as a browser sends it: it takes one with this prefix from the host itself alone."""
        kept = [value for value in said.headers.getlist("set-cookie") if "Max-Age=0" not in value]
        ((cookie, *attributes),) = [value.split("; ") for value in kept]
        assert cookie.startswith("__Host-gpufleet_") and {"Secure", "Path=/"} <= set(attributes)
        assert "domain" not in kept[0].lower()
        return cookie

    hands, token, home = Handover(GATEWAY_TOKEN), make_token(), "gpus.example"
    begun = cookie_of(hands.begin(asked(f"chat.{home}"), ProgramHost("chat", home)))
    state = begun.partition("=")[2]
    code = urlsplit(hands.address(asked(home), "chat", token, {"state": state, "path": "/"})).query
    login = cookie_of(hands.finish(asked(f"chat.{home}", begun, code), "chat"))
    assert hands.login_of(asked(f"chat.{home}", login), "chat") == token
    # Without the prefix it may be of a program's page, with Domain=gpus.example: somebody else's login, or a way to it.
    assert hands.login_of(asked(f"chat.{home}", login.removeprefix("__Host-")), "chat") == ""
    with pytest.raises(GpufleetError, match="another browser"):
        hands.finish(asked(f"chat.{home}", begun.removeprefix("__Host-"), code), "chat")
    dashboard, seals = Dashboard(Target(address=Address("127.0.0.1", 1)), GATEWAY_TOKEN), Seals(GATEWAY_TOKEN)
    sealed = f"{seals.cookie}={seals.seal(token)}"
    assert dashboard.login_of(asked(home, f"__Host-{sealed}")) == token
    assert dashboard.login_of(asked(home, sealed)) == ""


async def test_a_code_is_of_one_browser_one_program_and_one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as at, program("r1", who) as replica:
        for name in ("chat", "other"):
            await at.serve(name, replica, access=LOGIN)
        mallory, victim = Browser(at), Browser(at)
        mallory.log_in("localhost", at.person("mallory"))
        _, state, path = await mallory.opened("chat.localhost", "/")
        told = await mallory.enter("localhost", "chat", {"state": state, "path": path})
        address = urlsplit(json.loads(told.body)["address"])
        link = f"{address.path}?{address.query}"
        await victim.opened("chat.localhost", "/")
        for browser, host in ((victim, "chat.localhost"), (victim, "other.localhost"), (mallory, "other.localhost")):
            assert (await browser.ask(host, link, headers=PERSON)).error == "LOGIN_NEEDED"
        for wrong in ("/.gpufleet/enter", "/.gpufleet/enter?code=x", "/.gpufleet/other"):
            assert (await mallory.ask("chat.localhost", wrong)).status in (401, 404)
        monkeypatch.setattr(handover, "CODE_SECONDS", -1)
        assert (await mallory.ask("chat.localhost", link, headers=PERSON)).error == "LOGIN_NEEDED"
        monkeypatch.undo()
        assert (await mallory.ask("chat.localhost", link, headers=PERSON)).status == 303
        # A cookie of one program's host is none of another's.
        mallory.cookies["other.localhost"] |= mallory.cookies["chat.localhost"]
        assert (await mallory.ask("other.localhost", "/")).error == "LOGIN_NEEDED"
        assert not replica.calls


async def test_pages_of_other_hosts_do_not_use_somebodys_login() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica, access=LOGIN)
        browser = Browser(at)
        browser.log_in("localhost", at.person("ann"))
        name, state, path = await browser.opened("chat.localhost", "/")
        told = await browser.enter("localhost", name, {"state": state, "path": path})
        address = urlsplit(json.loads(told.body)["address"])
        await browser.ask("chat.localhost", f"{address.path}?{address.query}")
        for headers in (
            {"Origin": "http://evil.localhost"},
            {"Origin": "null"},
            {"Origin": "http://localhost"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        ):
            for method in ("GET", "POST"):
                said = await browser.ask("chat.localhost", "/", method, headers=headers)
                assert (said.status, said.error) == (401, "LOGIN_NEEDED"), headers
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert (await browser.ask("chat.localhost", "/", headers=link)).status == 200
        assert (await browser.ask("chat.localhost", "/", "POST", headers=link)).status == 401


async def test_who_may_not_be_let_in_is_told_why() -> None:
    async with stage() as at:
        browser = Browser(at)
        good = {"state": "0" * 32, "path": "/"}
        assert (await browser.enter("localhost", "chat", good)).error == "TOKEN_MISSING"
        browser.log_in("localhost", make_token())
        assert (await browser.enter("localhost", "chat", good)).error == "TOKEN_INVALID"
        browser.log_in("localhost", at.person("ann"))
        wrong: list[tuple[dict[str, object], str]] = [
            ({"state": "short", "path": "/"}, "state"),
            ({"state": 5, "path": "/"}, "state"),
            ({"state": "0" * 32, "path": "//evil.example"}, "path"),
            ({"state": "0" * 32}, "path"),
        ]
        for said, field_name in wrong:
            refused = await browser.enter("localhost", "chat", said)
            assert (refused.status, json.loads(refused.body)["error"]["field"]) == (400, field_name), said
        assert (await browser.enter("localhost", "a%20b", good)).error == "MODEL_NOT_FOUND"
        foreign = {"Origin": "http://chat.localhost", "Sec-Fetch-Site": "cross-site"}
        assert (await browser.enter("localhost", "chat", good, foreign)).error == "PERMISSION_DENIED"
        browser.log_in("10.0.0.7:7860", at.person("bob"))
        by_number = await browser.enter("10.0.0.7:7860", "chat", good)
        assert by_number.status == 400 and "program_hosts" in json.loads(by_number.body)["error"]["next_step"]


async def test_a_token_that_is_revoked_leads_to_the_login_anew() -> None:
    async with stage() as at, program("r1", who) as replica:
        await at.serve("chat", replica, access=LOGIN)
        browser = Browser(at)
        token = at.person("ann")
        browser.log_in("localhost", token)
        name, state, path = await browser.opened("chat.localhost", "/")
        told = await browser.enter("localhost", name, {"state": state, "path": path})
        address = urlsplit(json.loads(told.body)["address"])
        await browser.ask("chat.localhost", f"{address.path}?{address.query}")
        del at.scheduler.users[token]
        assert (await browser.opened("chat.localhost", "/"))[0] == "chat"
        assert (await browser.ask("chat.localhost", "/")).error == "TOKEN_INVALID"
