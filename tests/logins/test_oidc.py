"""Logins with an OpenID Connect provider over HTTP: its code, PKCE, and who somebody is then."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from gpufleet.v1 import scheduler_pb2

from gpufleet.config.login_settings import OidcSettings, login_conflicts
from gpufleet.errors import Reason
from scheduler.logins.provider import Provider as Asking
from tests.logins.conftest import REDIRECT, choose, code_in, house, new_login, oidc, refused
from tests.logins.provider import CLIENT, Client, Provider

pb = scheduler_pb2


async def test_people_log_in_by_a_code_and_their_groups_say_what_they_may(tmp_path: Path, provider: Provider) -> None:
    async with house(tmp_path, oidc=oidc(provider, viewer_claim="sub:guest-3", name="Our login")) as at:
        described = await at.stub.DescribeLogin(pb.DescribeLoginRequest())
        assert not described.has_passwords
        told = described.provider
        assert (told.name, told.issuer, told.client_id) == ("Our login", provider.issuer, CLIENT)
        login = await at.begin()
        said = parse_qs(urlsplit(login.url).query)
        assert (said["code_challenge_method"], said["scope"]) == (["S256"], ["openid profile email"])
        for subject, user, role in (
            ("ana-1", "ana", "admin"),
            ("boris-2", "boris", "user"),
            ("guest-3", "guest", "viewer"),
        ):
            answer = await at.through(subject)
            info = await at.info(answer.secret)
            assert (info.user, info.role) == (user, role)
            assert answer.token.login == f"oidc {provider.issuer} {subject}"
        assert provider.asked.count("/.well-known/openid-configuration") == 1, "it is remembered"
        assert provider.asked.count("/keys") == 1


async def test_a_code_opens_one_login_and_only_that_of_who_began_it(tmp_path: Path, provider: Provider) -> None:
    provider.lies.takes_codes_again = True
    async with house(tmp_path, oidc=oidc(provider)) as at:
        login = await at.begin()
        code = code_in(choose(login.url, "ana-1"), login)
        thief = new_login()
        error = await refused(at.end(thief, code))
        assert error.reason is Reason.LOGIN_FAILED and "invalid_grant" in error.message, "PKCE"
        thief = new_login()
        thief.verifier = login.verifier
        assert "another login" in (await refused(at.end(thief, code))).message, "the nonce"
        elsewhere = await refused(at.end(login, code, "http://127.0.0.1:2/callback"))
        assert elsewhere.reason is Reason.LOGIN_FAILED
        again = await at.begin()
        secret = (await at.end(again, code_in(choose(again.url, "ana-1"), again))).secret
        assert (await at.info(secret)).user == "ana"
        assert "ended before" in (await refused(at.end(again, code))).message, "the same login again"
        assert (await refused(at.end(new_login(), "made-up"))).reason is Reason.LOGIN_FAILED


async def test_a_new_key_of_the_provider_is_asked_for_when_it_is_used(tmp_path: Path, provider: Provider) -> None:
    clock = [0.0]
    asking = Asking(OidcSettings(issuer=provider.issuer, client_id=CLIENT), monotonic=lambda: clock[0])
    first = await asking.keys()
    provider.rotate()
    assert await asking.keys() == first and await asking.keys(newer=True) == first, "not asked again at once"
    clock[0] += 6.0
    assert await asking.keys() == first
    newer = await asking.keys(newer=True)
    assert newer["keys"][0]["kid"] == provider.key.kid
    assert provider.asked.count("/keys") == 2


async def test_a_client_with_a_secret_proves_itself_with_it(tmp_path: Path, provider: Provider) -> None:
    secret = tmp_path / "client-secret"
    secret.touch(mode=0o600)
    secret.write_text("s3cr/t+:\n")
    provider.client = Client(secret="s3cr/t+:")
    for methods in (["client_secret_basic"], ["client_secret_post"]):
        provider.lies.endpoints["token_endpoint_auth_methods_supported"] = methods
        folder = tmp_path / methods[0]
        folder.mkdir()
        async with house(folder, oidc=oidc(provider, client_secret_file=str(secret))) as at:
            assert (await at.through("boris-2")).token.user == "boris"
    assert "s3cr" not in at.fleet.scheduler.log_text()
    provider.client = Client(secret="another")
    provider.lies.endpoints.clear()
    folder = tmp_path / "wrong"
    folder.mkdir()
    async with house(folder, oidc=oidc(provider, client_secret_file=str(secret))) as at:
        error = await refused(at.through("boris-2"))
        assert error.reason is Reason.LOGIN_FAILED and "invalid_client" in error.message


async def test_a_name_stays_whose_it_was_until_an_admin_lets_it_go(tmp_path: Path, provider: Provider) -> None:
    async with house(tmp_path, oidc=oidc(provider)) as at:
        first = await at.through("boris-2")
        provider.people["mallory-9"] = {"preferred_username": "boris", "groups": ["gpu-users"]}
        error = await refused(at.through("mallory-9"))
        assert error.reason is Reason.LOGIN_NAME_TAKEN and first.token.id in error.next_step
        async with at.fleet.client(first.secret) as boris:
            await boris.stub.Logout(pb.LogoutRequest())
        assert (await refused(at.through("mallory-9"))).reason is Reason.LOGIN_NAME_TAKEN, "logged out, and still his"
        last = await at.through("boris-2")
        async with at.fleet.client() as admin:
            await admin.stub.RevokeToken(pb.RevokeTokenRequest(id=last.token.id))
        assert (await at.through("mallory-9")).token.user == "boris"
        provider.people["root-1"] = {"preferred_username": "gateway", "groups": ["gpu-users"]}
        assert (await refused(at.through("root-1"))).reason is Reason.LOGIN_NAME_TAKEN


async def test_names_and_groups_that_do_not_fit_are_refused(tmp_path: Path, provider: Provider) -> None:
    strange = {
        "control": "ana\x1b[2J",
        "empty": "",
        "long": "a" * 64,
        "space": "an a",
        "number": 7,
        "none": None,
        "list": ["ana"],
        "line": "ana\n",
        "lookalike": "аna",
    }
    for subject, name in strange.items():
        provider.people[subject] = {"preferred_username": name, "groups": ["gpu-users"]}
    provider.people["outsider"] = {"preferred_username": "olga", "groups": ["others", "xgpu-users"]}
    provider.people["liar"] = {"preferred_username": "lea", "groups": {"gpu-admins": True}}
    async with house(tmp_path, oidc=oidc(provider)) as at:
        for subject in strange:
            error = await refused(at.through(subject))
            assert error.reason is Reason.LOGIN_FAILED and "is no user's name" in error.message, subject
            assert error.message.isprintable()
        for subject in ("outsider", "liar"):
            error = await refused(at.through(subject))
            assert error.reason is Reason.LOGIN_FAILED and "none of your groups" in error.message
        assert not [each for each in await at.tokens() if each.login]


async def test_another_issuer_in_the_settings_ends_the_logins_of_the_one_before(
    tmp_path: Path, provider: Provider
) -> None:
    async with house(tmp_path, oidc=oidc(provider)) as at:
        secret = (await at.through("ana-1")).secret
        await at.fleet.scheduler.stop()
        (tmp_path / "scheduler.toml").write_text("")
        await at.fleet.scheduler.start()
        assert (await refused(at.info(secret))).reason is Reason.TOKEN_REVOKED, "from the first call on"


async def test_what_begins_a_login_is_checked(tmp_path: Path, provider: Provider) -> None:
    async with house(tmp_path, oidc=oidc(provider)) as at:
        for redirect in (
            "",
            "javascript:alert(1)",
            "http://",
            "http://a b/",
            "https://u@x/",
            "http://x/#y",
            "x" * 3000,
        ):
            error = await refused(at.begin(redirect=redirect))
            assert error.reason is Reason.INVALID_ARGUMENT and "redirect_uri" in error.message, redirect
        for field in ("state", "nonce", "code_challenge"):
            good = new_login()
            values = {"state": good.state, "nonce": good.nonce, "code_challenge": good.challenge} | {field: "short"}
            request = pb.BeginLoginRequest(redirect_uri=REDIRECT, **values)
            error = await refused(at._said(at.stub.BeginLogin, request))
            assert error.reason is Reason.INVALID_ARGUMENT and field in error.message
        assert provider.asked == [], "nothing of it went to the provider"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"issuer": "", "client_id": "x"}, "oidc.issuer"),
        ({"client_id": ""}, "oidc.client_id"),
        ({"issuer": "http://login.example.org"}, "oidc.issuer"),
        ({"issuer": "https://u:p@login.example.org"}, "oidc.issuer"),
        ({"issuer": "https://login.example.org?x"}, "oidc.issuer"),
        ({"issuer": "ldap://login.example.org"}, "oidc.issuer"),
        ({"issuer": "https://["}, "oidc.issuer"),
        ({"member_claim": ""}, "oidc.member_claim"),
        ({"member_claim": "gpu-users"}, "oidc.member_claim"),
        ({"admin_claim": "*"}, "oidc.admin_claim"),
        ({"scopes": ("profile",)}, "oidc.scopes"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(settings: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {
        "issuer": "https://login.example.org",
        "client_id": "gpufleet",
        "member_claim": "groups:gpu",
    }
    assert list(login_conflicts(OidcSettings(**good))) == []
    assert [name for name, _ in login_conflicts(OidcSettings(**(good | settings)))] == [field]
