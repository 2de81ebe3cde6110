"""A fleet of a scheduler alone, whose people log in: by passwords of a file, and with a provider."""

from __future__ import annotations

import hashlib
import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import grpc.aio
import pytest
from gpufleet.v1 import scheduler_pb2, scheduler_pb2_grpc

from gpufleet.errors import GpufleetError
from gpufleet.net.status import from_rpc_error
from gpufleet.security.users_file import FileUser, hash_password, line_of
from tests.e2e.client import dial
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS
from tests.logins.provider import CLIENT, Provider, serving

pb = scheduler_pb2
PASSWORD = "a cat on the mat"
REDIRECT = "http://127.0.0.1:1/callback"


@pytest.fixture(scope="session")
def password_hash() -> str:
    """Of PASSWORD."""
    return hash_password(PASSWORD)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """One that knows ana and boris, and that ana is an admin."""
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    found = Provider()
    found.people = {
        "ana-1": {"preferred_username": "ana", "groups": ["gpu-users", "gpu-admins"]},
        "boris-2": {"preferred_username": "boris", "groups": ["gpu-users"]},
        "guest-3": {"preferred_username": "guest", "groups": []},
    }
    with serving(found):
        yield found


@dataclass
class Login:
    """What somebody who logs in with a provider holds meanwhile."""

    state: str
    nonce: str
    verifier: str
    url: str = ""

    @property
    def challenge(self) -> str:
        return urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")


def new_login() -> Login:
    return Login(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48))


class House:
    """The fleet, and whoever has no token yet."""

    def __init__(self, fleet: Fleet, stub: Any) -> None:
        self.fleet = fleet
        self.stub = stub

    async def password(self, user: str, password: str) -> Any:
        """The answer to a login, or a GpufleetError."""
        return await self.login(pb.LoginRequest(password=pb.PasswordLogin(user=user, password=password)))

    async def begin(self, login: Login | None = None, redirect: str = REDIRECT) -> Login:
        login = login or new_login()
        request = pb.BeginLoginRequest(
            redirect_uri=redirect, state=login.state, nonce=login.nonce, code_challenge=login.challenge
        )
        login.url = (await self._said(self.stub.BeginLogin, request)).authorization_url
        return login

    async def end(self, login: Login, code: str, redirect: str = REDIRECT) -> Any:
        """The answer to a code."""
        way = pb.CodeLogin(code=code, redirect_uri=redirect, code_verifier=login.verifier, nonce=login.nonce)
        return await self.login(pb.LoginRequest(code=way))

    async def through(self, subject: str) -> Any:
        """Log in with the provider, from the beginning to the end."""
        login = await self.begin()
        return await self.end(login, code_in(choose(login.url, subject), login))

    async def login(self, request: pb.LoginRequest) -> Any:
        return await self._said(self.stub.Login, request)

    async def _said(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem) from None

    async def info(self, secret: str) -> Any:
        """What the scheduler says to a token, or a GpufleetError."""
        async with self.fleet.client(secret) as person:
            return await self._said(person.stub.GetServerInfo, pb.GetServerInfoRequest())

    async def tokens(self) -> list[pb.Token]:
        async with self.fleet.client() as admin:
            return list((await admin.stub.ListTokens(pb.ListTokensRequest(page_size=1000))).tokens)


@asynccontextmanager
async def house(folder: Path, **settings: dict[str, Any]) -> AsyncIterator[House]:
    """A scheduler with these sections of scheduler.toml: `house(tmp_path, login={"users_file": …})`."""
    file = folder / "scheduler.toml"
    file.write_text(toml(settings))
    async with (
        Fleet(folder / "fleet", "--config", str(file)) as fleet,
        dial(fleet.scheduler.address, None) as channel,
    ):
        yield House(fleet, scheduler_pb2_grpc.SchedulerStub(channel))


def toml(sections: dict[str, dict[str, Any]]) -> str:
    lines: list[str] = []
    for name, values in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value, default=str)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def oidc(provider: Provider, **more: Any) -> dict[str, Any]:
    """A section of the settings for this provider."""
    settings = {
        "issuer": provider.issuer,
        "client_id": CLIENT,
        "user_claim": "preferred_username",
        "member_claim": "groups:gpu-users",
        "admin_claim": "groups:gpu-admins",
    }
    return settings | more


def users_file(folder: Path, password_hash: str, **roles: str) -> Path:
    """A file of users, all of PASSWORD."""
    file = folder / "users"
    file.touch(mode=0o600)
    file.write_text("".join(f"{line_of(FileUser(name, role, password_hash))}\n" for name, role in roles.items()))
    return file


# --- a browser without scripts


class NoRedirects(HTTPRedirectHandler):
    """Leaves a redirect as it is."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


class Buttons(HTMLParser):
    """The values of the buttons of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "button":
            self.values.append(dict(attrs).get("value") or "")


def choose(url: str, subject: str) -> str:
    """Choose who one is on the provider's page; where it sends the browser then."""
    opener = build_opener(NoRedirects())
    with opener.open(url, timeout=DEADLINE_SECONDS) as page:
        assert subject in Buttons(page.read().decode()).values
    try:
        opener.open(Request(url, data=urlencode({"sub": subject}).encode()), timeout=DEADLINE_SECONDS)
    except OSError as answer:
        headers: Any = getattr(answer, "headers", None)
        with answer:  # type: ignore[attr-defined]
            return str(headers["Location"])
    raise AssertionError("the provider sends nobody back")


def code_in(location: str, login: Login) -> str:
    """The code that the provider sends back, with the state that the login began with."""
    said = parse_qs(urlsplit(location).query)
    assert said["state"] == [login.state]
    return said["code"][0]


async def refused(awaitable: Any) -> GpufleetError:
    """The refusal of what is awaited."""
    with pytest.raises(GpufleetError) as caught:
        await awaitable
    return caught.value
