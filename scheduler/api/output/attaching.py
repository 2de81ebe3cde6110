"""AttachJob and OpenChannel: what people type, on its way down, beside the output that they follow.

Who types sends what it likes and is told how far it has come; a channel that breaks, because its agent or its node is
away, is opened again by itself, and the person's side sends again what had not arrived.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gpufleet.v1 import job_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.runs import SIGNAL_MAX, InputMode

from ...engine import Engine
from ...state.ids import JobId, NodeName, RankKey
from ...state.jobs import Job
from ...watching import ChangeHub
from ..jobs.starting import until_started
from ..long_streams import first_of, let_end
from .channels import Channel, ChannelClosed, Channels, Keyboard, Keyboards
from .following import JobFollower

START_SECONDS_MAX = 30.0
"""How long a caller may take to say who it is."""

RESPONSES_WAITING = 16
"""Messages to a caller that reads slowly; then output waits in the store, as it does for every follower."""

RETRY_SECONDS = 0.5
"""The pause before a channel is asked for again."""

PIECE_BYTES_MAX = 32 * 1024
SESSION_CHARS_MAX = 128
SIZE_MAX = 65_535
START_WAIT_SECONDS_MAX = 10.0
"""How long a signal waits for a job that is being started."""

Request = scheduler_pb2.AttachJobRequest
Response = scheduler_pb2.AttachJobResponse
Input = scheduler_pb2.AttachedInput
Chunk = node_agent_pb2.InputChunk
Place = tuple[NodeName, RankKey]


@dataclass(frozen=True, slots=True)
class Person:
    """Who attaches, and to what."""

    job: JobId
    session: str
    output: scheduler_pb2.StreamOutputRequest
    size: job_pb2.TerminalSize | None
    take_over: bool
    has_terminal: bool


async def first_request(requests: AsyncIterator[Request]) -> Request:
    """The first message of a call, which says which job is meant."""
    first = await first_of(requests, START_SECONDS_MAX)
    if first is None or not first.job_id:
        raise invalid("job_id", "is not set", next_step="give a job's id, such as 41")
    return first


def person_of(first: Request, job: Job) -> Person:
    """Who attaches, as its first message says."""
    start = first.start
    if len(start.attachment_id) > SESSION_CHARS_MAX:
        raise invalid("start.attachment_id", f"is longer than {SESSION_CHARS_MAX} characters")
    output = scheduler_pb2.StreamOutputRequest()
    output.CopyFrom(start.output)
    output.job_id = first.job_id
    output.follow = True
    return Person(
        job=JobId(first.job_id),
        session=start.attachment_id or secrets.token_hex(16),
        output=output,
        size=checked_size(start.size, "start.size") if start.HasField("size") else None,
        take_over=start.take_over,
        has_terminal=job.spec.input is InputMode.TERMINAL,
    )


def check_input(job: Job) -> None:
    """Refuse a job that reads nothing."""
    if job.spec.input is None:
        raise GpufleetError(
            Reason.JOB_HAS_NO_INPUT,
            f"job {job.id} was submitted without a standard input",
            next_step=f"See its output with: gpuctl logs -f {job.id}",
        )


def checked_size(size: job_pb2.TerminalSize, path: str) -> job_pb2.TerminalSize:
    """A size that a terminal can have. Errors: INVALID_ARGUMENT."""
    for name, value in (("columns", size.columns), ("rows", size.rows)):
        if not 1 <= value <= SIZE_MAX:
            raise invalid(f"{path}.{name}", f"is {value}; it must be 1 to {SIZE_MAX:,}")
    return size


@dataclass(eq=False)
class Attachment:
    """One attached call: output and news down, pieces and sizes up."""

    person: Person
    engine: Engine
    changes: ChangeHub
    channels: Channels
    keyboards: Keyboards
    follower: JobFollower
    send_signal: Callable[[int], Awaitable[None]]

    def __post_init__(self) -> None:
        self._size = self.person.size
        self._channel: Channel | None = None
        self._is_open = asyncio.Event()
        self._wake = asyncio.Event()
        self._told_problem = ""
        self._passed_on = Chunk()
        self._arrived = asyncio.Event()
        self._responses: asyncio.Queue[Response | Exception | None] = asyncio.Queue(RESPONSES_WAITING)

    async def stream(self, first: Request, requests: AsyncIterator[Request]) -> AsyncGenerator[Response, None]:
        """Every message to the caller, until the job has ended or somebody else takes the keyboard."""
        person = self.person
        keyboard = self.keyboards.take(person.job, person.session, take_over=person.take_over)
        self.changes.follow_job(person.job, self._wake)
        typing = asyncio.create_task(self._feeding(self._type()), name=f"typing-{person.job}")
        tasks = [
            typing,
            asyncio.create_task(self._feeding(self._show()), name=f"showing-{person.job}"),
            asyncio.create_task(self._feeding(self._watch(keyboard)), name=f"keyboard-{person.job}"),
            asyncio.create_task(
                self._feeding(self._read(first, requests, keyboard, typing)), name=f"keys-{person.job}"
            ),
        ]
        try:
            while (response := await self._responses.get()) is not None:
                if isinstance(response, Exception):
                    raise response
                yield response
        finally:
            self.changes.unfollow_job(person.job, self._wake)
            self.keyboards.leave(person.job, keyboard)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feeding(self, work: Awaitable[None]) -> None:
        """Do a part of the work; what goes wrong is what the caller is told."""
        try:
            await work
        except Exception as error:
            await self._responses.put(error)

    async def _show(self) -> None:
        """The output and the end."""
        async with aclosing(self.follower.stream()) as responses:
            async for response in responses:
                if response.is_end and response.job.HasField("exit"):
                    await self._responses.put(Response(exit=response.job.exit))
                await self._responses.put(Response(output=response))
        await self._responses.put(None)

    async def _watch(self, keyboard: Keyboard) -> None:
        await keyboard.taken.wait()
        if keyboard.by == self.person.session:
            await self._responses.put(None)  # the same session, over another connection
            return
        raise GpufleetError(
            Reason.INPUT_TAKEN,
            f"another session took the keyboard of job {self.person.job}",
            next_step=f"Look on: gpuctl logs -f {self.person.job} · "
            f"take it back: gpuctl attach --take-over {self.person.job}",
        )

    # --- down to the node

    async def _type(self) -> None:
        """Keep a channel to whatever attempt runs."""
        while True:
            self._wake.clear()
            place = self._place()
            if place is None:
                await self._wake.wait()
                continue
            node, key = place
            try:
                async with self.channels.open(node, key, self.person.session, self._wake.set) as channel:
                    await self._hold(channel, place)
                    problem = channel.problem
            except ChannelClosed as closed:
                problem = str(closed)
            finally:
                self._channel = None
                self._is_open.clear()
                self._arrived.set()  # or never will: who sends no more cannot send it again
            if self._place() == place:
                await self._tell_closed(key, problem or f"the agent of node {node} is away")
                await asyncio.sleep(RETRY_SECONDS)

    async def _hold(self, channel: Channel, place: Place) -> None:
        """Tell how far the node is, for as long as the channel is of use."""
        if self._size is not None:
            await channel.put(Chunk(size=self._size))
        self._channel = channel
        self._is_open.set()
        self._told_problem = ""
        told: node_agent_pb2.InputState | None = None
        while not channel.closed.is_set() and self._place() == place:
            self._wake.clear()
            state = channel.state
            if state is not None and state is not told:
                is_new = told is None
                told = state
                last = self._passed_on
                if state.has_ended or (state.offset >= last.offset + len(last.data) and not last.is_end):
                    self._arrived.set()
                news = Input(attempt=place[1].attempt, offset=state.offset, is_open=True, has_ended=state.has_ended)
                news.is_new = is_new
                news.is_continued = is_new and channel.begun is not None and channel.begun.is_continued
                await self._responses.put(Response(input=news))
            else:
                await self._wake.wait()

    async def _tell_closed(self, key: RankKey, problem: str) -> None:
        """Say why nothing can be typed, once for each why."""
        if problem != self._told_problem:
            self._told_problem = problem
            await self._responses.put(Response(input=Input(attempt=key.attempt, problem=problem)))

    def _place(self) -> Place | None:
        """Where the process is that is typed to; None while none runs."""
        job = self.engine.view.durable.jobs.get(self.person.job)
        attempt = None if job is None else job.attempt
        if attempt is None:
            return None
        rank = attempt.ranks[0]
        if rank.started_at is None or rank.exit is not None:
            return None
        return rank.placement.node, attempt.keys(self.person.job)[0]

    # --- up from the person

    async def _read(
        self, first: Request, requests: AsyncIterator[Request], keyboard: Keyboard, typing: asyncio.Task[None]
    ) -> None:
        """Take what is typed; when no more will come, and all of it is there, somebody else may type."""
        self._arrived.set()
        if first.WhichOneof("body") != "start":
            await self._take(first)
        async for request in requests:
            await self._take(request)
        await self._arrived.wait()
        self.keyboards.leave(self.person.job, keyboard)
        typing.cancel()

    async def _take(self, request: Request) -> None:
        if request.stdin_offset < 0:
            raise invalid("stdin_offset", f"is {request.stdin_offset}; offsets count from 0")
        match request.WhichOneof("body"):
            case "stdin":
                if len(request.stdin) > PIECE_BYTES_MAX:
                    raise invalid("stdin", f"holds {len(request.stdin):,} bytes; at most {PIECE_BYTES_MAX:,} a message")
                await self._pass_on(Chunk(offset=request.stdin_offset, data=request.stdin))
            case "stdin_end":
                if self.person.has_terminal:
                    raise invalid("stdin_end", "goes with a pipe; this is a terminal", next_step="type Ctrl-D, 0x04")
                await self._pass_on(Chunk(offset=request.stdin_offset, is_end=request.stdin_end))
            case "size":
                self._size = checked_size(request.size, "size")
                if self._channel is not None:
                    await self._channel.put(Chunk(size=self._size))
            case "signal":
                if not 1 <= request.signal <= SIGNAL_MAX:
                    raise invalid("signal", f"is {request.signal}; it must be 1 to {SIGNAL_MAX}")
                await until_started(self.engine, self.changes, self.person.job, START_WAIT_SECONDS_MAX)
                await self.send_signal(request.signal)
            case "start":
                raise invalid("start", "belongs into the first message only")
            case None:
                pass

    async def _pass_on(self, chunk: Chunk) -> None:
        """Wait for a channel; nothing more is read from the caller meanwhile."""
        self._arrived.clear()
        await self._is_open.wait()
        self._passed_on = chunk
        if self._channel is not None:
            await self._channel.put(chunk)


async def serve_channel(
    channels: Channels, requests: AsyncIterator[node_agent_pb2.OpenChannelRequest], context: Any
) -> None:
    """OpenChannel: what its agent says up, pieces down, until either side has enough."""
    first = await anext(requests, None)
    channel = channels.asked_for(first.channel_id) if first is not None else None
    if first is None or channel is None:
        raise invalid("channel_id", "is not one that this scheduler asked for", next_step="wait for an OpenChannel")
    channel.take(first.input)

    async def read() -> None:
        async for request in requests:
            channel.take(request.input)

    async def write() -> None:
        while (piece := await channel.next_piece()) is not None:
            await context.write(node_agent_pb2.OpenChannelResponse(input=piece))

    reader = asyncio.create_task(read(), name="channel-up")
    writer = asyncio.create_task(write(), name="channel-down")
    try:
        done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        channel.close()
        reader.cancel()
        await let_end(writer, reader)
