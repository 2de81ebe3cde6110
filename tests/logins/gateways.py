"""A gateway before a scheduler whose people log in, and browsers without scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2

from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.stage import Stage
from tests.logins.conftest import choose, toml

BEGUN, LOGIN = "gpufleet_begun_", "gpufleet_login_"


@asynccontextmanager
async def gateway_stage(folder: Path, **settings: dict[str, Any]) -> AsyncIterator[Stage]:
    """A scheduler with these sections of scheduler.toml, and a gateway."""
    file = folder / "scheduler.toml"
    file.write_text(toml(settings))
    stage = Stage(folder / "stage", "--config", str(file))
    try:
        await stage.start()
        yield stage
    finally:
        await stage.end()


class Browser:
    """Cookies, and no scripts: it goes where it is told to, and follows no redirect by itself."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self.http = httpx2.AsyncClient(base_url=f"http://{gateway}", trust_env=False, timeout=DEADLINE_SECONDS)

    def cookie(self, kind: str) -> str:
        """The value of the cookie of this kind; empty without one."""
        return next((each.value or "" for each in self.http.cookies.jar if each.name.startswith(kind)), "")

    async def asks(self, path: str, said: object = None, **headers: str) -> httpx2.Response:
        """GET, or POST of an object, of the gateway's API, as its own page does."""
        if said is None:
            return await self.http.get(f"/api/v1/{path}", headers=headers)
        return await self.http.post(
            f"/api/v1/{path}", json=said, headers={"origin": f"http://{self.gateway}"} | headers
        )

    async def password(self, user: str, password: str, **headers: str) -> httpx2.Response:
        return await self.asks("login", {"user": user, "password": password}, **headers)

    async def begins(self, view: str = "") -> str:
        """Begin to log in with the provider; the address of its page."""
        begun = await self.asks("login/provider", {"view": view})
        assert begun.status_code == 200, begun.text
        return str(begun.json()["address"])

    async def chooses(self, address: str, subject: str) -> str:
        """Be somebody on the provider's page; the address that it sends the browser to."""
        location = await asyncio.to_thread(choose, address, subject)
        assert urlsplit(location).netloc == self.gateway
        return location

    async def comes_back(self, location: str) -> httpx2.Response:
        """Follow the provider's redirect: what the gateway answers."""
        return await self.http.get(location, headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})

    async def user(self) -> str:
        """Who is logged in; the reason of the refusal for nobody."""
        me = await self.asks("me")
        return str(me.json()["user"] if me.status_code == 200 else me.json()["error"]["reason"])

    async def problem(self) -> dict[str, str] | None:
        """What the page is told of why the last login failed."""
        told: dict[str, str] | None = (await self.asks("login")).json()["problem"]
        return told


@asynccontextmanager
async def browser(gateway: str) -> AsyncIterator[Browser]:
    """Somebody's browser at HOST:PORT."""
    somebody = Browser(gateway)
    async with somebody.http:
        yield somebody


def said_in(address: str) -> dict[str, str]:
    """What the query of an address says."""
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
