"""Numbers, acknowledgements and repetitions, without a network."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node_agent.core.delivery import (
    REPORTS_KEPT_MAX,
    SEND_TIME_STEP_US,
    SEND_TIMES_MAX,
    Inbox,
    Judgement,
    Outbox,
    SendTimes,
)

SECOND_US = 1_000_000


def test_a_report_is_kept_until_its_number_is_acknowledged() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.number(0)
    assert outbox.keep("started", 0) == 2
    assert outbox.keep("exited", 0) == 3
    assert outbox.acknowledge(2) == ("started",)
    assert outbox.repetitions() == ((3, "exited"),)
    assert outbox.acknowledge(2) == ()


def test_a_repeated_report_keeps_its_number() -> None:
    outbox: Outbox[str] = Outbox()
    number = outbox.keep("started", 0)
    outbox.number(1)
    assert outbox.repetitions() == ((number, "started"),) == outbox.repetitions()


def test_an_acknowledged_inventory_does_not_cover_a_report_that_was_repeated_behind_it() -> None:
    outbox: Outbox[str] = Outbox()
    report = outbox.keep("ready", 0)
    inventory = outbox.number(SECOND_US)
    assert outbox.repetitions() == ((report, "ready"),)
    outbox.acknowledge(inventory)
    assert outbox.kept_count == 1
    outbox.acknowledge(outbox.number(2 * SECOND_US))
    assert outbox.kept_count == 0


def test_an_acknowledgement_of_what_was_never_sent_is_none() -> None:
    outbox: Outbox[str] = Outbox()
    report = outbox.keep("started", 5 * SECOND_US)
    outbox.acknowledge(report + 1)
    assert outbox.kept_count == 1
    assert outbox.when(report) == 5 * SECOND_US
    assert outbox.when(report + 1) is None


def test_kept_reports_are_bounded_and_the_oldest_go() -> None:
    outbox: Outbox[int] = Outbox()
    for each in range(REPORTS_KEPT_MAX + 5):
        outbox.keep(each, each)
    assert outbox.kept_count == REPORTS_KEPT_MAX
    assert outbox.repetitions()[0] == (6, 5)


def test_send_times_are_remembered_in_bounded_memory() -> None:
    times = SendTimes()
    for sequence in range(1, 4 * SEND_TIMES_MAX):
        times.sent(sequence, sequence * SECOND_US)
    assert times.when(1) is None
    assert times.when(4 * SEND_TIMES_MAX - 1) == (4 * SEND_TIMES_MAX - 1) * SECOND_US
    assert times.when(4 * SEND_TIMES_MAX) is None
    assert times.when(0) is None


@given(st.lists(st.integers(0, 3 * SEND_TIME_STEP_US), max_size=200))
def test_a_message_never_counts_as_sent_later_or_much_earlier_than_it_was(pauses: list[int]) -> None:
    times, now_us, sent = SendTimes(), 0, {}
    for sequence, pause in enumerate(pauses, 1):
        now_us += pause
        times.sent(sequence, now_us)
        sent[sequence] = now_us
    for sequence, at_us in sent.items():
        remembered = times.when(sequence)
        assert remembered is not None
        assert at_us - SEND_TIME_STEP_US < remembered <= at_us


def test_a_lower_term_is_refused_and_a_higher_one_remembered() -> None:
    inbox = Inbox(highest_term=7)
    assert inbox.judge(6, 1) is Judgement.STALE_TERM
    assert inbox.judge(8, 1) is Judgement.NEW
    assert inbox.highest_term == 8
    assert inbox.judge(7, 2) is Judgement.STALE_TERM


def test_a_repeated_message_is_a_duplicate_within_its_stream_only() -> None:
    inbox = Inbox()
    assert inbox.judge(1, 1) is Judgement.NEW
    assert inbox.judge(1, 1) is Judgement.DUPLICATE
    inbox.stream_opened()
    assert inbox.judge(1, 1) is Judgement.NEW


def test_only_what_was_carried_out_with_all_before_it_is_acknowledged() -> None:
    inbox = Inbox()
    for sequence in (1, 2, 3):
        inbox.judge(1, sequence)
    inbox.carried_out(inbox.receipt(1))
    inbox.carried_out(inbox.receipt(3))
    assert inbox.acked_sequence == 1
    inbox.carried_out(inbox.receipt(2))
    assert inbox.acked_sequence == 3


def test_a_command_of_an_earlier_stream_that_finishes_late_acknowledges_nothing_of_the_new_one() -> None:
    inbox = Inbox()
    inbox.judge(1, 1)
    late = inbox.receipt(1)
    inbox.stream_opened()
    inbox.judge(1, 1)
    inbox.carried_out(late)
    assert inbox.acked_sequence == 0
