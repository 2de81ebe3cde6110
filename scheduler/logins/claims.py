"""From what a provider says of somebody to a user and a role, as [oidc] has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet.config.login_settings import EVERYBODY, OidcSettings
from gpufleet.errors import GpufleetError, Reason

from ..state.access import OIDC_LOGIN, Role
from ..state.ids import UserName
from ..wire.validate import USER_NAME

SUBJECT_CHARS_MAX = 255
"""OpenID Connect has subjects no longer than this."""


@dataclass(frozen=True, slots=True)
class ProvenPerson:
    """Who has logged in; `login` is as a token keeps it."""

    user: UserName
    role: Role
    login: str


def person_of(claims: Mapping[str, Any], settings: OidcSettings) -> ProvenPerson:
    """The person whom checked claims name. Raises LOGIN_FAILED with what does not fit."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS_MAX or not subject.isprintable():
        raise refused_login("the provider's answer has no subject that could be kept")
    login = f"{OIDC_LOGIN} {settings.issuer} {subject}"
    return ProvenPerson(_user(claims, settings.user_claim), _role(claims, settings), login)


def refused_login(why: str, next_step: str = "") -> GpufleetError:
    """A login that is not taken."""
    return GpufleetError(Reason.LOGIN_FAILED, why, next_step=next_step)


def value_at(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of this name, or that at a path of names with dots between them; None where there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _user(claims: Mapping[str, Any], name: str) -> UserName:
    value = value_at(claims, name)
    if not isinstance(value, str) or not USER_NAME.fullmatch(value):
        raise refused_login(
            f"the provider's claim {name!r} is no user's name: {repr(value)[:80]}",
            "An admin chooses another claim: [oidc] user_claim of scheduler.toml, docs/logins.md",
        )
    if name == "email" and claims.get("email_verified") is not True:
        raise refused_login("the provider does not say that it has verified this e-mail address")
    return UserName(value)


def _role(claims: Mapping[str, Any], settings: OidcSettings) -> Role:
    rules = (
        (settings.admin_claim, Role.ADMIN),
        (settings.member_claim, Role.USER),
        (settings.viewer_claim, Role.VIEWER),
    )
    for rule, role in rules:
        if rule and rule != EVERYBODY and _has(claims, rule):
            return role
    if settings.member_claim == EVERYBODY:
        return Role.USER
    raise refused_login(
        "the provider knows you, and none of your groups may use this fleet",
        "Ask an admin: [oidc] admin_claim, member_claim and viewer_claim of scheduler.toml say which may.",
    )


def _has(claims: Mapping[str, Any], rule: str) -> bool:
    """Whether a claim is, or holds, the value of a rule such as `groups:gpu-admins`."""
    name, _, wanted = rule.rpartition(":")
    value = value_at(claims, name)
    return value == wanted if isinstance(value, str) else isinstance(value, list) and wanted in value
