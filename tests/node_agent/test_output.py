"""Spooled output on its way into messages, without a network."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2

from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import ExitCode, JobId, RankKey
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, Offsets, Stream
from node_agent.output import BATCH_BYTES_MAX, BATCH_CHUNKS_MAX, UNREADABLE_RETRY_SECONDS, OutputSender


class Kept:
    """Remembers what may be deleted."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[RankKey, Stream], int] = {}

    def synced(self, key: RankKey, stream: Stream, offset: int) -> None:
        self.offsets[key, stream] = offset


def ended(job_id: int, folder: Path, data: bytes = b"", *, starts: int = 0) -> AttemptView:
    """An attempt that ended with this on its standard output, of which the first bytes are deleted."""
    folder.mkdir(exist_ok=True)
    (folder / f"stdout.{starts:020d}").write_bytes(data)
    ends = Offsets(starts + len(data), 0)
    return AttemptView(
        key=RankKey(JobId(job_id), 1, 0),
        phase=AttemptPhase.ENDED,
        keeper_id="k",
        directory=str(folder),
        output_starts=Offsets(starts, 0),
        output_ends=ends,
        end=AttemptEnd(status=ExitCode(code=0), output_ends=ends),
    )


def messages(sender: OutputSender) -> list[node_agent_pb2.ReportOutputRequest]:
    found = []
    while (message := sender.next_message()) is not None:
        found.append(message)
    return found


def test_a_message_holds_a_bounded_number_of_pieces(tmp_path: Path) -> None:
    sender = OutputSender("n1", 1, Kept())
    for job_id in range(1, 1_001):
        sender.see(ended(job_id, tmp_path, b"x"), is_new=True)
    sent = messages(sender)
    assert sum(len(message.chunks) for message in sent) == 1_000
    assert max(len(message.chunks) for message in sent) == BATCH_CHUNKS_MAX


def test_a_message_holds_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4 * 4096
    sender = OutputSender("n1", 1, Kept())
    sender.see(ended(1, tmp_path, data), is_new=True)
    sent = messages(sender)
    assert len(sent) > 1
    assert max(sum(len(chunk.data) for chunk in message.chunks) for message in sent) <= BATCH_BYTES_MAX + 256 * 1024
    stdout = [chunk for m in sent for chunk in m.chunks if chunk.stream == job_pb2.STREAM_STDOUT]
    assert b"".join(chunk.data for chunk in stdout) == data
    assert [chunk.is_end for chunk in stdout] == [False] * (len(stdout) - 1) + [True]


def test_what_is_deleted_here_and_lost_there_ends_the_stream_and_is_told(tmp_path: Path) -> None:
    """The scheduler's disk was replaced by an older copy. It takes nothing behind a hole, so the end is before it."""
    kept, lost = Kept(), []
    sender = OutputSender("n1", 1, kept)
    sender.listen(lambda *what: lost.append(what))
    view = ended(1, tmp_path, b"behind", starts=100)
    sender.see(view, is_new=False)
    (question,) = messages(sender)
    assert len(question.asks) == 2
    position = node_agent_pb2.OutputPosition(key=key_to_proto(view.key), stream=job_pb2.STREAM_STDOUT, offset=40)
    sender.take(position)
    (answer,) = messages(sender)
    assert [(chunk.offset, chunk.data, chunk.is_end) for chunk in answer.chunks] == [(40, b"", True)]
    assert lost == [(view.key, Stream.STDOUT, 40)]
    assert kept.offsets[view.key, Stream.STDOUT] == 106, "what nobody takes must not fill the spool"


def test_what_is_lost_there_and_still_here_is_sent_again(tmp_path: Path) -> None:
    sender = OutputSender("n1", 1, Kept())
    view = ended(1, tmp_path, b"all of it")
    sender.see(view, is_new=True)
    messages(sender)
    position = node_agent_pb2.OutputPosition(key=key_to_proto(view.key), stream=job_pb2.STREAM_STDOUT, offset=9)
    sender.take(position)
    sender._uploads.connected()
    messages(sender)
    position.offset = 4
    sender.take(position)
    (answer,) = messages(sender)
    assert [(chunk.offset, chunk.data, chunk.is_end) for chunk in answer.chunks] == [(4, b"of it", True)]


async def test_output_that_cannot_be_read_is_tried_again_and_others_go_on(tmp_path: Path) -> None:
    assert UNREADABLE_RETRY_SECONDS < 10
    sender = OutputSender("n1", 1, Kept())
    view = ended(1, tmp_path / "a", b"here")
    spool = tmp_path / "a" / "stdout.00000000000000000000"
    spool.rename(tmp_path / "elsewhere")
    spool.mkdir()
    sender.see(view, is_new=True)
    sender.see(ended(2, tmp_path / "b", b"other"), is_new=True)
    sent = [(chunk.key.job_id, chunk.data) for message in messages(sender) for chunk in message.chunks]
    assert (2, b"other") in sent
    assert (1, b"here") not in sent
    spool.rmdir()
    (tmp_path / "elsewhere").rename(spool)
    question = await sender.wait_for_message()
    assert [ask.stream for ask in question.asks] == [job_pb2.STREAM_STDOUT]
    sender.take(node_agent_pb2.OutputPosition(key=key_to_proto(view.key), stream=job_pb2.STREAM_STDOUT))
    (answer,) = messages(sender)
    assert [chunk.data for chunk in answer.chunks] == [b"here"]


def test_unwanted_output_may_be_deleted_as_it_grows(tmp_path: Path) -> None:
    kept = Kept()
    sender = OutputSender("n1", 1, kept)
    view = ended(1, tmp_path, b"12345")
    sender.see(view, is_new=True)
    messages(sender)
    position = node_agent_pb2.OutputPosition(key=key_to_proto(view.key), stream=job_pb2.STREAM_STDOUT, is_unwanted=True)
    sender.take(position)
    assert kept.offsets == {(view.key, Stream.STDOUT): 5}


@pytest.mark.parametrize("kept_bytes", [0, 1, 99, 100, 101, 149])
def test_a_spool_that_was_cut_off_ends_the_stream_there_and_is_told(tmp_path: Path, kept_bytes: int) -> None:
    """In the first of two files or in the second, or between them; the scheduler must not wait for what is gone."""
    kept, lost = Kept(), []
    sender = OutputSender("n1", 1, kept)
    sender.listen(lambda *what: lost.append(what))
    view = ended(1, tmp_path, bytes(100))
    (tmp_path / f"stdout.{100:020d}").write_bytes(bytes(50))
    ends = Offsets(150, 0)
    assert view.end is not None
    view = replace(view, output_ends=ends, end=replace(view.end, output_ends=ends))
    cut = tmp_path / f"stdout.{0 if kept_bytes <= 100 else 100:020d}"
    os.truncate(cut, kept_bytes if kept_bytes <= 100 else kept_bytes - 100)
    if kept_bytes == 100:
        (tmp_path / f"stdout.{100:020d}").unlink()
    sender.see(view, is_new=True)
    sent = [chunk for message in messages(sender) for chunk in message.chunks]
    assert b"".join(chunk.data for chunk in sent) == bytes(kept_bytes)
    assert [(chunk.offset + len(chunk.data), chunk.is_end) for chunk in sent][-1] == (kept_bytes, True)
    assert lost == [(view.key, Stream.STDOUT, kept_bytes)]
    assert kept.offsets[view.key, Stream.STDOUT] == 150, "what nobody takes must not fill the spool"
