"""Secrets in the core: who has how many, and what the story keeps of one."""

from __future__ import annotations

from scheduler.core.decide import step
from scheduler.core.secrets import SECRETS_PER_USER_MAX
from scheduler.state.access import Secret
from scheduler.state.events import SecretRemovalRequested, SecretSubmitted
from scheduler.state.ids import SecretName, UserName
from scheduler.state.records import SecretRemoved, SecretSet, without_sealed_value
from scheduler.state.replies import Refused, SecretChanged
from scheduler.state.state import State
from scheduler.state.units import Instant

ADA, BOB, NOW = UserName("ada"), UserName("bob"), Instant(1)


def of(user: UserName, name: str, sealed: bytes = b"sealed") -> SecretSubmitted:
    secret = Secret(user=user, name=SecretName(name), set_at=NOW, set_by=user, sealed=sealed)
    return SecretSubmitted(at=NOW, secret=secret)


def test_a_secret_replaces_that_of_its_name_and_of_nobody_else() -> None:
    state = State()
    assert step(state, of(ADA, "key", b"1")).reply == SecretChanged(secret=of(ADA, "key", b"1").secret, is_new=True)
    step(state, of(BOB, "key", b"2"))
    again = step(state, of(ADA, "key", b"3"))
    assert isinstance(again.reply, SecretChanged) and not again.reply.is_new
    assert {key: each.sealed for key, each in state.durable.secrets.items()} == {
        (ADA, "key"): b"3",
        (BOB, "key"): b"2",
    }


def test_the_story_of_a_secret_has_nothing_that_was_sealed() -> None:
    (record,) = step(State(), of(ADA, "key")).records
    assert isinstance(record, SecretSet) and record.secret.sealed
    kept = without_sealed_value(record)
    assert isinstance(kept, SecretSet) and not kept.secret.sealed
    assert (kept.secret.name, kept.by) == ("key", ADA)


def test_a_user_has_so_many_and_may_still_replace_one() -> None:
    state = State()
    for number in range(SECRETS_PER_USER_MAX):
        step(state, of(ADA, f"key-{number}"))
    refused = step(state, of(ADA, "one-more"))
    assert isinstance(refused.reply, Refused) and refused.reply.reason == "QUOTA_EXCEEDED"
    assert not refused.records
    assert isinstance(step(state, of(ADA, "key-0")).reply, SecretChanged)
    assert isinstance(step(state, of(BOB, "his")).reply, SecretChanged)


def test_a_removed_secret_is_gone_and_cannot_be_removed_again() -> None:
    state = State()
    step(state, of(ADA, "key"))
    removal = SecretRemovalRequested(at=NOW, by=BOB, user=ADA, name=SecretName("key"))
    assert step(state, removal).records == (SecretRemoved(at=NOW, user=ADA, name=SecretName("key"), by=BOB),)
    assert not state.durable.secrets
    again = step(state, removal).reply
    assert isinstance(again, Refused) and again.reason == "SECRET_NOT_FOUND"
