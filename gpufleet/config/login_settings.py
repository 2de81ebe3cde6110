"""Settings of how people log in beside tokens: `[login]` and `[oidc]` of scheduler.toml, see docs/logins.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from gpufleet.config.kinds import DURATION, PATH, TEXT, TEXTS
from gpufleet.config.settings import setting
from gpufleet.net.addresses import is_loopback

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

EVERYBODY = "*"
"""Of `member_claim`: everybody whom the provider knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """Logins by password, and how long any login holds."""

    users_file: Path | None = setting(
        None,
        "Users with passwords, of mode 0600; gpuctl config user writes it, and it is read again when it changes.",
        PATH,
        default_text="nobody logs in by a password",
    )
    valid_for: timedelta = setting(12 * HOUR, "A login holds for so long.", DURATION, low=MINUTE, high=30 * DAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """The OpenID Connect provider that people log in with."""

    issuer: str = setting(
        "",
        "The provider's issuer, an https URL; http is for one on this machine.",
        TEXT,
        default_text="no provider",
    )
    client_id: str = setting("", "By what the provider knows this fleet.", TEXT, default_text="none")
    client_secret_file: Path | None = setting(
        None,
        "The secret that the provider gave for it, of mode 0600.",
        PATH,
        default_text="a public client: PKCE alone",
    )
    name: str = setting("single sign-on", 'What people call it: "Log in with NAME".', TEXT)
    scopes: tuple[str, ...] = setting(("openid", "profile", "email"), "What the provider is asked for.", TEXTS)
    user_claim: str = setting(
        "sub",
        "The claim of the ID token that is the user's name. Only sub is never given to another person: see "
        "docs/logins.md before you choose another.",
        TEXT,
    )
    admin_claim: str = setting(
        "", "Who is an admin: CLAIM:VALUE, such as groups:gpu-admins.", TEXT, default_text="nobody"
    )
    member_claim: str = setting(
        "",
        'Who is a user, in the same form; "*" is everybody whom the provider knows.',
        TEXT,
        default_text="nobody",
    )
    viewer_claim: str = setting("", "Who only looks, in the same form.", TEXT, default_text="nobody")
    ca_file: Path | None = setting(
        None, "Certificates that vouch for the provider, PEM.", PATH, default_text="the system's authorities"
    )


def login_conflicts(oidc: OidcSettings) -> Iterator[tuple[str, str]]:
    """Values of [oidc] that do not fit together."""
    if not oidc.issuer:
        if oidc.client_id:
            yield "oidc.issuer", "a client_id goes with the issuer that gave it"
        return
    if not oidc.client_id:
        yield "oidc.client_id", "an issuer goes with the client_id that it knows this fleet by"
    if (why := wrong_provider_url(oidc.issuer)) or any(mark in oidc.issuer for mark in "?# "):
        yield "oidc.issuer", why or "an issuer has neither a query nor a fragment"
    if "openid" not in oidc.scopes:
        yield "oidc.scopes", "without openid there is no ID token"
    rules = {key: getattr(oidc, key) for key in ("admin_claim", "member_claim", "viewer_claim")}
    if not any(rules.values()):
        yield "oidc.member_claim", 'say who may log in: CLAIM:VALUE, or "*" for everybody whom the provider knows'
    for key, rule in rules.items():
        if rule and not all(rule.rpartition(":")[::2]) and (key, rule) != ("member_claim", EVERYBODY):
            yield f"oidc.{key}", "write it as CLAIM:VALUE, such as groups:gpu-admins"


def wrong_provider_url(url: str) -> str:
    """Why nothing is asked at this URL; empty where it may be."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "this is no URL"
    if parts.scheme not in ("http", "https") or not host:
        return "this is no https URL"
    if parts.username is not None or parts.password is not None:
        return "a URL with a user in it is not taken"
    if parts.scheme == "http" and not is_loopback(host):
        return "what a provider says is believed over https alone; http is for one on this machine"
    return ""
