"""Tokens: made and revoked, of logins, too; their secrets never come here."""

from ..state.access import OIDC_LOGIN, Role, Token, same_person
from ..state.events import LoginProven, LogoutRequested, RevokeRequested, TokenRequested
from ..state.ids import UserName
from ..state.records import LoginEnded, LoginForgotten, Record, TokenCreated, TokenRevoked
from ..state.state import State
from ..state.units import Instant
from .decision import NOTHING, Decision, refused

LOGINS_PER_USER_MAX = 20
"""Logins of one user that hold at once; one more ends the oldest of them."""

LOGIN_USERS_MAX = 10_000
"""Users that log in; of each the newest login is kept, so that the name stays theirs."""

OF_ONE_USER = frozenset({Role.ADMIN, Role.USER, Role.AGENT, Role.GATEWAY})
"""A user who has a token of one of these roles logs in with that role or not at all. A worker's or a node's is made for
its user beside their own, and a viewer's owns nothing."""


def on_token_requested(state: State, event: TokenRequested) -> Decision:
    """Make a token."""
    if event.token.id in state.durable.tokens:
        return refused("TOKEN_NAME_TAKEN", f"a token {event.token.id!r} exists", field="id")
    return Decision(records=(TokenCreated(at=event.at, token=event.token, by=event.by),))


def on_revoke_requested(state: State, event: RevokeRequested) -> Decision:
    """Make a token useless; a revoked one stays as it is."""
    token = state.durable.tokens.get(event.token)
    if token is None:
        return refused(
            "TOKEN_NOT_FOUND",
            f"no token has the id {event.token!r}",
            field="id",
            next_step="list them with: gpuctl token list",
        )
    if token.revoked_at is not None:
        return NOTHING
    return Decision(records=(TokenRevoked(at=event.at, token=event.token, by=event.by),))


def on_login_proven(state: State, event: LoginProven) -> Decision:
    """Give somebody who has logged in their token, unless the name is another person's; forget logins that ended."""
    new = event.token
    if new.id in state.durable.tokens:
        return refused("TOKEN_NAME_TAKEN", f"a token {new.id!r} exists", field="id")
    others = [token for token in state.durable.tokens.values() if token.user == new.user]
    taken = _taken_by(new, others, event.at)
    if taken is not None:
        return taken
    last = _last_logins(state)
    if new.user not in last and len(last) >= LOGIN_USERS_MAX:
        return refused("QUOTA_EXCEEDED", f"{LOGIN_USERS_MAX:,} users have logged in, and no more may")
    kept = {token.id for user, token in last.items() if user != new.user}
    ended: list[Record] = [
        LoginForgotten(at=event.at, token=token.id)
        for token in state.durable.tokens.values()
        if token.login and not token.is_live(event.at) and token.id not in kept
    ]
    live = sorted((each for each in others if each.login and each.is_live(event.at)), key=_age)
    too_many = live[: max(0, len(live) + 1 - LOGINS_PER_USER_MAX)]
    ended += [LoginForgotten(at=event.at, token=token.id) for token in too_many]
    return Decision(records=(*ended, TokenCreated(at=event.at, token=new, by=new.user)))


def on_logout_requested(state: State, event: LogoutRequested) -> Decision:
    """End a login; one that has ended stays as it is."""
    token = state.durable.tokens.get(event.token)
    if token is None or not token.login:
        return refused(
            "NOT_A_LOGIN",
            "this token was made by an admin, and not by a login",
            next_step="an admin makes it useless with: gpuctl token revoke ID",
        )
    if not token.is_live(event.at):
        return NOTHING
    return Decision(records=(LoginEnded(at=event.at, token=event.token, by=event.by),))


def _taken_by(new: Token, others: list[Token], now: Instant) -> Decision | None:
    """Why this person may not have this user's name."""
    for token in others:
        if not token.login and token.is_live(now) and token.role in OF_ONE_USER and token.role is not new.role:
            return refused(
                "LOGIN_NAME_TAKEN",
                f"user {new.user!r} has a token of role {token.role.value}, and would log in as {new.role.value}",
                next_step="An admin gives the login that role, or makes the token useless: gpuctl token revoke ID",
            )
    logins = [token for token in others if token.login and token.revoked_at is None]
    newest = max(logins, key=_age, default=None)
    if newest is None or same_person(newest.login, new.login):
        return None
    way = "another person of a provider" if newest.login.startswith(OIDC_LOGIN) else "a user with a password"
    return refused(
        "LOGIN_NAME_TAKEN",
        f"user {new.user!r} last logged in as {way}",
        next_step=f"Where it is the same person, an admin lets the name go: gpuctl token revoke {newest.id}",
    )


def _last_logins(state: State) -> dict[UserName, Token]:
    """The newest login of each user that was not revoked: whom the name belongs to."""
    last: dict[UserName, Token] = {}
    for token in state.durable.tokens.values():
        if token.login and token.revoked_at is None:
            known = last.get(token.user)
            last[token.user] = token if known is None else max(known, token, key=_age)
    return last


def _age(token: Token) -> tuple[Instant, str]:
    return token.created_at, token.id
