"""What is shown of a job that runs on several nodes."""

from __future__ import annotations

import io

import pytest
from gpufleet.v1 import job_pb2

from cli.following.writers import Plain, Prefixed, Streams
from cli.render import words

OUT = job_pb2.STREAM_STDOUT


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["n1", "n2"], "n1,n2"),
        (["n1", "n2", "n3", "n4"], "n[1-4]"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["node009", "node010", "big"], "node[009-010],big"),
        (["a1", "b1", "c1"], "a1,b1,c1"),
        (["n08", "n9", "n10"], "n08,n[9-10]"),
    ],
)
def test_names_of_nodes_that_count_on_are_folded(names: list[str], told: str) -> None:
    assert words.folded(names) == told


def test_the_lines_of_several_ranks_are_whole_and_say_whose_they_are() -> None:
    out = io.BytesIO()
    writer = Plain(Streams(out, io.BytesIO()))
    writer.has_ranks(2)
    for rank, data in [(0, b"one\nt"), (1, b"eins\n"), (0, b"wo\n"), (1, b"zwei")]:
        writer.write(rank, OUT, data)
    writer.finish()
    assert out.getvalue() == b"[0] one\n[1] eins\n[0] two\n[1] zwei\n"


@pytest.mark.parametrize("ranks", [0, 1])
def test_the_bytes_of_a_single_rank_go_through_as_they_are(ranks: int) -> None:
    out = io.BytesIO()
    writer = Plain(Streams(out, io.BytesIO()))
    writer.has_ranks(ranks)
    writer.write(0, OUT, b"no line end")
    writer.finish()
    assert out.getvalue() == b"no line end"


def test_raw_output_is_never_broken_into_lines() -> None:
    out = io.BytesIO()
    writer = Plain(Streams(out, io.BytesIO()), is_raw=True)
    writer.has_ranks(2)
    writer.write(1, OUT, b"a")
    writer.write(0, OUT, b"b")
    assert out.getvalue() == b"ab"


def test_among_several_jobs_a_line_says_job_and_rank() -> None:
    out = io.BytesIO()
    writer = Prefixed(Streams(out, io.BytesIO()), "12")
    writer.write(0, OUT, b"alone\n")
    writer.has_ranks(2)
    writer.write(0, OUT, b"zero\n")
    writer.write(1, OUT, b"one\n")
    assert out.getvalue() == b"12| alone\n12[0]| zero\n12[1]| one\n"
