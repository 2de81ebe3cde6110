"""Logins at a gateway, as its page makes them: by a password and with a provider, and what somebody hostile tries."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from gpufleet.v1 import scheduler_pb2
from starlette.requests import Request
from starlette.responses import Response

from gateway.dashboard.bounds import CALLS_AT_ONCE
from gateway.dashboard.provider_login import (
    BEGUN_SECONDS,
    PROBLEM_CHARS_MAX,
    VIEW_CHARS_MAX,
    AtProvider,
    ProviderCookies,
    checked_view,
    redirect_uri_of,
)
from gateway.dashboard.serving import Dashboard
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target
from gpufleet.security.code_login import begin_login
from scheduler.logins.throttle import FREE_OF_PAIR
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.stage import Stage
from tests.logins.conftest import PASSWORD, oidc, users_file
from tests.logins.gateways import BEGUN, LOGIN, browser, gateway_stage, said_in
from tests.logins.provider import Provider

WITHOUT = {"has_passwords": False, "provider": "", "problem": None}


async def logins_of(stage: Stage) -> list[scheduler_pb2.Token]:
    async with stage.fleet.client() as admin:
        listed = await admin.stub.ListTokens(scheduler_pb2.ListTokensRequest(page_size=1000), timeout=DEADLINE_SECONDS)
        return [each for each in listed.tokens if each.login]


async def holding(stage: Stage) -> list[bool]:
    """Of each login whether it still holds."""
    return [not each.is_revoked and each.expire_time.ToSeconds() > time.time() for each in await logins_of(stage)]


def logs_of(stage: Stage) -> str:
    return "".join(file.read_text(errors="replace") for file in stage.folder.rglob("*.log*") if file.is_file())


async def test_a_password_logs_in_and_logging_out_ends_the_login_at_the_scheduler(
    tmp_path: Path, password_hash: str
) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with gateway_stage(tmp_path, login={"users_file": str(file)}) as stage, browser(stage.gateway) as ana:
        assert (await ana.asks("login")).json() == WITHOUT | {"has_passwords": True}
        entered = await ana.password(" ana ", PASSWORD, **{"x-forwarded-for": "203.0.113.7"})
        assert (entered.status_code, entered.json()["user"], entered.json()["role"]) == (200, "ana", "user")
        said = entered.headers["set-cookie"].lower()
        assert "httponly" in said and "samesite=strict" in said and entered.headers["cache-control"] == "no-store"
        assert await ana.user() == "ana"
        (login,) = await logins_of(stage)
        assert login.note == "login from 203.0.113.7", "the person's address, and not the gateway's"
        kept = ana.cookie(LOGIN)
        out = await ana.asks("logout", {})
        assert out.json() == {"is_ended": True} and not ana.cookie(LOGIN)
        assert await holding(stage) == [False]
        again = await ana.asks("me", cookie=f"{login_cookie(entered.headers['set-cookie'])}={kept}")
        assert again.json()["error"]["reason"] == "TOKEN_REVOKED", "a copy of the cookie is worth nothing"
        assert PASSWORD not in logs_of(stage)


def login_cookie(said: str) -> str:
    return said.partition("=")[0]


async def test_who_logs_out_while_the_scheduler_is_away_is_out_here_and_told_so(
    tmp_path: Path, password_hash: str
) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with gateway_stage(tmp_path, login={"users_file": str(file)}) as stage, browser(stage.gateway) as ana:
        assert (await ana.password("ana", PASSWORD)).status_code == 200
        stage.fleet.scheduler.kill()
        out = await ana.asks("logout", {})
        assert (out.status_code, out.json()) == (200, {"is_ended": False}) and not ana.cookie(LOGIN)
        assert await ana.user() == "TOKEN_MISSING"


async def test_a_token_that_was_typed_outlives_logging_out(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with gateway_stage(tmp_path, login={"users_file": str(file)}) as stage, browser(stage.gateway) as ana:
        async with stage.fleet.client() as admin:
            way = scheduler_pb2.PasswordLogin(user="ana", password=PASSWORD)
            token = (await admin.stub.Login(scheduler_pb2.LoginRequest(password=way), timeout=DEADLINE_SECONDS)).secret
        for _ in range(2):
            # As `gpuctl login` keeps it for the terminal, which goes on.
            assert (await ana.asks("login", {"token": token})).status_code == 200
            assert (await ana.asks("logout", {})).json() == {"is_ended": True}
        assert await holding(stage) == [True]


async def test_who_guesses_a_password_waits_by_the_address_of_the_person(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with gateway_stage(tmp_path, login={"users_file": str(file)}) as stage, browser(stage.gateway) as guesser:
        # On a slow machine some more pass: the pause doubles until it is longer than a try takes.
        for number in range(FREE_OF_PAIR + 8):
            wrong = await guesser.password("ana", "hunter2hunter2", **{"x-forwarded-for": "203.0.113.8"})
            if number >= FREE_OF_PAIR and wrong.status_code == 429:
                break
            assert (wrong.status_code, wrong.json()["error"]["reason"]) == (401, "LOGIN_FAILED")
            assert wrong.json()["error"]["next_step"] and "set-cookie" not in wrong.headers
        assert wrong.json()["error"]["reason"] == "TOO_MANY_TRIES" and int(wrong.headers["retry-after"]) >= 1
        assert "hunter2" not in logs_of(stage)
        elsewhere = await guesser.password("ana", PASSWORD, **{"x-forwarded-for": "203.0.113.9"})
        assert elsewhere.status_code == 200, "whoever guesses keeps nobody out"


async def test_another_address_in_a_header_with_each_try_escapes_no_bound(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with gateway_stage(tmp_path, login={"users_file": str(file)}) as stage:
        believing_nobody = await stage.another_gateway("plain", variables={"GPUCTL_GATEWAY_PROXIES": ""}).address()
        async with browser(believing_nobody) as guesser:
            codes = set()
            for number in range(FREE_OF_PAIR + 8):
                said = {"x-forwarded-for": f"203.0.113.{number}"}
                codes.add((await guesser.password("ana", "hunter2hunter2", **said)).status_code)
            assert codes == {401, 429}


async def test_what_is_wrong_with_a_login_is_said_by_its_field(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with gateway_stage(tmp_path, login={"users_file": str(file)}) as stage, browser(stage.gateway) as ana:
        for said, field in (
            ({"user": "", "password": PASSWORD}, "user"),
            ({"user": 7, "password": PASSWORD}, "user"),
            ({"user": "ana"}, "password"),
            ({"user": "ana", "password": ["x"]}, "password"),
            ({"user": "ana", "password": PASSWORD, "token": "gf_x"}, "token"),
            ({"user": "a" * 64, "password": PASSWORD}, "password.user"),
            ({"user": "ana", "password": "x" * 201}, "password.password"),
        ):
            error = (await ana.asks("login", said)).json()["error"]
            assert (error["reason"], error["field"]) == ("INVALID_ARGUMENT", field) and error["next_step"], said
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            for path in ("login", "login/provider"):
                other = await ana.asks(path, {"user": "ana", "password": PASSWORD}, **headers)
                assert other.status_code == 403 and "set-cookie" not in other.headers, (path, headers)
        form = {"origin": f"http://{stage.gateway}", "content-type": "text/plain"}
        typed = await ana.http.post("/api/v1/login", content='{"user": "ana", "password": "x"}', headers=form)
        assert typed.status_code == 415
        assert await ana.user() == "TOKEN_MISSING" and await logins_of(stage) == []
        assert (await ana.asks("login/provider", {})).json()["error"]["reason"] == "LOGIN_NOT_SET_UP"


async def test_a_scheduler_without_logins_says_so(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage, browser(stage.gateway) as ana:
        assert (await ana.asks("login")).json() == WITHOUT
        refused = await ana.password("ana", PASSWORD)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (409, "LOGIN_NOT_SET_UP")
        stage.fleet.scheduler.kill()
        away = await ana.asks("login")
        assert away.status_code == 503 and away.json()["error"]["reason"] == "SCHEDULER_UNREACHABLE"


async def test_a_provider_logs_in_and_leads_back_to_the_view(tmp_path: Path, provider: Provider) -> None:
    settings = oidc(provider, name="Example Lab")
    async with gateway_stage(tmp_path, oidc=settings) as stage, browser(stage.gateway) as ana:
        assert (await ana.asks("login")).json() == WITHOUT | {"provider": "Example Lab"}
        address = await ana.begins("#/job/7")
        asked = said_in(address)
        assert address.startswith(f"{provider.issuer}/authorize?") and asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == f"http://{stage.gateway}/api/v1/login/callback"
        back = await ana.comes_back(await ana.chooses(address, "ana-1"))
        assert (back.status_code, back.headers["location"]) == (303, "/dashboard#/job/7")
        assert (back.headers["cache-control"], back.headers["referrer-policy"]) == ("no-store", "no-referrer")
        assert not ana.cookie(BEGUN) and await ana.user() == "ana" and await ana.problem() is None
        (login,) = await logins_of(stage)
        assert login.login == f"oidc {provider.issuer} ana-1"
        assert (await ana.asks("logout", {})).json() == {"is_ended": True}
        assert await holding(stage) == [False]


async def test_a_login_ends_at_any_gateway_and_in_the_browser_that_began_it_alone(
    tmp_path: Path, provider: Provider
) -> None:
    async with (
        gateway_stage(tmp_path, oidc=oidc(provider)) as stage,
        browser(stage.gateway) as ana,
        browser(stage.gateway) as mallory,
    ):
        side = stage.another_gateway("second")
        other = await side.address()
        theirs = await mallory.chooses(await mallory.begins(), "boris-2")
        mine = await ana.chooses(await ana.begins(), "ana-1")
        # A link of Mallory's logs Ana in as nobody, whether or not she has begun a login of her own.
        for location in (theirs, mine.replace(said_in(mine)["state"], "guessed"), mine.partition("&state")[0]):
            back = await ana.comes_back(location)
            assert (back.status_code, back.headers["location"]) == (303, "/dashboard")
            problem = await ana.problem()
            assert problem is not None and "was not begun in this browser" in problem["message"]
            assert problem["next_step"] and await ana.problem() is None, "it is told once"
        assert (await mallory.comes_back(mine)).headers["location"] == "/dashboard"
        assert await ana.user() == await mallory.user() == "TOKEN_MISSING" and await logins_of(stage) == []
        # What Ana began goes on, at another gateway too: it is in her cookie alone.
        path = mine.partition(stage.gateway)[2]
        begun = next(each for each in ana.http.cookies.jar if each.name.startswith(BEGUN))
        async with browser(other) as moved:
            moved.http.cookies.set(begun.name, begun.value or "", domain="127.0.0.1")
            assert (await moved.comes_back(f"http://{other}{path}")).status_code == 303
            assert await moved.user() == "ana"
        # And is over then, also for who kept address and cookie.
        await ana.comes_back(mine)
        problem = await ana.problem()
        assert problem is not None and "was ended before" in problem["message"]
        assert await ana.user() == "TOKEN_MISSING" and not ana.cookie(BEGUN)
        assert side.end() == 0


async def test_why_a_provider_logs_nobody_in_is_told_with_what_to_do(tmp_path: Path, provider: Provider) -> None:
    async with gateway_stage(tmp_path, oidc=oidc(provider)) as stage, browser(stage.gateway) as ana:
        guest = await ana.comes_back(await ana.chooses(await ana.begins("#/queue"), "guest-3"))
        assert guest.headers["location"] == "/dashboard#/queue"
        problem = await ana.problem()
        assert problem is not None and problem["reason"] == "LOGIN_FAILED"
        assert "none of your groups" in problem["message"] and problem["next_step"].startswith("Ask an admin")
        address = await ana.begins()
        state = said_in(address)["state"]
        callback = f"http://{stage.gateway}/api/v1/login/callback"
        for said, told in (("error=access_denied", "access_denied"), ("", "did not log you in")):
            await ana.begins()
            assert (await ana.comes_back(f"{callback}?{said}&state={state}")).status_code == 303
            assert "was not begun" in ((await ana.problem()) or {})["message"], "the newest one counts"
            state = said_in(await ana.begins())["state"]
            assert (await ana.comes_back(f"{callback}?{said}&state={state}")).status_code == 303
            assert told in ((await ana.problem()) or {})["message"]
        location = await ana.chooses(await ana.begins(), "ana-1")
        provider.lies.claims = {"aud": "another program"}
        await ana.comes_back(location)
        assert "not for this fleet" in ((await ana.problem()) or {})["message"]
        provider.lies.answers["/token"] = lambda: ("away", 503)
        location = await ana.chooses(await ana.begins(), "ana-1")
        await ana.comes_back(location)
        problem = await ana.problem()
        assert problem is not None and problem["reason"] == "LOGIN_PROVIDER_FAILED" and problem["next_step"]
        assert await ana.user() == "TOKEN_MISSING" and await logins_of(stage) == []


def request_with(cookies: dict[str, str], scheme: str = "http", **headers: str) -> Request:
    told = {"host": "gpus.example", "cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    raw = [(name.encode(), value.encode()) for name, value in (told | headers).items()]
    scope = {"type": "http", "scheme": scheme, "server": ("gpus.example", 80), "path": "/", "query_string": b""}
    return Request(scope | {"headers": raw, "method": "GET"})


def cookies_of(response: Response) -> dict[str, str]:
    said = [value.decode() for name, value in response.raw_headers if name == b"set-cookie"]
    return {name: value.partition(";")[0] for name, _, value in (each.partition("=") for each in said)}


def test_a_begun_login_is_kept_for_its_time_and_opened_by_its_own_gateways_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = AtProvider(begin_login(), "https://gpus.example/api/v1/login/callback", "#/queue")
    cookies = ProviderCookies("a gateway's token")
    for scheme, prefix in (("http", ""), ("https", "__Host-")):
        response = Response()
        cookies.keep(request_with({}, scheme), response, login)
        (said,) = [value.decode() for name, value in response.raw_headers if name == b"set-cookie"]
        assert said.startswith(f"{prefix}{BEGUN}") and "HttpOnly" in said and "SameSite=lax" in said
        assert f"Max-Age={BEGUN_SECONDS}" in said and "Path=/" in said and ("Secure" in said) is (scheme == "https")
        assert login.secrets.verifier not in said
        found = cookies_of(response)
        assert cookies.kept(request_with(found, scheme)) == login
        assert cookies.kept(request_with({})) is None
        other = {name: value[:-4] + "AAAA" for name, value in found.items()}
        assert cookies.kept(request_with(other, scheme)) is None
    foreign = Response()
    ProviderCookies("another gateway's token").keep(request_with({}), foreign, login)
    assert cookies.kept(request_with(dict.fromkeys(found, *cookies_of(foreign).values()), "https")) is None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + BEGUN_SECONDS + 1)
    assert cookies.kept(request_with(found, "https")) is None
    assert isinstance(cookies._fernet, Fernet)


def test_a_problem_of_any_length_fits_a_cookie_and_is_no_begun_login() -> None:
    cookies = ProviderCookies("a gateway's token")
    response = Response()
    problem = GpufleetError(Reason.LOGIN_FAILED, "x" * 10_000, next_step="y" * 10_000)
    cookies.tell(request_with({}), response, problem)
    found = cookies_of(response)
    assert all(len(name) + len(value) < 4_000 for name, value in found.items())
    told = cookies.problem(request_with(found))
    assert told == {"reason": "LOGIN_FAILED", "message": "x" * PROBLEM_CHARS_MAX, "next_step": "y" * PROBLEM_CHARS_MAX}
    assert cookies.kept(request_with(found)) is None


def test_nobody_is_led_elsewhere() -> None:
    for view in ("", "#/", "#/queue", "#/job/41", "#/open/chat%2Fab12%2F%3Fx%3D1"):
        assert checked_view(view) == view
    for wrong in (
        *("//evil.example", "https://evil.example", "/..//evil.example", "@evil.example", ".evil.example", "#x"),
        *("#/\r\nSet-Cookie: x=y", "#/ x", "#/<script>", "#/" + "x" * VIEW_CHARS_MAX, 7, None, ["#/"]),
    ):
        with pytest.raises(GpufleetError, match="view"):
            checked_view(wrong)
    assert redirect_uri_of(request_with({})) == "http://gpus.example/api/v1/login/callback"
    behind_tls = request_with({}, origin="https://gpus.example")
    assert redirect_uri_of(behind_tls) == "https://gpus.example/api/v1/login/callback"


def test_strangers_of_one_address_are_bounded() -> None:
    dashboard = Dashboard(Target(address=parse_address("127.0.0.1:1")), "a gateway's token")
    with pytest.raises(GpufleetError) as caught:
        for _ in range(CALLS_AT_ONCE * 1_000):
            dashboard.take_of_stranger(request_with({}))
    assert caught.value.reason is Reason.QUOTA_EXCEEDED
