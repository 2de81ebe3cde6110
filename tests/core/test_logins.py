"""The core of logins: whom a name belongs to, which tokens of logins are kept, and what ends them."""

from __future__ import annotations

import pytest

from scheduler.core.access import LOGINS_PER_USER_MAX
from scheduler.core.story import sentence, tell
from scheduler.state.access import Role, Token, Tokens
from scheduler.state.events import LoginProven, LogoutRequested, RevokeRequested, TokenRequested
from scheduler.state.ids import TokenId, UserName
from scheduler.state.records import LoginEnded, LoginForgotten, TokenCreated
from scheduler.state.replies import Done, Refused
from scheduler.state.units import HOUR, Instant, Span, after
from tests.core.fleet import Fleet, Turn

ANA, BORIS, ADMIN = UserName("ana"), UserName("boris"), UserName("root")


def token(fleet: Fleet, id: str, user: UserName = ANA, login: str = "password 1", role: Role = Role.USER) -> Token:
    ends = after(fleet.now, Span(HOUR)) if login else None
    return Token(
        id=TokenId(id),
        user=user,
        role=role,
        digest=f"digest of {id}",
        created_at=fleet.now,
        expires_at=ends,
        login=login,
    )


def log_in(fleet: Fleet, id: str, user: UserName = ANA, login: str = "password 1", role: Role = Role.USER) -> Turn:
    return fleet.take_up(LoginProven(at=fleet.now, token=token(fleet, id, user, login, role)))


def test_a_login_is_a_token_and_a_logout_ends_it() -> None:
    fleet = Fleet()
    turn = log_in(fleet, "a")
    made = token(fleet, "a")
    assert turn.records == (TokenCreated(at=fleet.now, token=made, by=ANA),)
    assert sentence(turn.records[0]) == "ana logged in as user with token a."
    list(fleet.advance(Span(1000)))
    end = LogoutRequested(at=fleet.now, by=ANA, token=TokenId("a"))
    out = fleet.take_up(end)
    assert out.records == (LoginEnded(at=fleet.now, token=TokenId("a"), by=ANA),)
    assert sentence(out.records[0]) == "ana logged out; token a has ended."
    assert not fleet.state.durable.tokens[TokenId("a")].is_live(fleet.now)
    assert fleet.take_up(end).records == (), "it has ended"


def test_a_name_is_kept_by_its_newest_login_and_older_ones_are_forgotten() -> None:
    fleet = Fleet()
    for id in ("a", "b"):
        log_in(fleet, id)
        log_in(fleet, f"{id}-boris", BORIS)
        list(fleet.advance(Span(2 * HOUR)))
    turn = log_in(fleet, "c")
    forgotten = [each.token for each in turn.records if isinstance(each, LoginForgotten)]
    assert forgotten == ["b"], "of boris, who is away, the newest is kept"
    assert tell(turn.records[0]).startswith("LoginForgotten ")
    assert sentence(turn.records[0]).endswith("of a login that has ended, is kept no longer.")
    assert set(fleet.state.durable.tokens) == {"b-boris", "c"}
    list(fleet.advance(Span(2 * HOUR)))
    other = log_in(fleet, "m", BORIS, "oidc https://login.example.org mallory")
    assert isinstance(other.reply, Refused) and other.reply.reason == "LOGIN_NAME_TAKEN"
    fleet.take_up(RevokeRequested(at=fleet.now, by=ADMIN, token=TokenId("b-boris")))
    assert isinstance(log_in(fleet, "m", BORIS, "oidc https://login.example.org mallory").reply, Done)
    assert isinstance(log_in(fleet, "n", BORIS, "oidc https://login.example.org boris").reply, Refused)


def test_one_more_login_than_may_hold_ends_the_oldest() -> None:
    fleet = Fleet()
    for number in range(LOGINS_PER_USER_MAX):
        log_in(fleet, f"t{number:02}")
        list(fleet.advance(Span(1000)))
    turn = log_in(fleet, "last")
    assert turn.records[0] == LoginForgotten(at=fleet.now, token=TokenId("t00"))
    assert len(fleet.state.durable.tokens) == LOGINS_PER_USER_MAX


@pytest.mark.parametrize(
    ("has", "wants", "is_refused"),
    [
        (Role.ADMIN, Role.USER, True),
        (Role.USER, Role.ADMIN, True),
        (Role.GATEWAY, Role.USER, True),
        (Role.USER, Role.USER, False),
        (Role.VIEWER, Role.USER, False),
        (Role.WORKER, Role.USER, False),
    ],
)
def test_a_token_of_another_role_keeps_its_users_name(has: Role, wants: Role, is_refused: bool) -> None:
    fleet = Fleet()
    fleet.take_up(TokenRequested(at=fleet.now, by=ADMIN, token=token(fleet, "made", login="", role=has)))
    turn = log_in(fleet, "a", role=wants)
    assert isinstance(turn.reply, Refused) is is_refused
    if is_refused:
        assert turn.records == ()
        fleet.take_up(RevokeRequested(at=fleet.now, by=ADMIN, token=TokenId("made")))
        assert isinstance(log_in(fleet, "a", role=wants).reply, Done)


def test_a_token_that_an_admin_made_is_no_login_to_end() -> None:
    fleet = Fleet()
    fleet.take_up(TokenRequested(at=fleet.now, by=ADMIN, token=token(fleet, "made", login="")))
    reply = fleet.take_up(LogoutRequested(at=fleet.now, by=ANA, token=TokenId("made"))).reply
    assert isinstance(reply, Refused) and reply.reason == "NOT_A_LOGIN"


def test_tokens_are_found_by_their_digests_and_those_before() -> None:
    tokens = Tokens()
    old = Token(id=TokenId("a"), user=ANA, role=Role.USER, digest="1", created_at=Instant(0))
    tokens[old.id] = old
    assert tokens.of_digest("1") is old and tokens.of_digest("2") is None
    new = Token(id=old.id, user=ANA, role=Role.USER, digest="2", former_digest="1", created_at=Instant(0))
    tokens[old.id] = new
    assert tokens.of_digest("1") is new and tokens.of_digest("2") is new
    tokens.drop(old.id)
    tokens.drop(old.id)
    assert tokens.of_digest("1") is None and tokens.of_digest("2") is None and not tokens
