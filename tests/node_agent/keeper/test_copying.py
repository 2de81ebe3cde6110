"""The copy of an attempt's output: what holds it up, what ends it, and that the spool has everything all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode
from node_agent.core.launch import Refusal, RefusalReason
from node_agent.core.offsets import SPOOL_BYTES_MIN
from node_agent.core.outcome import Stream
from node_agent.keeper.copying import OutputCopy
from node_agent.spool import SpoolReader, SpoolWriter
from tests.node_agent.keeper.keeping import Node


async def test_both_streams_are_copied_as_they_come_and_stand_in_the_spool_as_well(node: Node) -> None:
    agent = await node.open()
    file = node.cwd / "copy"
    end, out, err = await agent.run(
        node.shell(1, "echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c", output_file=str(file))
    )
    assert (end.status, out, err) == (ExitCode(code=0), b"a\nc\n", b"b\n")
    assert file.read_bytes() == b"a\nb\nc\n"


@pytest.mark.parametrize("kind", ["folder", "missing", "pipe", "device"])
async def test_what_is_no_plain_file_is_refused_and_holds_up_nobody(node: Node, kind: str) -> None:
    path = {"folder": node.cwd, "missing": node.cwd / "no" / "copy", "pipe": node.cwd / "pipe"}.get(
        kind, Path("/dev/full")
    )
    if kind == "pipe":
        os.mkfifo(path)
    agent = await node.open()
    launch = node.launch(1, "/bin/true", output_file=str(path))
    for answer in (await agent.keepers.check(launch), await agent.keepers.launch(launch)):
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.OUTPUT_FILE_UNUSABLE
        assert str(path) in answer.detail
    assert await agent.keepers.inventory() == ()


def test_a_copy_that_cannot_be_written_any_more_ends_and_says_so_once_in_the_output(tmp_path: Path) -> None:
    """A device that is full takes the place of a disk that is."""
    copy = OutputCopy("/data/copy", os.open("/dev/full", os.O_WRONLY))
    writer = SpoolWriter(tmp_path, SPOOL_BYTES_MIN, copy=copy)
    reading, writing = os.pipe()
    try:
        for text in (b"one\n", b"two\n"):
            os.write(writing, text)
            writer.take(Stream.STDOUT, reading)
    finally:
        os.close(reading)
        os.close(writing)
        writer.seal()
    reader = SpoolReader(tmp_path)
    assert reader.read(Stream.STDOUT, 0, 100).data == b"one\ntwo\n"
    said = reader.read(Stream.STDERR, 0, 1000).data.decode()
    assert said.count("gpufleet: the copy of the output ends here") == 1
    assert "/data/copy: No space left on device" in said
