"""What is typed, before it goes anywhere: escapes, what is sent again, and what a terminal must be given back from."""

from __future__ import annotations

import itertools
import os

import pytest
from gpufleet.v1 import scheduler_pb2
from hypothesis import given
from hypothesis import strategies as st

from cli.attaching.escape import Escape, EscapeFilter, Modes
from cli.attaching.terminal import RawTerminal
from cli.attaching.window import PIECE_BYTES_MAX, WINDOW_BYTES_MAX, InputWindow, Piece
from node_agent.core.typed import InputPiece as QueuedPiece
from node_agent.core.typed import InputQueue


def feed(*typed: bytes) -> tuple[bytes, list[Escape]]:
    keys, passed, asked = EscapeFilter(), b"", []
    for each in typed:
        more, what = keys.feed(each)
        passed += more
        asked += [what] if what is not None else []
    return passed, asked


@pytest.mark.parametrize(
    ("typed", "passed", "asked"),
    [
        ([b"~."], b"", [Escape.DETACH]),
        ([b"~", b"."], b"", [Escape.DETACH]),
        ([b"ls\r~.never"], b"ls\r", [Escape.DETACH]),
        ([b"\x03~."], b"\x03", [Escape.DETACH]),
        ([b"ls ~."], b"ls ~.", []),
        ([b"~~."], b"~.", []),
        ([b"~~~."], b"~~.", []),
        ([b"~/bin\r"], b"~/bin\r", []),
        ([b"~?", b"~."], b"", [Escape.HELP, Escape.DETACH]),
        ([b"~\r~."], b"~\r", [Escape.DETACH]),
        ([b"~"], b"", []),
    ],
)
def test_a_tilde_that_begins_a_line_is_ours_and_no_other(
    typed: list[bytes], passed: bytes, asked: list[Escape]
) -> None:
    assert feed(*typed) == (passed, asked)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_how_the_keys_are_cut_into_pieces_changes_nothing(typed: bytes, cuts: list[int]) -> None:
    ends = sorted({0, len(typed), *(cut for cut in cuts if cut < len(typed))})
    whole, asked = feed(typed)
    pieces, asked_in_pieces = b"", []
    keys = EscapeFilter()
    for start, end in itertools.pairwise(ends):
        more, what = keys.feed(typed[start:end])
        pieces += more
        asked_in_pieces += [what] if what is not None else []
        if what is Escape.DETACH:
            break
    assert pieces == whole
    assert asked_in_pieces[-1:] == asked[-1:]


def opened(offset: int = 0, *, attempt: int = 1, is_continued: bool = False) -> scheduler_pb2.AttachedInput:
    return scheduler_pb2.AttachedInput(
        attempt=attempt, offset=offset, is_open=True, is_new=True, is_continued=is_continued
    )


def taken(offset: int, *, has_ended: bool = False) -> scheduler_pb2.AttachedInput:
    return scheduler_pb2.AttachedInput(attempt=1, offset=offset, is_open=True, has_ended=has_ended)


def test_nothing_is_sent_before_the_way_is_open_and_everything_after() -> None:
    window = InputWindow()
    window.put(b"early")
    assert window.next() is None
    window.heard(opened(10))
    assert window.next() == Piece(10, b"early")
    assert window.next() is None
    window.put(b"late")
    window.end()
    assert window.next() == Piece(15, b"late")
    assert window.next() == Piece(19, b"")
    assert window.next() is None


def test_after_a_lost_connection_exactly_what_did_not_arrive_is_sent_again() -> None:
    window = InputWindow()
    window.heard(opened())
    window.put(b"abcdef")
    assert window.next() == Piece(0, b"abcdef")
    window.heard(taken(2))
    window.lost()
    window.put(b"ghi")
    assert window.next() is None
    assert window.heard(opened(4, is_continued=True)) == 0
    assert window.next() == Piece(4, b"efghi")


def test_an_end_is_sent_again_too() -> None:
    window = InputWindow()
    window.heard(opened())
    window.end()
    assert window.next() == Piece(0, b"")
    window.lost()
    window.heard(opened(is_continued=True))
    assert window.next() == Piece(0, b"")


def test_what_somebody_else_or_another_attempt_came_between_is_told_and_not_sent_again() -> None:
    window = InputWindow()
    window.heard(opened())
    window.put(b"abc")
    window.next()
    window.put(b"def")
    assert window.heard(opened(7)) == 3
    assert window.next() == Piece(7, b"def")
    assert window.heard(opened(0, attempt=2, is_continued=True)) == 3
    assert window.next() is None


def test_a_process_that_takes_no_more_is_sent_no_more() -> None:
    window = InputWindow()
    window.heard(opened())
    window.put(b"abc")
    window.heard(taken(0, has_ended=True))
    assert window.next() is None


def test_the_window_and_its_pieces_have_their_bounds() -> None:
    window = InputWindow()
    window.heard(opened())
    window.put(b"x" * WINDOW_BYTES_MAX)
    assert window.room_bytes == 0
    piece = window.next()
    assert piece is not None
    assert len(piece.data) == PIECE_BYTES_MAX
    window.heard(taken(100))
    assert window.room_bytes == 100
    with pytest.raises(AssertionError):
        window.put(b"x" * 101)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("type"), st.binary(min_size=1, max_size=50)),
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("arrive"), st.integers(1, 4)),
        st.tuples(st.just("acknowledge"), st.none()),
        st.tuples(st.just("break"), st.integers(0, 4)),
    ),
    max_size=60,
)


@given(steps)
def test_however_connections_break_the_node_takes_each_byte_once_and_in_order(
    happenings: list[tuple[str, object]],
) -> None:
    """The window here, the queue of the node there, and between them a way that loses what is on it."""
    window, queue = InputWindow(), InputQueue()
    on_the_way: list[Piece] = []
    typed, came = b"", b""
    window.heard(opened())

    def arrive(count: int) -> None:
        nonlocal came
        for piece in on_the_way[:count]:
            queue.take(QueuedPiece(piece.offset, piece.data, not piece.data))
            came += bytes(queue.waiting)
            queue.written(len(queue.waiting))
        del on_the_way[:count]

    def send(count: int) -> None:
        for _ in range(count):
            if (piece := window.next()) is not None:
                on_the_way.append(piece)

    for what, value in happenings:
        match what, value:
            case "type", bytes(data):
                window.put(data)
                typed += data
            case "send", int(count):
                send(count)
            case "arrive", int(count):
                arrive(count)
            case "acknowledge", _:
                window.heard(taken(queue.offset))
            case "break", int(late):
                window.lost()
                stale = on_the_way[:late]
                window.heard(opened(queue.offset, is_continued=True))
                on_the_way[:] = stale  # some of the old connection's still come, after the new one began
            case _:
                raise AssertionError(what)
        assert typed.startswith(came)
    window.lost()
    window.heard(opened(queue.offset, is_continued=True))
    on_the_way.clear()
    window.end()
    for _ in range(200):
        send(1)
        arrive(1)
        window.heard(taken(queue.offset))
    assert came == typed
    assert queue.is_ending


@pytest.mark.parametrize(
    ("shown", "undone"),
    [
        ([b"plain text"], b""),
        ([b"\x1b[?1049h\x1b[?25lvim"], b"\x1b[?1049l\x1b[?25h\x1b[0m"),
        ([b"\x1b[?1049h", b"\x1b[?1049l"], b""),
        ([b"\x1b[?10", b"49h"], b"\x1b[?1049l\x1b[0m"),
        ([b"text\x1b", b"[?2004h"], b"\x1b[?2004l\x1b[0m"),
        ([b"\x1b[?1000;1006h"], b"\x1b[?1000l\x1b[?1006l\x1b[0m"),
        ([b"\x1b[31mred"], b""),
        ([b"\x1b[?9999h"], b""),
    ],
)
def test_what_a_program_switched_on_is_switched_off(shown: list[bytes], undone: bytes) -> None:
    modes = Modes()
    for each in shown:
        modes.feed(each)
    assert modes.undo() == undone
    assert modes.undo() == b""


def test_an_end_of_input_that_is_typed_before_the_job_reads_reaches_it_as_the_key_that_it_is() -> None:
    master, slave = os.openpty()
    try:
        terminal = RawTerminal(slave)
        terminal.show_raw()
        os.write(master, b"exit\n\x04")
        terminal.enter()
        os.set_blocking(slave, False)
        assert b"".join(iter(lambda: _read(slave), b"")) == b"exit\n\x04"
        terminal.leave()
    finally:
        os.close(master)
        os.close(slave)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 100)
    except BlockingIOError:
        return b""
