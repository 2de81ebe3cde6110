"""The other decisions of agent and keeper: the ending, offsets, launches, verdicts and old records."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.runs import ExitCode, ExitSignal, StopCause
from node_agent.core.adoption import (
    LaunchDecision,
    Obedience,
    RecordFate,
    Verdict,
    decide_launch,
    fate_of_record,
    is_blameless,
    loss_of,
    obey,
)
from node_agent.core.attempt import DRAIN_US, Ending, Finish, Wait, next_step_of_ending, observe
from node_agent.core.offsets import (
    CHUNK_BYTES,
    SPOOL_BYTES,
    SPOOL_BYTES_MIN,
    OutputPiece,
    Segment,
    Upload,
    connection_lost,
    next_piece,
    piece_sent,
    piece_synced,
    room_bytes,
    segment_bytes_for,
    segments_to_delete,
)
from node_agent.core.outcome import AttemptEnd, AttemptPhase, LossReason, Offsets, Shortage


def ending(*, is_open: bool = False, is_full: bool = False, remain: bool = False, since_us: int = 0) -> Ending:
    return Ending(drain_since_us=since_us, output_is_open=is_open, spool_is_full=is_full, processes_remain=remain)


def test_an_attempt_is_over_when_its_output_has_ended_and_nothing_of_it_lives() -> None:
    assert next_step_of_ending(ending(), 0) == Finish()


@pytest.mark.parametrize(("is_open", "remain"), [(True, False), (False, True), (True, True)])
def test_an_open_pipe_or_a_living_process_is_waited_for_two_seconds(is_open: bool, remain: bool) -> None:
    left = ending(is_open=is_open, remain=remain, since_us=7)
    assert next_step_of_ending(left, 7) == Wait(7 + DRAIN_US)
    assert next_step_of_ending(left, 7 + DRAIN_US) == Finish()


def test_while_the_spool_is_full_nothing_is_cut_and_the_drain_begins_when_it_is_not() -> None:
    full = ending(is_open=True, is_full=True)
    assert next_step_of_ending(full, 10**15) == Wait(None)
    read_on = observe(full, output_is_open=True, spool_is_full=False, processes_remain=False, now_us=10**15)
    assert next_step_of_ending(read_on, 10**15) == Wait(10**15 + DRAIN_US)


def test_a_drain_that_is_under_way_is_not_prolonged_by_looking_at_it() -> None:
    begun = ending(is_open=True, since_us=7)
    seen = observe(begun, output_is_open=True, spool_is_full=False, processes_remain=False, now_us=10**6)
    assert next_step_of_ending(seen, 10**6) == Wait(7 + DRAIN_US)


# --- offsets


def test_only_segments_wholly_below_the_synced_offset_are_deleted() -> None:
    segments = [Segment(0, 10), Segment(10, 20), Segment(20, 25)]
    assert segments_to_delete(segments, 9) == ()
    assert segments_to_delete(segments, 19) == (Segment(0, 10),)
    assert segments_to_delete(segments, 25) == (Segment(0, 10), Segment(10, 20)), "the newest tells the end"
    assert segments_to_delete([], 25) == ()


@given(st.integers(SPOOL_BYTES_MIN, 4 * SPOOL_BYTES))
def test_two_open_segments_leave_most_of_the_bound_free(bound_bytes: int) -> None:
    assert 2 * segment_bytes_for(bound_bytes) <= bound_bytes // 4


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**7), st.integers(1, 10**7))
def test_the_room_exceeds_neither_bound_nor_segment_nor_chunk(bound: int, held: int, used: int, segment: int) -> None:
    room = room_bytes(bound, held, used, segment)
    assert 0 <= room <= CHUNK_BYTES
    assert room == 0 or (held + room <= bound and used + room <= segment)


@given(st.lists(st.tuples(st.sampled_from(("write", "send", "sync", "lose")), st.integers(0, 10**7))))
def test_every_byte_is_sent_in_order_and_again_after_a_lost_connection(steps: list[tuple[str, int]]) -> None:
    upload, end, received, synced_there = Upload(), 0, 0, 0
    for step, count in steps:
        if step == "write":
            end += count
        elif step == "send" and (piece := next_piece(upload, end)) is not None:
            assert piece.start == upload.sent
            assert 0 < piece.end - piece.start <= CHUNK_BYTES
            assert piece.end <= end
            assert piece.start <= received, "no hole at the receiver"
            received = max(received, piece.end)
            upload = piece_sent(upload, piece)
        elif step == "sync":
            synced_there = min(received, synced_there + count)
            upload = piece_synced(upload, synced_there)
        elif step == "lose":
            upload = connection_lost(upload)
        assert upload.synced <= upload.sent <= end
        assert upload.synced <= synced_there
    upload = connection_lost(upload)
    while (piece := next_piece(upload, end)) is not None:
        upload = piece_synced(piece_sent(upload, piece), piece.end)
    assert upload.synced >= end


def test_a_full_window_waits_and_an_older_synced_offset_changes_nothing() -> None:
    assert next_piece(Upload(synced=0, sent=100), 200, window_bytes=100) is None
    assert next_piece(Upload(synced=10, sent=100), 200, window_bytes=100) == OutputPiece(100, 110)
    assert piece_synced(Upload(synced=50, sent=60), 40) == Upload(synced=50, sent=60)
    assert piece_synced(Upload(synced=50, sent=60), 80) == Upload(synced=80, sent=80)


# --- launches, verdicts, records


@pytest.mark.parametrize("phase", AttemptPhase)
def test_what_is_known_in_whatever_phase_is_never_started(phase: AttemptPhase) -> None:
    assert decide_launch(phase) is LaunchDecision.ANSWER
    assert decide_launch(None) is LaunchDecision.START


def test_verdicts_never_forget_what_lives_and_never_keep_what_is_unwanted() -> None:
    for verdict, phase in product(Verdict, AttemptPhase):
        done = obey(verdict, phase)
        if phase is AttemptPhase.FORGOTTEN:
            assert done is Obedience.NOTHING
        elif phase.is_live:
            assert (
                done
                is {
                    Verdict.KEEP: Obedience.NOTHING,
                    Verdict.KILL: Obedience.KILL,
                    Verdict.FORGET: Obedience.KILL_THEN_FORGET,
                }[verdict]
            )
        else:
            assert done is (Obedience.REPORT_END if verdict is Verdict.KEEP else Obedience.FORGET)


def test_a_record_is_adopted_settled_or_given_up_by_what_lives_and_which_boot_it_is() -> None:
    def fate(*, alive: bool = False, here: bool = True, ended: bool = False) -> RecordFate:
        return fate_of_record(keeper_is_alive=alive, is_this_boot=here, has_end=ended)

    assert fate(alive=True) is RecordFate.ADOPT
    assert fate(alive=True, ended=True) is RecordFate.ADOPT
    assert fate(ended=True) is RecordFate.ENDED
    assert fate() is RecordFate.KILL
    assert {fate(alive=a, here=False, ended=e) for a, e in product((True, False), repeat=2)} == {RecordFate.GONE}
    assert loss_of(RecordFate.KILL) is LossReason.KEEPER_DIED
    assert loss_of(RecordFate.GONE) is LossReason.NODE_REBOOTED
    assert loss_of(RecordFate.ADOPT) is loss_of(RecordFate.ENDED) is None


def test_of_what_was_lost_with_its_keeper_only_one_that_is_alone_and_not_isolated_is_suspected() -> None:
    assert not is_blameless(is_isolated=False, lost_count=1)
    assert is_blameless(is_isolated=True, lost_count=1)
    assert is_blameless(is_isolated=False, lost_count=2)


def test_out_of_memory_is_what_failed_by_itself_while_the_kernel_ended_processes_of_it() -> None:
    killed = AttemptEnd(status=ExitSignal(signal=9), output_ends=Offsets(), shortage=Shortage(oom_kills=1))
    assert killed.ran_out_of_memory
    assert replace(killed, status=ExitCode(code=1)).ran_out_of_memory
    for changed in (
        replace(killed, status=ExitCode(code=0)),
        replace(killed, status=None),
        replace(killed, stop_cause=StopCause.CANCELLED),
        replace(killed, shortage=None),
        replace(killed, shortage=Shortage(forks_refused=1)),
    ):
        assert not changed.ran_out_of_memory, changed
