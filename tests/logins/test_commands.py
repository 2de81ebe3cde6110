"""`gpuctl login`, `logout` and `config user`, as people type them: real processes, a browser, and docs/logins.md."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from cli.logins.loopback import Loopback, answer_in
from gpufleet.config.paths import contexts_file
from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.tokens import read_token_file
from gpufleet.security.users_file import is_password, read_users
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.logins.conftest import PASSWORD, House, choose, house, oidc, users_file
from tests.logins.provider import Provider

ROOT = Path(__file__).parents[2]


class Person:
    """Somebody with a home of their own, at a terminal that is none."""

    def __init__(self, home: Path, at: House | None = None) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.environment = clean_environment(home, {})
        if at is not None:
            self.environment["GPUCTL_SCHEDULER"] = at.fleet.scheduler.address

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = (sys.executable, "-P", "-m", "gpufleet.cli", *words)
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment, cwd=self.home)

    async def types(self, *words: str, said: str = "") -> tuple[int, str, str]:
        """The exit code, and both outputs."""
        return await ended(self.begin(*words), said)

    @property
    def contexts(self) -> dict[str, dict[str, object]]:
        file = contexts_file(self.environment)
        found: dict[str, dict[str, object]] = tomllib.loads(file.read_text())["contexts"]
        return found


async def ended(process: subprocess.Popen[bytes], said: str = "") -> tuple[int, str, str]:
    """The exit code, and both outputs, once it has been told all."""
    out, err = await asyncio.to_thread(process.communicate, said.encode(), DEADLINE_SECONDS)
    return process.returncode, out.decode(), err.decode()


def is_for_its_owner_alone(file: Path) -> bool:
    return file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o077 == 0


async def test_a_password_is_read_without_a_terminal_and_the_token_is_kept_and_let_go(
    tmp_path: Path, password_hash: str
) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with house(tmp_path, login={"users_file": str(file)}) as at:
        ana = Person(tmp_path / "ana", at)
        code, out, err = await ana.types("login", "--user", "ana", said=f"{PASSWORD}\n")
        assert code == 0 and out.startswith("logged in as ana (user) until "), err
        (context,) = ana.contexts.values()
        token_file = Path(str(context["token_file"]))
        assert context["scheduler"] == at.fleet.scheduler.address
        assert is_for_its_owner_alone(token_file)
        secret = read_token_file(token_file)
        assert secret not in out + err and PASSWORD not in out + err
        del ana.environment["GPUCTL_SCHEDULER"]
        assert (await ana.types("queue"))[0] == 0, "the context is the one in use"
        code, out, err = await ana.types("logout")
        assert (code, out) == (0, "ana is logged out\n"), err
        assert list(token_file.parent.iterdir()) == [] and "token_file" not in next(iter(ana.contexts.values()))
        code, _, err = await ana.types("logout")
        assert code != 0 and "gpuctl login" in err
        with pytest.raises(GpufleetError) as caught:
            await at.info(secret)
        assert caught.value.reason is Reason.TOKEN_REVOKED
        code, _, err = await ana.types("login", "--user", "ana", said="wrong one\n")
        assert code == 4 and "the user or the password is not right" in err and "wrong one" not in err


async def test_a_browser_comes_back_to_the_terminal(tmp_path: Path, provider: Provider) -> None:
    async with house(tmp_path, oidc=oidc(provider)) as at:
        ana = Person(tmp_path / "ana", at)
        seen = tmp_path / "opened"
        ana.environment["BROWSER"] = str(browser(tmp_path / "browser", seen))
        process = ana.begin("login")
        await until("the browser is opened", seen.exists)
        url = seen.read_text()
        location = await asyncio.to_thread(choose, url, "ana-1")
        port = urlsplit(location).port
        for other in ("/", "/callback?code=x&state=guessed", "/callback?state=&code=x"):
            status = await asyncio.to_thread(status_of, f"http://127.0.0.1:{port}{other}")
            assert status == 400, "of another login, which goes on"
        assert await asyncio.to_thread(status_of, location) == 200
        code, out, err = await ended(process)
        assert code == 0 and out.startswith("logged in as ana (admin) until "), err
        assert url in err, "the address is shown, too"
        code, out_of_list, _ = await ana.types("token", "list", "-o", "json")
        assert code == 0
        (login,) = [each for each in json.loads(out_of_list)["tokens"] if each["login"]]
        assert login["login"] == f"oidc {provider.issuer} ana-1"


def browser(script: Path, seen: Path) -> Path:
    """A browser that only writes down what it is to open."""
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.part\nmv {seen}.part {seen}\n')
    script.chmod(0o700)
    return script


def status_of(url: str) -> int:
    try:
        with urlopen(url, timeout=DEADLINE_SECONDS) as answer:
            return int(answer.status)
    except OSError as problem:
        with problem:  # type: ignore[attr-defined]
            return int(getattr(problem, "code", 0))


async def test_an_address_is_pasted_where_there_is_no_browser(tmp_path: Path, provider: Provider) -> None:
    async with house(tmp_path, oidc=oidc(provider)) as at:
        boris = Person(tmp_path / "boris", at)
        process = boris.begin("login", "--no-browser")
        assert process.stderr is not None
        url = ""
        while not url:
            line = (await asyncio.to_thread(process.stderr.readline)).decode()
            assert line, "it ended without an address"
            found = re.search(r"http://\S+/authorize\S+", line)
            url = found[0] if found else ""
        location = await asyncio.to_thread(choose, url, "boris-2")
        code, out, err = await ended(process, f"{location}\n")
        assert code == 0 and out.startswith("logged in as boris (user)"), err
        code, _, err_text = await boris.types("login", "--no-browser", said=f"{location}\n")
        assert code == 2 and "is not where this login ends" in err_text, "that of another login"


async def test_without_logins_it_says_so_and_what_to_do(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        code, _, err = await Person(tmp_path / "ana", at).types("login", "--token-file", "x")
        assert code == 2 and "a login makes one" in err
        code, _, err = await Person(tmp_path / "ana", at).types("login")
        assert code == 4 and "has no logins" in err and "docs/logins.md" in err


async def test_the_file_of_users_is_written_listed_and_cleared(tmp_path: Path) -> None:
    admin = Person(tmp_path / "admin")
    file = tmp_path / "etc" / "users"
    words = ("config", "user", "set", "ana", "--file", str(file))
    code, out, err = await admin.types(*words, "--role", "admin", said=f"{PASSWORD}\n")
    assert (code, out) == (0, "user ana (admin) is added\n"), err
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("# ours\n" + file.read_text())
    code, out, _ = await admin.types("config", "user", "set", "ana", "--file", str(file), said="another password\n")
    assert (code, out) == (0, "user ana (admin) is changed\n")
    assert is_password("another password", read_users(file)["ana"].password_hash)
    code, out, _ = await admin.types("config", "user", "list", "--file", str(file))
    assert code == 0 and "ana" in out and "$argon2id" not in out
    before = file.read_text()
    for wrong, said, what in (
        (("set", "a b"), PASSWORD, "is not a user's name"),
        (("set", "boris", "--role", "root"), PASSWORD, "is no role"),
        (("set", "boris"), "short", "is no password"),
        (("set", "boris"), "", "is no password"),
        (("remove", "boris"), "", "has no user"),
    ):
        code, _, err = await admin.types("config", "user", *wrong, "--file", str(file), said=f"{said}\n")
        assert code == 2 and what in err and (not said or said not in err)
    assert file.read_text() == before
    assert (await admin.types("config", "user", "remove", "ana", "--file", str(file)))[0] == 0
    assert file.read_text() == "# ours\n"


def test_only_the_answer_with_the_state_is_taken() -> None:
    assert answer_in("http://127.0.0.1/callback?code=c&state=s", "s") == ("c", "")
    assert answer_in("/callback?error=access_denied&state=s", "s") == ("", "access_denied")
    others = ("", "/callback?code=c", "/callback?code=c&state=S", "/x?code=c&state=s", "/callback?state=s", "http://[")
    for other in others:
        assert answer_in(other, "s") is None, other
    assert answer_in("/callback?code=c&state=s" + "x" * 20_000, "s" + "x" * 20_000) is None


def test_nobody_who_comes_is_told_in_time() -> None:
    loopback = Loopback("s")
    try:
        with pytest.raises(GpufleetError) as caught:
            loopback.wait(0.0)
        assert caught.value.reason is Reason.DEADLINE
    finally:
        loopback.close()
