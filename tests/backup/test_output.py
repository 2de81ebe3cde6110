"""Output that a backup has in it comes back byte for byte, on either database, and is never written over."""

from __future__ import annotations

import json
import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError
from scheduler.backup import archive, commands, output_bytes, parts
from scheduler.outputs.opening import open_shelf
from scheduler.outputs.segment_store import SegmentKey
from scheduler.ports import Mark
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.state.units import Instant
from tests.backup.conftest import DATABASES, Place
from tests.backup.stores import back_up, fill, print_output, refusal, restored
from tests.store.stored_format import LINEAGE

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
Shelf = dict[SegmentKey, bytes]


def segment(job: int, stream: OutputStream, start: int, *, is_head: bool) -> SegmentKey:
    return SegmentKey(RankKey(JobId(job), 2, 1, LINEAGE), stream, start, is_head=is_head)


LONG = random.Random(1).randbytes(5_000_000)
PRINTED: Shelf = {
    segment(41, OUT, 0, is_head=True): LONG,
    segment(41, OUT, 7_000_000, is_head=False): b"the end, behind a gap\n",
    segment(41, ERR, 0, is_head=True): b"a word\n",
}
MARKS = [Mark(Instant(1_000), 3), Mark(Instant(2_000), 5_000_000)]


def write(settings: SchedulerSettings, printed: Shelf) -> None:
    with closing(open_shelf(settings.store, 2, settings.data / "output")) as shelf:
        for each, data in printed.items():
            shelf.write(each, 0, memoryview(data))
            shelf.sync([each], {(each.key, OUT): MARKS} if each.start == 0 and each.stream is OUT else {})


def everything_printed(settings: SchedulerSettings) -> tuple[Shelf, list[Mark], list[str]]:
    """All that is there, the marks of the stream that has some, and what is wrong with it by its checksums."""
    found: Shelf = {}
    problems: list[str] = []
    with closing(open_shelf(settings.store, 2, settings.data / "output")) as shelf:
        for job in sorted(each.job for each in shelf.inventory()):
            for (key, stream), each in shelf.find(job):
                name = SegmentKey(key, stream, each.start, each.is_head)
                found[name] = shelf.read(name, 0, each.size)
            for check in shelf.examine(job):
                problems += check.problems
                assert check.unchecked_bytes == 0
        return found, shelf.marks((RankKey(JobId(41), 2, 1, LINEAGE), OUT)), problems


@pytest.mark.parametrize("source", DATABASES)
@pytest.mark.parametrize("target", DATABASES)
def test_output_moves_with_its_store(
    source: str, target: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = place("source", source)
    fill(settings)
    write(settings, PRINTED)
    before = everything_printed(settings)
    assert before[0].items() >= PRINTED.items() and before[1:] == (MARKS, [])
    file = back_up(settings, tmp_path / "fleet.tar", has_output=True)
    assert "bytes, which are in it)" in capsys.readouterr().out
    assert commands.check(file) == 0
    new = place("target", target)
    assert commands.restore(new, file, replaces=False) == 0
    said = capsys.readouterr().out
    assert "put back: 5,100,035 bytes of output that were not there\n" in said and "missing" not in said
    assert everything_printed(new) == before


def test_output_that_is_there_is_left_and_gets_what_it_lacks(place: Place, tmp_path: Path) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    write(settings, PRINTED)
    file = back_up(settings, tmp_path / "fleet.tar", has_output=True)
    new = place("target", "sqlite")
    print_output(new, 40, b"hello\nand more, of the time after\n")
    write(new, {segment(41, OUT, 0, is_head=True): LONG[:3_333_333]})
    restored(new, file)
    found, _, problems = everything_printed(new)
    assert found.items() >= PRINTED.items() and problems == []
    assert b"hello\nand more, of the time after\n" in found.values()


def test_a_list_and_bytes_that_do_not_fit_are_refused_before_anything_is_changed(place: Place, tmp_path: Path) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    file, new = back_up(settings, tmp_path / "fleet.tar", has_output=True), place("target", "sqlite")
    with archive.opened(file) as opened:
        manifest = opened.manifest
        members = {each.name: (opened.read(each.name), each.content_bytes) for each in manifest.members}
    name = f"{output_bytes.PREFIX}/000001.gz"
    for content, said in ((b"short", "less output than it lists"), (bytes(200_000), "more output than it lists")):
        with file.open("wb") as to:
            writer = archive.Writer(to, 0)
            for each, data in (members | {name: (parts.packed(content), len(content))}).items():
                writer.add(each, *data)
            writer.finish(replace(manifest, members=tuple(writer.members)))
        assert said in refusal(new, file)
        with pytest.raises(GpufleetError, match=said):
            commands.check(file)
    wrong = (
        [1, 1, 0, "../../x", "stdout", 0, True, 1, []],
        [1, 1, 0, "", "stdin", 0, True, 1, []],
        [1, -1, 0, "", "stdout", 0, True, 1, []],
        [1, 1, 0, "", "stdout", 0, 1, 1, []],
        [1, 1, 0, "", "stdout", 0, True, 1, [[1]]],
    )
    for line in wrong:
        content = json.dumps(line).encode() + b"\n"
        with file.open("wb") as to:
            writer = archive.Writer(to, 0)
            for each, data in (members | {"outputs/000001.jsonl.gz": (parts.packed(content), len(content))}).items():
                writer.add(each, *data)
            writer.finish(replace(manifest, members=tuple(writer.members)))
        assert str(file) in refusal(new, file), line
