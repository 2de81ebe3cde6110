"""StreamOutput of a job, without a server: every byte once and in order, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from scheduler.api.output import beginnings
from scheduler.api.output.beginnings import beginning, since_of
from scheduler.api.output.following import (
    KEEPALIVE_SECONDS,
    KEEPALIVE_SECONDS_MAX,
    KEEPALIVE_SECONDS_MIN,
    JobFollower,
    keepalive_seconds,
)
from scheduler.engine import Changes
from scheduler.output_hub import FOLLOWER_BYTES, OutputHub
from scheduler.outputs.errors import OutputStoreUnavailable
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import SEGMENT_BYTES_MIN, OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.state.units import SECOND, Instant
from scheduler.watching import ChangeHub
from tests.e2e.processes import until
from tests.store.samples import job as stored_job

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
JOB = JobId(7)
KEY = RankKey(JOB, 1, 0)
START = Instant(1_700_000_000 * SECOND)
RUNNING, SUCCEEDED, FAILED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED
Response = scheduler_pb2.StreamOutputResponse
Place = tuple[int, int, int]


class Scene:
    """A job with its output, and readers of it."""

    def __init__(self, folder: Path, limits: OutputLimits | None = None) -> None:
        self.wall = START
        self.store = SegmentedOutputStore(FileShelf(folder), limits or OutputLimits(), lambda: self.wall)
        self.hub = OutputHub(self.store, lambda key, ends: None)
        self.changes = ChangeHub(1)
        self.job = job_pb2.Job(id=JOB, state=RUNNING, attempt_count=1)
        self.has_ended = False

    async def show(self, job: JobId) -> tuple[job_pb2.Job, bool]:
        assert job == JOB
        shown = job_pb2.Job()
        shown.CopyFrom(self.job)
        shown.attempts.extend(job_pb2.Attempt(number=number + 1) for number in range(shown.attempt_count))
        return shown, self.has_ended

    def change(self, **fields: Any) -> None:
        """The job changes, and its followers are woken."""
        self.job.MergeFrom(job_pb2.Job(**fields))
        self.has_ended = self.job.state in (SUCCEEDED, FAILED)
        self.changes.publish(Changes(jobs=(stored_job(JOB),), nodes=()))

    async def write(self, data: bytes, key: RankKey = KEY, stream: OutputStream = OUT) -> None:
        await self.hub.append([(key, stream, self.store.end(key, stream), data, False)])

    async def write_at(self, second: float, data: bytes, key: RankKey = KEY, stream: OutputStream = OUT) -> None:
        """Bytes that arrive and are synced then."""
        self.wall = Instant(START + round(second * SECOND))
        await self.write(data, key, stream)
        await self.hub.on_thread(self.store.sync)

    def read(self, **fields: Any) -> AsyncIterator[Response]:
        request = scheduler_pb2.StreamOutputRequest(job_id=JOB, **fields)
        return JobFollower(request, self.hub, self.changes, self.show).stream()

    async def all_of(self, **fields: Any) -> list[Response]:
        return [message async for message in self.read(**fields)]

    def close(self) -> None:
        """Nothing of any reader is left."""
        assert self.hub._followers == {}
        assert self.changes._waiting == {}
        self.hub.close()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
async def small_scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Of each attempt 1,000 bytes and four segments are kept."""
    scene = Scene(tmp_path, OutputLimits(head_bytes=1_000, tail_bytes=4 * SEGMENT_BYTES_MIN))
    yield scene
    scene.close()


def joined(messages: list[Response]) -> dict[Place, bytes]:
    """The bytes of each stream; a gap is a row of question marks, and anything out of order fails."""
    found: dict[Place, bytearray] = {}
    for message in messages:
        if not message.stream:
            continue
        place = (message.attempt, message.rank, message.stream)
        gap = message.gap.to_offset - message.gap.from_offset if message.HasField("gap") else 0
        offset = message.gap.from_offset if gap else message.offset
        data = found.setdefault(place, bytearray())
        assert offset == len(data), f"{offset} behind {len(data)} bytes"
        data += message.data or b"?" * gap
    return {place: bytes(data) for place, data in found.items()}


def tail(messages: list[Response]) -> dict[Place, bytes]:
    """The bytes of each stream, from wherever it begins, without holes."""
    ends: dict[Place, int] = {}
    found: dict[Place, bytes] = {}
    for message in messages:
        if message.stream:
            place = (message.attempt, message.rank, message.stream)
            assert not message.HasField("gap") and message.offset == ends.get(place, message.offset)
            ends[place] = message.offset + len(message.data)
            found[place] = found.get(place, b"") + message.data
    return {place: data for place, data in found.items() if data}


def waits_for_news(scene: Scene) -> bool:
    """Whether the one follower has read all that is stored."""
    (follower,) = scene.hub._followers[JOB]
    return bool(follower.wakeup._waiters)


def stamp(second: float) -> Timestamp:
    time = Timestamp()
    time.FromMicroseconds(START + round(second * SECOND))
    return time


async def test_what_is_stored_comes_first_then_what_arrives_then_the_end(scene: Scene) -> None:
    await scene.write(b"stored ")
    reader = scene.read(follow=True)
    first, second = await anext(reader), await anext(reader)
    assert first.job.state == RUNNING and second.data == b"stored "
    await scene.write(b"new ")
    third = await anext(reader)
    assert (third.offset, third.data) == (7, b"new ")
    await scene.write(b"and the rest")
    await scene.write(b"oops", stream=ERR)
    scene.change(state=SUCCEEDED)
    rest = [message async for message in reader]
    assert joined([second, third, *rest]) == {(1, 0, OUT): b"stored new and the rest", (1, 0, ERR): b"oops"}
    assert [message.is_end for message in rest] == [False] * (len(rest) - 1) + [True]
    assert rest[-1].job.state == SUCCEEDED


async def test_without_follow_the_stream_closes_and_says_that_the_job_goes_on(scene: Scene) -> None:
    await scene.write(b"abc")
    messages = await scene.all_of()
    assert tail(messages) == {(1, 0, OUT): b"abc"}
    assert not messages[-1].is_end and messages[-1].job.state == RUNNING


async def test_a_slow_follower_reads_the_store_from_where_it_was(scene: Scene) -> None:
    await scene.write(b"first ")
    reader = scene.read(follow=True)
    messages = [await anext(reader), await anext(reader)]
    written = b"first "
    for number in range(5):
        piece = bytes([number]) * (FOLLOWER_BYTES // 4)
        await scene.write(piece)
        written += piece
    (follower,) = scene.hub._followers[JOB]
    assert follower.is_behind and follower.pending_bytes == 0, "it holds nothing more in memory"
    messages.append(await anext(reader))
    assert len(messages[-1].data) <= beginnings.READ_BYTES
    await scene.write(b" last")
    scene.change(state=SUCCEEDED)
    messages += [message async for message in reader]
    assert joined(messages) == {(1, 0, OUT): written + b" last"}
    assert messages[-1].is_end


async def test_a_follower_that_fell_behind_while_it_waited_reads_the_store_without_a_further_byte(scene: Scene) -> None:
    await scene.write(b"first ")
    async with aclosing(scene.read(follow=True)) as reader:  # type: ignore[type-var]
        messages = [await anext(reader), await anext(reader)]
        waiting = asyncio.ensure_future(anext(reader))
        await until("it waits for news", lambda: waits_for_news(scene))
        (follower,) = scene.hub._followers[JOB]
        written = b"first "
        for number in range(5):  # all at once: the reader has no turn meanwhile
            piece = bytes([number]) * (FOLLOWER_BYTES // 4)
            scene.store.append(KEY, OUT, len(written), piece)
            follower.put((KEY, OUT), len(written), piece)
            written += piece
        assert follower.is_behind
        messages.append(await waiting)
        while sum(len(message.data) for message in messages) < len(written):
            messages.append(await anext(reader))
    assert joined(messages) == {(1, 0, OUT): written}


async def test_stored_bytes_that_no_follower_was_handed_come_before_those_behind_them(scene: Scene) -> None:
    await scene.write(b"first ")
    async with aclosing(scene.read(follow=True)) as reader:  # type: ignore[type-var]
        messages = [await anext(reader), await anext(reader)]
        waiting = asyncio.ensure_future(anext(reader))
        await until("it waits for news", lambda: waits_for_news(scene))
        scene.store.append(KEY, OUT, 6, b"second ")  # as when a later part of the same message could not be stored
        await scene.write(b"third")
        messages.append(await waiting)
        while sum(len(message.data) for message in messages) < 18:
            messages.append(await anext(reader))
    assert joined(messages) == {(1, 0, OUT): b"first second third"}


async def test_a_slow_follower_is_told_of_what_was_given_up_meanwhile(small_scene: Scene) -> None:
    scene = small_scene
    reader = scene.read(follow=True)
    messages = [await anext(reader)]
    total = 2 * FOLLOWER_BYTES
    for _ in range(0, total, 64 * 1024):
        await scene.write(bytes(range(256)) * 256)
    scene.change(state=SUCCEEDED)
    messages += [message async for message in reader]
    (data,) = joined(messages).values()
    assert len(data) == total
    gaps = [message.gap for message in messages if message.HasField("gap")]
    assert [gap.from_offset for gap in gaps] == [1_000]
    assert data[: gaps[0].from_offset] == (bytes(range(256)) * 4)[:1_000]
    assert data[gaps[0].to_offset :] == (bytes(range(256)) * (total // 256))[gaps[0].to_offset :]


async def test_a_reader_from_the_start_meets_the_gap_and_one_within_it_meets_the_rest(small_scene: Scene) -> None:
    scene = small_scene
    await scene.write(bytes(100_000))
    whole = await scene.all_of()
    assert [len(data) for data in joined(whole).values()] == [100_000]
    (gap,) = [message.gap for message in whole if message.HasField("gap")]
    within = scheduler_pb2.StreamPosition(attempt=1, stream=job_pb2.STREAM_STDOUT, offset=gap.to_offset - 5)
    (told, *_) = [message for message in await scene.all_of(positions=[within]) if message.stream]
    assert (told.gap.from_offset, told.gap.to_offset) == (gap.to_offset - 5, gap.to_offset)


async def test_following_goes_on_across_attempts(scene: Scene) -> None:
    await scene.write(b"one")
    reader = scene.read(follow=True)
    messages = [await anext(reader), await anext(reader)]
    second = RankKey(JOB, 2, 0)
    scene.change(attempt_count=2)
    await scene.write(b"two", second)
    while messages[-1].attempt != 2:
        messages.append(await anext(reader))
    await scene.write(b" and on", second)
    scene.change(state=SUCCEEDED)
    messages += [message async for message in reader]
    assert joined(messages) == {(1, 0, OUT): b"one", (2, 0, OUT): b"two and on"}
    assert 2 in [message.job.attempt_count for message in messages[:-1]], "the new attempt is told"
    assert tail(await scene.all_of()) == {(2, 0, OUT): b"two and on"}, "without follow the newest alone"
    assert tail(await scene.all_of(attempt=1)) == {(1, 0, OUT): b"one"}


async def test_a_job_that_ends_while_its_output_is_not_complete_ends_the_stream_with_what_there_is(
    scene: Scene,
) -> None:
    await scene.write(b"half of a li")
    reader = scene.read(follow=True)
    messages = [await anext(reader), await anext(reader)]
    scene.change(state=FAILED, exit_reason="NODE_LOST")
    messages += [message async for message in reader]
    assert joined(messages) == {(1, 0, OUT): b"half of a li"}
    assert messages[-1].is_end and not messages[-1].job.output_is_complete
    assert messages[-1].job.exit_reason == "NODE_LOST"


async def test_only_what_is_wanted_comes(scene: Scene) -> None:
    other = RankKey(JOB, 1, 1)
    for key in (KEY, other):
        for stream in (OUT, ERR):
            await scene.write(f"{key.rank} {stream}".encode(), key, stream)
    assert set(tail(await scene.all_of(rank=1))) == {(1, 1, OUT), (1, 1, ERR)}
    assert set(tail(await scene.all_of(stream=job_pb2.STREAM_STDERR))) == {(1, 0, ERR), (1, 1, ERR)}
    reader = scene.read(follow=True, rank=1, stream=job_pb2.STREAM_STDERR)
    messages = [await anext(reader), await anext(reader)]
    await scene.write(b"not this", KEY, ERR)
    await scene.write(b", this", other, ERR)
    scene.change(state=SUCCEEDED)
    messages += [message async for message in reader]
    assert set(tail(messages)) == {(1, 1, ERR)} and tail(messages)[1, 1, ERR].endswith(b", this")


async def test_a_reader_who_comes_back_gets_each_byte_behind_its_positions(scene: Scene) -> None:
    await scene.write(b"0123456789")
    await scene.write(b"never seen", stream=ERR)
    position = scheduler_pb2.StreamPosition(attempt=1, stream=job_pb2.STREAM_STDOUT, offset=4)
    messages = await scene.all_of(positions=[position], tail_lines=0)
    assert tail(messages) == {(1, 0, OUT): b"456789", (1, 0, ERR): b"never seen"}


async def test_a_silent_job_is_shown_to_live(scene: Scene) -> None:
    async with aclosing(scene.read(follow=True, keepalive=Duration(nanos=1))) as reader:  # type: ignore[type-var]
        await anext(reader)
        assert not (await anext(reader)).ByteSize()


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (None, KEEPALIVE_SECONDS),
        (Duration(), KEEPALIVE_SECONDS_MIN),
        (Duration(seconds=-5), KEEPALIVE_SECONDS_MIN),
        (Duration(seconds=2, nanos=500_000_000), 2.5),
        (Duration(seconds=315_576_000_000), KEEPALIVE_SECONDS_MAX),
    ],
)
def test_the_interval_that_a_reader_asks_for_is_brought_within_its_bounds(asked: Duration | None, taken: float) -> None:
    assert keepalive_seconds(scheduler_pb2.StreamOutputRequest(keepalive=asked)) == taken


@pytest.mark.parametrize("by", ["closing", "cancelling"])
async def test_a_reader_who_leaves_leaves_nothing_behind(scene: Scene, by: str) -> None:
    await scene.write(b"abc")
    taken: list[Response] = []

    async def read() -> None:
        async with aclosing(scene.read(follow=True)) as reader:  # type: ignore[type-var]
            async for message in reader:
                taken.append(message)
                if by == "closing" and message.data:
                    return

    reading = asyncio.create_task(read())
    await until("it has read what there is", lambda: any(message.data for message in taken))
    if by == "cancelling":
        assert scene.hub._followers and scene.changes._waiting
        reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert scene.hub._followers == {} and scene.changes._waiting == {}


async def test_a_reader_who_is_refused_or_whose_store_fails_leaves_nothing_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GpufleetError) as refused:
        await scene.all_of(attempt=9)
    assert refused.value.reason is Reason.ATTEMPT_NOT_FOUND
    await scene.write(b"abc")

    def fails(*_: object) -> None:
        raise OutputStoreUnavailable("the server is away")

    monkeypatch.setattr(scene.store, "read", fails)
    with pytest.raises(OutputStoreUnavailable):
        await scene.all_of()
    assert scene.hub._followers == {} and scene.changes._waiting == {}


async def test_what_is_newer_than_a_time_comes_from_every_rank_and_stream(scene: Scene) -> None:
    other = RankKey(JOB, 1, 1)
    await scene.write_at(1, b"old\n")
    await scene.write_at(1, b"old error\n", stream=ERR)
    await scene.write_at(1, b"old rank\n", other)
    await scene.write_at(60, b"new\n")
    await scene.write_at(60, b"new rank\n", other)
    messages = await scene.all_of(since_time=stamp(30))
    assert tail(messages) == {(1, 0, OUT): b"new\n", (1, 1, OUT): b"new rank\n"}
    begun = {(each.rank, int(each.stream)): each.offset for each in messages if each.stream and not each.data}
    assert begun == {(0, OUT): 4, (0, ERR): 10, (1, OUT): 9}, "a reader who is cut off now goes on from there"
    assert tail(await scene.all_of(since_time=stamp(0)))[1, 0, OUT] == b"old\nnew\n"
    assert tail(await scene.all_of(since_time=stamp(61))) == {}


async def test_a_follower_from_a_time_on_gets_what_arrives_and_nothing_of_older_attempts(scene: Scene) -> None:
    second = RankKey(JOB, 2, 0)
    await scene.write_at(1, b"first attempt\n")
    scene.change(attempt_count=2)
    await scene.write_at(10, b"early\n", second)
    await scene.write_at(20, b"late\n", second)
    reader = scene.read(follow=True, since_time=stamp(15))
    messages = [await anext(reader)]
    await scene.write_at(30, b"new\n", second)
    await scene.write_at(30, b"a new stream\n", second, ERR)
    scene.change(state=SUCCEEDED)
    messages += [message async for message in reader]
    assert tail(messages) == {(2, 0, OUT): b"late\nnew\n", (2, 0, ERR): b"a new stream\n"}


async def test_a_reader_who_comes_back_may_ask_for_the_time_again(scene: Scene) -> None:
    await scene.write_at(1, b"old\n")
    await scene.write_at(1, b"old error\n", stream=ERR)
    await scene.write_at(60, b"new\n")
    position = scheduler_pb2.StreamPosition(attempt=1, stream=job_pb2.STREAM_STDOUT, offset=6)
    messages = await scene.all_of(positions=[position], since_time=stamp(30))
    assert tail(messages) == {(1, 0, OUT): b"w\n"}, "what has a position goes on there, what has none begins then"


async def test_with_a_time_and_a_number_of_lines_both_hold(scene: Scene) -> None:
    await scene.write_at(1, b"a\nb\n")
    await scene.write_at(60, b"c\nd\ne\n")
    for lines, second, expected in ((1, 30, b"e\n"), (9, 30, b"c\nd\ne\n"), (4, 0, b"b\nc\nd\ne\n"), (0, 0, b"")):
        found = tail(await scene.all_of(since_time=stamp(second), tail_lines=lines))
        assert found.get((1, 0, OUT), b"") == expected, (lines, second)


async def test_a_time_within_a_line_begins_with_the_line_if_that_is_near(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.write_at(1, b"whole\nloss: ")
    await scene.write_at(60, b"0.5\n")
    await scene.write_at(60, b"no newline before me", stream=ERR)
    assert tail(await scene.all_of(since_time=stamp(30)))[1, 0, OUT] == b"loss: 0.5\n"
    monkeypatch.setattr(beginnings, "LINE_BYTES_MAX", 4)
    assert tail(await scene.all_of(since_time=stamp(30)))[1, 0, OUT] == b"0.5\n", "too far back: at the time itself"
    assert tail(await scene.all_of(since_time=stamp(59)))[1, 0, ERR] == b"no newline before me"


async def test_a_time_within_the_first_line_begins_with_it(scene: Scene) -> None:
    await scene.write_at(1, b"one ")
    await scene.write_at(60, b"line\n")
    assert tail(await scene.all_of(since_time=stamp(30))) == {(1, 0, OUT): b"one line\n"}


async def test_a_time_in_a_gap_tells_of_the_gap(small_scene: Scene) -> None:
    scene = small_scene
    for second in range(100):
        await scene.write_at(second, b"x" * 999 + b"\n")
    found = [message for message in await scene.all_of(since_time=stamp(30.5)) if message.stream]
    assert (found[0].offset, found[0].data) == (31_000, b"")
    assert found[1].gap.from_offset == 31_000
    assert found[2].offset == found[1].gap.to_offset
    end = beginning(scene.store, (KEY, OUT), since=Instant(START + 95 * SECOND), lines=None)
    assert end == 95_000, "behind the gap it is exact"


def test_a_time_to_come_is_refused_unless_clocks_may_differ_by_it() -> None:
    request = scheduler_pb2.StreamOutputRequest(since_time=stamp(0))
    assert since_of(scheduler_pb2.StreamOutputRequest(), START) is None
    assert since_of(request, START) == START
    assert since_of(request, Instant(START - beginnings.AHEAD_SECONDS_MAX * SECOND)) == START
    with pytest.raises(GpufleetError, match="since_time: is 61 s in the future by the scheduler's clock"):
        since_of(request, Instant(START - 61 * SECOND))
    for broken in (Timestamp(nanos=-1), Timestamp(nanos=10**9), Timestamp(seconds=2**62), Timestamp(seconds=-(2**62))):
        with pytest.raises(GpufleetError, match="since_time: is no time"):
            since_of(scheduler_pb2.StreamOutputRequest(since_time=broken), START)
