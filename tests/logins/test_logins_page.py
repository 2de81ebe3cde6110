"""docs/logins.md, typed line by line: by an admin on the scheduler's machine, and by people who log in."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.dashboard.provider_login import BEGUN_SECONDS, CALLBACK
from gpufleet.errors import Reason
from gpufleet.security.users_file import read_users
from tests.e2e.processes import until
from tests.logins.conftest import PASSWORD, House, choose, house, oidc, refused
from tests.logins.provider import Provider
from tests.logins.test_commands import Person, browser, ended, status_of

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "logins.md").read_text()
SECRET = "the client's own secret"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def lines(beginning: str = "gpuctl ") -> list[str]:
    typed = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in typed if line.startswith(beginning)]


def settings_of_the_page(folder: Path, provider: Provider) -> dict[str, Any]:
    """What the page writes into scheduler.toml, with the issuer and the folder of this test."""
    provider.client.secret = SECRET
    file = folder / "oidc.secret"
    file.touch(mode=0o600)
    file.write_text(SECRET)
    text = "\n".join(blocks("toml")).replace("/etc/gpufleet", str(folder))
    settings = tomllib.loads(text.replace("https://login.example.org/realms/lab", provider.issuer))
    settings["oidc"] = oidc(provider) | settings["oidc"]
    return settings


async def test_every_line_of_the_page_does_what_the_page_says(tmp_path: Path, provider: Provider) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    assert all(line.startswith("gpuctl ") for block in blocks("sh") for line in block.splitlines())
    at_scheduler = Person(tmp_path / "admin")
    for line in lines("gpuctl config user"):
        said = f"{PASSWORD}\n" if " set " in line else ""
        words = line.replace("/etc/gpufleet", str(etc)).split()[1:]
        code, out, err = await at_scheduler.types(*words, said=said)
        assert code == 0, (line, err)
        assert (" list " not in line) or ("ana" in out and "cleo" in out), line
    assert {user.name: user.role for user in read_users(etc / "users").values()} == {"ana": "admin"}
    async with house(tmp_path, **settings_of_the_page(etc, provider)) as at:
        typed = {line: TYPED[line] for line in lines() if line not in lines("gpuctl config user")}
        logins = {"gpuctl login": "boris", "gpuctl login --no-browser": "boris", "gpuctl login --user ana": "ana"}
        person = Person(tmp_path / "person", at)
        for line, how in typed.items():
            if line == "gpuctl token revoke ID":
                assert (await refused(at.through("ana-1"))).reason is Reason.LOGIN_NAME_TAKEN
            out = await how(line, person, at)
            if line in logins:
                assert out.startswith(f"logged in as {logins[line]} ("), line
        # The name is free: the provider's ana has it now.
        assert (await at.through("ana-1")).token.user == "ana"


async def in_a_browser(line: str, person: Person, at: House) -> str:
    opened = person.home / "opened"
    person.environment["BROWSER"] = str(browser(person.home / "browser", opened))
    process = person.begin(*line.split()[1:])
    await until("the browser is opened", opened.exists)
    location = await asyncio.to_thread(choose, opened.read_text(), "boris-2")
    assert await asyncio.to_thread(status_of, location) == 200
    return checked(line, await ended(process))


async def by_pasting(line: str, person: Person, at: House) -> str:
    process = person.begin(*line.split()[1:])
    assert process.stderr is not None
    found = None
    while found is None:
        shown = (await asyncio.to_thread(process.stderr.readline)).decode()
        assert shown, "it ended without an address"
        found = re.search(r"http://\S+/authorize\S+", shown)
    location = await asyncio.to_thread(choose, found[0], "boris-2")
    return checked(line, await ended(process, f"{location}\n"))


async def by_password(line: str, person: Person, at: House) -> str:
    return checked(line, await person.types(*line.split()[1:], said=f"{PASSWORD}\n"))


async def plainly(line: str, person: Person, at: House) -> str:
    return checked(line, await person.types(*line.split()[1:]))


async def by_an_admin(line: str, person: Person, at: House) -> str:
    admin = Person(person.home.with_name("by-token"), at)
    admin.environment["GPUCTL_TOKEN"] = at.fleet.scheduler.token("admin")
    if line.endswith(" ID"):
        ids = [each.id for each in await at.tokens() if each.login and each.user == "ana"]
        line = line.replace(" ID", f" {ids[-1]}")
    return checked(line, await admin.types(*line.split()[1:]))


def checked(line: str, done: tuple[int, str, str]) -> str:
    code, out, err = done
    assert code == 0, (line, err)
    return out


TYPED: dict[str, Callable[[str, Person, House], Awaitable[str]]] = {
    "gpuctl login": in_a_browser,
    "gpuctl login --no-browser": by_pasting,
    "gpuctl login --user ana": by_password,
    "gpuctl logout": plainly,
    "gpuctl token list": by_an_admin,
    "gpuctl token revoke ID": by_an_admin,
}
"""Who types each line, and how."""


def test_the_page_names_where_browsers_come_back_to_and_for_how_long() -> None:
    assert f"`https://gpus.example.org{CALLBACK}`" in PAGE and BEGUN_SECONDS == 600 and "ten minutes" in PAGE
