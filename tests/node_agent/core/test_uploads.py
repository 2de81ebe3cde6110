"""The order in which output goes up, without a spool and without a network."""

from __future__ import annotations

from gpufleet.jobs.runs import ExitCode, JobId, RankKey
from node_agent.core.offsets import CHUNK_BYTES
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, LossReason, Offsets, Stream
from node_agent.core.uploads import UPLOAD_WINDOW_BYTES, ToSend, Uploads

A, B = RankKey(JobId(1), 1, 0), RankKey(JobId(2), 1, 0)


def running(key: RankKey, stdout: int, stderr: int = 0) -> AttemptView:
    return AttemptView(
        key=key,
        phase=AttemptPhase.RUNNING,
        keeper_id="k",
        directory=f"/spool/{key}",
        output_ends=Offsets(stdout, stderr),
    )


def ended(key: RankKey, stdout: int, *, loss: LossReason | None = None) -> AttemptView:
    end = AttemptEnd(status=None if loss else ExitCode(code=0), output_ends=Offsets(stdout, 0), loss=loss)
    return AttemptView(
        key=key, phase=AttemptPhase.ENDED, keeper_id="k", directory="/", output_ends=Offsets(stdout, 0), end=end
    )


def drained(uploads: Uploads) -> list[tuple[RankKey, Stream, int, int, bool]]:
    """Send all that may be sent now."""
    sent = []
    while (what := uploads.next()) is not None:
        uploads.sent(what, what.piece.end - what.piece.start)
        sent.append((*what.stream.key, what.piece.start, what.piece.end, what.is_end))
    return sent


def test_new_output_goes_up_at_once_and_only_once() -> None:
    uploads = Uploads()
    uploads.see(running(A, 5), is_new=True)
    assert drained(uploads) == [(A, Stream.STDOUT, 0, 5, False)]
    uploads.see(running(A, 5), is_new=False)
    assert drained(uploads) == []
    uploads.see(running(A, 8, 2), is_new=False)
    assert drained(uploads) == [(A, Stream.STDOUT, 5, 8, False), (A, Stream.STDERR, 0, 2, False)]


def test_after_a_reconnect_nothing_is_sent_before_the_scheduler_said_what_it_has() -> None:
    uploads = Uploads()
    uploads.see(running(A, 100), is_new=True)
    drained(uploads)
    uploads.connected()
    assert drained(uploads) == []
    assert set(uploads.questions()) == {(A, Stream.STDOUT), (A, Stream.STDERR)}
    assert uploads.questions() == (), "each is asked once"
    uploads.synced((A, Stream.STDOUT), 40, is_end=False, is_unwanted=False)
    assert drained(uploads) == [(A, Stream.STDOUT, 40, 100, False)]


def test_attempts_take_turns() -> None:
    uploads = Uploads()
    uploads.see(running(A, 3 * CHUNK_BYTES), is_new=True)
    uploads.see(running(B, 1), is_new=True)
    assert [key for key, *_ in drained(uploads)] == [A, B, A, A]


def test_what_is_sent_and_not_synced_is_bounded() -> None:
    uploads = Uploads()
    uploads.see(running(A, 2 * UPLOAD_WINDOW_BYTES), is_new=True)
    assert drained(uploads)[-1][3] == UPLOAD_WINDOW_BYTES
    uploads.synced((A, Stream.STDOUT), 10, is_end=False, is_unwanted=False)
    assert drained(uploads)[-1][3] == UPLOAD_WINDOW_BYTES + 10


def test_the_last_piece_says_that_the_stream_ends() -> None:
    uploads = Uploads()
    uploads.see(running(A, 5), is_new=True)
    drained(uploads)
    uploads.see(ended(A, 9), is_new=False)
    assert drained(uploads) == [(A, Stream.STDOUT, 5, 9, True)]


def test_of_a_stream_that_never_held_a_byte_nothing_is_sent() -> None:
    uploads = Uploads()
    uploads.see(running(A, 0), is_new=True)
    uploads.see(ended(A, 0), is_new=False)
    assert drained(uploads) == []


def test_an_end_that_was_not_stored_is_sent_again_and_a_stored_one_is_not() -> None:
    uploads = Uploads()
    uploads.see(ended(A, 9), is_new=True)
    drained(uploads)
    uploads.connected()
    uploads.synced((A, Stream.STDOUT), 9, is_end=False, is_unwanted=False)
    uploads.synced((A, Stream.STDERR), 0, is_end=True, is_unwanted=False)
    assert drained(uploads) == [(A, Stream.STDOUT, 9, 9, True)]


def test_an_end_that_was_stored_is_not_sent_in_any_later_connection() -> None:
    uploads = Uploads()
    uploads.see(ended(A, 9), is_new=True)
    drained(uploads)
    uploads.synced((A, Stream.STDOUT), 9, is_end=True, is_unwanted=False)
    uploads.connected()
    uploads.synced((A, Stream.STDOUT), 9, is_end=False, is_unwanted=False)
    assert drained(uploads) == []


def test_of_a_stream_that_was_there_before_the_scheduler_is_asked_and_of_a_new_one_it_is_not() -> None:
    uploads = Uploads()
    uploads.connected()
    uploads.see(running(A, 5), is_new=False)
    uploads.see(running(B, 5), is_new=True)
    assert set(uploads.questions()) == {(A, Stream.STDOUT), (A, Stream.STDERR)}
    assert drained(uploads) == [(B, Stream.STDOUT, 0, 5, False)]
    uploads.synced((A, Stream.STDOUT), 2, is_end=False, is_unwanted=False)
    assert drained(uploads) == [(A, Stream.STDOUT, 2, 5, False)]


def test_a_piece_that_was_read_short_goes_on_in_the_next_turn() -> None:
    uploads = Uploads()
    uploads.see(ended(A, 10), is_new=True)
    what = uploads.next()
    assert isinstance(what, ToSend) and what.is_end
    uploads.sent(what, 4)
    assert (A, Stream.STDOUT, 4, 10, True) in drained(uploads)


def test_what_nobody_wants_is_not_sent() -> None:
    uploads = Uploads()
    uploads.see(running(A, 5), is_new=False)
    uploads.questions()
    state = uploads.synced((A, Stream.STDOUT), 0, is_end=False, is_unwanted=True)
    assert state is not None and state.is_unwanted
    assert drained(uploads) == []


def test_what_was_unwanted_and_is_wanted_by_a_store_that_was_put_back_is_sent_from_where_that_ends() -> None:
    uploads = Uploads()
    uploads.see(ended(A, 5), is_new=True)
    drained(uploads)
    uploads.synced((A, Stream.STDOUT), 0, is_end=False, is_unwanted=True)
    uploads.connected()
    uploads.synced((A, Stream.STDOUT), 0, is_end=False, is_unwanted=False)
    assert drained(uploads) == [(A, Stream.STDOUT, 0, 5, True)]


def test_what_a_reboot_left_in_the_files_is_not_sent() -> None:
    uploads = Uploads()
    uploads.see(ended(A, 9, loss=LossReason.NODE_REBOOTED), is_new=False)
    assert uploads.questions() == ()
    uploads.see(ended(B, 9, loss=LossReason.KEEPER_DIED), is_new=True)
    assert drained(uploads)[0] == (B, Stream.STDOUT, 0, 9, True)
