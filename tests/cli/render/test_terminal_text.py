"""What a job writes cannot change the terminal of who follows it."""

from __future__ import annotations

import io
import re

import pytest
from gpufleet.v1 import job_pb2
from hypothesis import given
from hypothesis import strategies as st

from cli.following.writers import Plain, Prefixed, Streams
from cli.render.terminal_text import STRING_CHARS_MAX, TerminalText, for_terminal

HARMLESS = [
    b"\x1b[31mred\x1b[0m \x1b[1;38;5;208m bold \x1b[38:2::1:2:3m\x1b[m",
    b"\r 10 %|#   |\r 20 %|##  |\x1b[K",
    b"a\x08b\ttab\n",
    "naïve – 数据 🙂\n".encode(),
    b"\x1b[12Gat a column\x1b[3D\x1b[2K",
]
CHANGES_THE_TERMINAL = [
    b"\x1b]52;c;cm0gLXJmIH4=\x07",  # the clipboard
    b"\x1b]0;a title\x1b\\",
    b"\x1bP+q544e\x1b\\",  # a terminal answers this one as if it were typed
    b"\x1b[6n",
    b"\x1b[c",
    b"\x1b[21t",
    b"\x1b[2J\x1b[H",
    b"\x1b[5A",
    b"\x1b[10;10H",
    b"\x1b[?1049h\x1b[?1000h\x1b[?2004h",
    b"\x1b[>4;2m",  # what keys send
    b"\x1bc",
    b"\x1b(0",
    b"\x0e\x0f\x07\x0b\x0c\x05",
    "\u009b2J".encode(),
    "\u009d52;c;x\u009c".encode(),
    b"\x9b2J\x90q\x9c",
    b"\x1b_hidden\x1b\\",
    b"\x1b^x\x1b\\\x1bXx\x1b\\",
    b"\x1b[1 q",
    b"\x1b[!p",
]
NOTHING_ELSE = re.compile(r"(?:[^\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]|\x1b\[[0-9;:]*[mCDGK])*")


@pytest.mark.parametrize("data", HARMLESS)
def test_colours_and_progress_bars_pass_as_they_are(data: bytes) -> None:
    assert for_terminal(data) == data


@pytest.mark.parametrize("data", CHANGES_THE_TERMINAL)
def test_nothing_that_changes_the_terminal_passes_and_the_text_around_it_does(data: bytes) -> None:
    shown = for_terminal(b"before " + data + b"\nafter\n").decode()
    assert NOTHING_ELSE.fullmatch(shown)
    assert shown.startswith("before ")
    assert shown.endswith("\nafter\n")
    assert "52;c" not in shown
    assert "title" not in shown


@given(st.lists(st.sampled_from([*HARMLESS, *CHANGES_THE_TERMINAL]) | st.binary(max_size=12), max_size=8), st.data())
def test_wherever_the_pieces_are_cut_the_same_passes_and_nothing_else(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    text = TerminalText()
    ends = [*cuts, len(whole)]
    shown = b"".join(text.passed(whole[begin:end]) for begin, end in zip([0, *cuts], ends, strict=True))
    assert NOTHING_ELSE.fullmatch(shown.decode())
    assert shown == for_terminal(whole)


def test_a_sequence_without_an_end_hides_no_more_than_a_bound() -> None:
    text = TerminalText()
    shown = text.passed(b"\x1b]0;" + b"x" * (STRING_CHARS_MAX + 10)) + text.passed(b"seen")
    assert shown == b"x" * 12 + b"seen", "0; is of the text as well"
    assert TerminalText().passed(b"\x1b[" + b"1;" * 1000) != b"", "no sequence, and nothing is kept of it"


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_is_protected_and_not_from_raw_bytes() -> None:
    data = b"\x1b]52;c;x\x07\x1b[2Jtext\n"
    for out, is_raw, expected in (
        (Terminal(), False, b"text\n"),
        (Terminal(), True, data),
        (io.BytesIO(), False, data),
    ):
        streams = Streams(out, io.BytesIO(), passes_all=is_raw)
        Plain(streams, is_raw=is_raw).write(0, job_pb2.STREAM_STDOUT, data)
        assert out.getvalue() == expected


def test_lines_of_several_jobs_and_remarks_are_no_way_around_it() -> None:
    out = Terminal()
    streams = Streams(out, out)
    lines = Prefixed(streams, "41")
    lines.write(0, job_pb2.STREAM_STDOUT, b"\x1b]0;no end\n")
    lines.write(1, job_pb2.STREAM_STDOUT, b"seen\n")
    lines.note("ended: \x1b[2J")
    assert b"\x1b" not in out.getvalue()
    assert b"seen" in out.getvalue()
