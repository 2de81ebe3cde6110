"""Place keys and turn tickets: what is signed is read, and nothing else is."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.security.tickets import (
    CLOCK_SLACK_S,
    PLACE_KEY_PREFIX,
    TICKET_CHARS_MAX,
    TICKET_LIFE_S,
    TICKET_PREFIX,
    Refusal,
    TurnTicket,
    hash_place_key,
    make_place_key,
    make_secret,
    place_key_matches,
    read_ticket,
    sign_ticket,
    ticket_for,
)

NOW_S = 1_800_000_000.0
SECRET = b"s" * 32
WORDS = st.text(max_size=40)
EPOCHS = st.integers(0, 2**64 - 1)


def ticket(**changes: object) -> TurnTicket:
    usual = ticket_for("s1", 3, worker_start="w1", identity="a" * 64, now_s=NOW_S)
    return replace(usual, **changes)  # type: ignore[arg-type]


def read(text: str, *, secret: bytes = SECRET, start: str = "w1", now_s: float = NOW_S) -> TurnTicket | Refusal:
    return read_ticket(text, secret, worker_start=start, now_s=now_s)


@given(WORDS, EPOCHS, WORDS, WORDS)
@example("", 0, "", "")
@example("\ud800", 1, "é" * 40, "\0")
def test_what_was_signed_is_read_as_it_was(session: str, epoch: int, start: str, identity: str) -> None:
    given_ticket = ticket_for(session, epoch, worker_start=start, identity=identity, now_s=NOW_S)
    text = sign_ticket(given_ticket, SECRET)
    assert len(text) <= TICKET_CHARS_MAX and text.startswith(TICKET_PREFIX)
    assert read(text, start=start) == given_ticket


@given(st.data())
def test_no_changed_letter_is_taken(data: st.DataObject) -> None:
    text = sign_ticket(ticket(), SECRET)
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_=+ "))
    changed = text[:at] + letter + text[at + 1 :]
    found = read(changed)
    # The last letter may carry bits that stand for nothing; then the same bytes are read.
    assert isinstance(found, Refusal) or found == ticket()


@given(
    st.text(max_size=200) | st.binary(max_size=300).map(lambda b: TICKET_PREFIX + base64.urlsafe_b64encode(b).decode())
)
def test_anything_else_is_refused_and_nothing_is_raised(text: str) -> None:
    assert read(text) in (Refusal.MALFORMED, Refusal.FORGED)


def test_texts_of_other_lengths_never_have_the_same_bytes() -> None:
    one, other = ticket(session="ab", worker_start="c"), ticket(session="a", worker_start="bc")
    assert sign_ticket(one, SECRET) != sign_ticket(other, SECRET)


def test_a_ticket_of_another_secret_or_start_opens_nothing() -> None:
    text = sign_ticket(ticket(), SECRET)
    assert read(text, secret=make_secret()) is Refusal.FORGED
    assert read(text, start="w2") is Refusal.OTHER_WORKER


@given(st.floats(0, 3 * TICKET_LIFE_S))
def test_a_ticket_opens_from_when_it_is_made_until_it_expires(after_s: float) -> None:
    found = read(sign_ticket(ticket(), SECRET), now_s=NOW_S + after_s)
    assert (found == ticket()) == (after_s < TICKET_LIFE_S)
    if after_s >= TICKET_LIFE_S:
        assert found is Refusal.EXPIRED


def test_a_ticket_that_would_live_longer_than_tickets_do_is_refused() -> None:
    text = sign_ticket(ticket(), SECRET)
    assert read(text, now_s=NOW_S - CLOCK_SLACK_S + 0.01) == ticket()
    assert read(text, now_s=NOW_S - CLOCK_SLACK_S - 0.01) is Refusal.TOO_EARLY


def test_what_cannot_be_written_is_a_programmers_error() -> None:
    for wrong in (ticket(epoch=-1), ticket(expires_ms=2**64), ticket(session="x" * 201)):
        with pytest.raises(ValueError, match=r"64 bits|longer"):
            sign_ticket(wrong, SECRET)


@given(WORDS, WORDS)
def test_a_place_key_is_of_one_identity(identity: str, other: str) -> None:
    key = make_place_key()
    stored = hash_place_key(key, identity)
    assert place_key_matches(key, identity, stored)
    assert place_key_matches(key, other, stored) == (identity == other)
    assert not place_key_matches(make_place_key(), identity, stored)
    assert key not in stored


def test_place_keys_have_128_random_bits() -> None:
    keys = {make_place_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(bytes.fromhex(key.removeprefix(PLACE_KEY_PREFIX))) == 16 for key in keys)
    assert not place_key_matches("x" * 10_000, "i", hash_place_key("x", "i"))
