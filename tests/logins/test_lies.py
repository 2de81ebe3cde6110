"""A provider that lies, hangs, or answers what nobody can take: each is refused in time and by name."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import flask
import pytest
from joserfc.jwk import RSAKey

from gpufleet.config.login_settings import LoginSettings, OidcSettings
from gpufleet.errors import Reason
from scheduler.logins import provider as asking
from scheduler.logins.id_tokens import AGE_S_MAX, CLOCK_LEEWAY_S
from scheduler.logins.provider import DOCUMENT_BYTES_MAX
from scheduler.logins.ways import Ways
from scheduler.state.access import Role
from tests.logins.conftest import REDIRECT, choose, code_in, new_login, refused
from tests.logins.provider import CLIENT, Provider

DISCOVERY = "/.well-known/openid-configuration"


class Login:
    """A scheduler's side of logins, in this process, against the provider."""

    def __init__(self, provider: Provider) -> None:
        self.clock = [0.0]
        self.behind_s = 0.0
        settings = OidcSettings(
            issuer=provider.issuer,
            client_id=CLIENT,
            user_claim="preferred_username",
            member_claim="groups:gpu-users",
        )
        self.ways = Ways(LoginSettings(), settings, lambda: time.time() + self.behind_s, lambda: self.clock[0])

    async def __call__(self, subject: str = "boris-2") -> Any:
        login = new_login()
        login.url = await self.ways.checked_provider().authorization_url(
            redirect_uri=REDIRECT, state=login.state, nonce=login.nonce, code_challenge=login.challenge
        )
        code = code_in(choose(login.url, subject), login)
        return await self.ways.by_code(code, REDIRECT, login.verifier, login.nonce)


@pytest.fixture
async def login(provider: Provider) -> AsyncIterator[Login]:
    yield Login(provider)


def now() -> int:
    return int(time.time())


HOUR = 3600
LIES: dict[str, tuple[dict[str, Any], str]] = {
    "issuer": ({"iss": "https://elsewhere.example.org"}, "its issuer is"),
    "issuer with a slash": ({"iss": "SLASH"}, "its issuer is"),
    "no issuer": ({"iss": None}, "its issuer is"),
    "audience": ({"aud": "another-client"}, "it is for"),
    "audiences without us": ({"aud": ["a", "b"]}, "it is for"),
    "no audience": ({"aud": None}, "it is for"),
    "an audience that is no text": ({"aud": {"gpufleet": 1}}, "it is for"),
    "several audiences": ({"aud": [CLIENT, "another-client"]}, "it was made for"),
    "another party": ({"azp": "another-client"}, "it was made for"),
    "nonce": ({"nonce": "another"}, "another login"),
    "no nonce": ({"nonce": None}, "another login"),
    "a nonce that is no text": ({"nonce": 7}, "another login"),
    "ended": ({"exp": now() - HOUR}, "it ended"),
    "no end": ({"exp": None}, "when it was made and when it ends"),
    "an end that is no number": ({"exp": "2099-01-01"}, "when it was made and when it ends"),
    "an end that is true": ({"exp": True}, "when it was made and when it ends"),
    "from the future": ({"iat": now() + HOUR, "exp": now() + 2 * HOUR}, "future"),
    "not before": ({"nbf": now() + HOUR}, "future"),
    "made long ago": ({"iat": now() - HOUR}, "it was made"),
    "no time of making": ({"iat": None}, "when it was made and when it ends"),
    "no subject": ({"sub": None}, "no subject"),
    "a subject of control characters": ({"sub": "a\x1b[2J"}, "no subject"),
    "a long subject": ({"sub": "s" * 256}, "no subject"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_id_token_that_lies_is_refused(provider: Provider, login: Login, lie: str) -> None:
    told, said = LIES[lie]
    provider.lies.claims = {name: provider.issuer + "/" if value == "SLASH" else value for name, value in told.items()}
    error = await refused(login())
    assert error.reason is Reason.LOGIN_FAILED and said in error.message
    provider.lies.claims = {}
    person = await login()
    assert (person.user, person.role) == ("boris", Role.USER), "and the truth is taken"


async def test_clocks_may_be_apart_by_the_leeway_and_no_more(provider: Provider, login: Login) -> None:
    for behind_s in (-CLOCK_LEEWAY_S + 10, CLOCK_LEEWAY_S - 10):
        login.behind_s = behind_s
        assert (await login()).user == "boris"
    login.behind_s = -CLOCK_LEEWAY_S - 30.0
    assert "future" in (await refused(login())).message
    login.behind_s = AGE_S_MAX + HOUR
    assert "it ended" in (await refused(login())).message


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS512"])
async def test_a_signature_that_everybody_can_make_is_none(provider: Provider, login: Login, algorithm: str) -> None:
    provider.lies.algorithm = algorithm
    error = await refused(login())
    assert error.reason is Reason.LOGIN_FAILED and "signature or form" in error.message


async def test_a_key_that_is_not_the_providers_is_asked_for_once_and_refused(provider: Provider, login: Login) -> None:
    assert (await login()).user == "boris"
    provider.lies.key_id = "made-up"
    assert "a key that is not the provider's" in (await refused(login())).message
    login.clock[0] += asking.PAUSE_S + 1
    assert "a key that is not the provider's" in (await refused(login())).message
    assert provider.asked.count("/keys") == 2, "once at first, and once behind the pause"
    provider.lies.key_id = ""
    provider.rotate()
    login.clock[0] += asking.PAUSE_S + 1
    assert (await login()).user == "boris", "a new key of theirs is found"


async def test_a_stolen_name_of_a_key_signs_nothing(provider: Provider, login: Login) -> None:
    assert (await login()).user == "boris"
    theirs = str(provider.key.kid)
    provider.rotate()
    provider.lies.key_id = theirs
    assert "signature or form" in (await refused(login())).message


async def test_keys_that_are_none_for_signing_are_not_taken(provider: Provider, login: Login) -> None:
    public = provider.key.as_dict(private=False)
    for wrong in ([public | {"use": "enc"}], [{"kty": "oct", "k": "c2VjcmV0", "kid": provider.key.kid}], [7], []):
        fresh = Login(provider)
        provider.lies.answers["/keys"] = lambda wrong=wrong: flask.jsonify({"keys": wrong})  # type: ignore[misc]
        assert (await refused(fresh())).reason is Reason.LOGIN_FAILED
    provider.lies.answers["/keys"] = lambda: flask.jsonify({"keys": "none"})
    assert (await refused(Login(provider)())).reason is Reason.LOGIN_PROVIDER_FAILED


ENDLESS = (b"x" * 10_000 for _ in range(10**9))
NOWHERE = ["http://login.example.org/x", "file:///etc/passwd", "javascript:alert(1)", 7, None, "//x"]
BROKEN = {
    "it is away": (lambda: flask.Response(status=503), "answers 503"),
    "no JSON": (lambda: flask.Response("<html>"), "no object of JSON"),
    "a list": (lambda: flask.jsonify([1]), "no object of JSON"),
    "deep": (lambda: flask.Response("[" * 100_000), "no object of JSON"),
    "no UTF-8": (lambda: flask.Response(b"\xff\xfe{"), "no object of JSON"),
    "long": (lambda: flask.Response(b"x" * (DOCUMENT_BYTES_MAX + 1)), "is longer than"),
    "endless": (
        lambda: flask.Response(ENDLESS, direct_passthrough=True),
        "is longer than",
    ),
    "compressed": (lambda: flask.Response(b"x", headers={"Content-Encoding": "gzip"}), "compresses"),
    "a redirect": (lambda: flask.redirect("http://127.0.0.1:9/elsewhere"), "redirects are not followed"),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_description_that_cannot_be_taken_is_told(provider: Provider, login: Login, how: str) -> None:
    answer, said = BROKEN[how]
    provider.lies.answers[DISCOVERY] = answer
    error = await refused(login())
    assert error.reason is Reason.LOGIN_PROVIDER_FAILED and said in error.message
    asked = len(provider.asked)
    assert (await refused(login())).message == error.message
    assert len(provider.asked) == asked, "it is left alone for a while"
    provider.lies.answers.clear()
    login.clock[0] += asking.PAUSE_S + 1
    assert (await login()).user == "boris", "and asked again"


@pytest.mark.parametrize("path", ["/token", "/keys"])
@pytest.mark.parametrize("how", ["it is away", "no JSON", "long", "a redirect"])
async def test_other_answers_that_cannot_be_taken_are_told(
    provider: Provider, login: Login, path: str, how: str
) -> None:
    provider.lies.answers[path] = BROKEN[how][0]
    assert (await refused(login())).reason is Reason.LOGIN_PROVIDER_FAILED
    provider.lies.answers.clear()
    assert (await login()).user == "boris"


@pytest.mark.parametrize("path", [DISCOVERY, "/token", "/keys"])
async def test_a_provider_that_hangs_is_waited_for_so_long_and_no_longer(
    provider: Provider, login: Login, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S_MAX", 0.2)
    provider.lies.answers[path] = provider.stall
    error = await refused(login())
    assert error.reason is Reason.LOGIN_PROVIDER_FAILED and "within 0.2 s" in error.message
    monkeypatch.undo()


async def test_a_provider_that_nobody_serves_is_told(login: Login) -> None:
    ways = Ways(LoginSettings(), OidcSettings(issuer="http://127.0.0.1:9", client_id=CLIENT), time.time, lambda: 0.0)
    error = await refused(
        ways.checked_provider().authorization_url(redirect_uri=REDIRECT, state="s", nonce="n", code_challenge="c")
    )
    assert error.reason is Reason.LOGIN_PROVIDER_FAILED and "cannot be asked" in error.message


@pytest.mark.parametrize("end", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
@pytest.mark.parametrize(
    "url", ["http://login.example.org/x", "file:///etc/passwd", "javascript:alert(1)", 7, None, "//x"]
)
async def test_endpoints_that_are_nowhere_to_go_are_refused(
    provider: Provider, login: Login, end: str, url: object
) -> None:
    provider.lies.endpoints[end] = url
    error = await refused(login())
    assert error.reason is Reason.LOGIN_PROVIDER_FAILED and end in error.message


async def test_a_description_of_another_issuer_is_refused(provider: Provider, login: Login) -> None:
    provider.lies.issuer = "https://elsewhere.example.org"
    assert "says to be 'https://elsewhere.example.org'" in (await refused(login())).message


async def test_tokens_that_are_none_are_refused(provider: Provider, login: Login) -> None:
    for token in ("", "a.b.c", "x" * 70_000, "e30.e30.", "☃", "a" * 100, ".."):
        provider.lies.answers["/token"] = lambda token=token: flask.jsonify({"id_token": token})  # type: ignore[misc]
        assert (await refused(login())).reason is Reason.LOGIN_FAILED, token[:20]
    provider.lies.answers["/token"] = lambda: flask.jsonify({"id_token": 7})
    assert (await refused(login())).reason is Reason.LOGIN_PROVIDER_FAILED


async def test_a_provider_that_signs_with_rsa_is_believed(provider: Provider, login: Login) -> None:
    provider.key = RSAKey.generate_key(2048, {"use": "sig", "kid": "rsa"})
    provider.lies.algorithm = "RS256"
    assert (await login()).user == "boris"
