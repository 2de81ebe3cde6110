"""The keyboard of an attached session, or whatever else standard input is.

On a terminal, for a job with a terminal, keys go to the job as they are typed, from the moment at which it can take
them; `~.` at the beginning of a line detaches. Everything else is passed on as it comes, and its end is the input's.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.async_client import AsyncClient
from gpufleet.fleet.following.feeds import Feed, MessageKind
from gpufleet.fleet.following.output import OutputFeed

from ..following.writers import Plain, Streams
from .escape import HELP, Escape, EscapeFilter, Modes
from .terminal import RawTerminal, Source, has_terminal
from .window import InputWindow

Request = scheduler_pb2.AttachJobRequest
Response = scheduler_pb2.AttachJobResponse


class AttachFeed(Feed[Response]):
    """One attached session over all its connections."""

    def __init__(
        self,
        client: AsyncClient,
        job_id: int,
        output: OutputFeed,
        window: InputWindow,
        *,
        size: Callable[[], job_pb2.TerminalSize | None],
        on_news: Callable[[scheduler_pb2.AttachedInput, int], None],
        take_over: bool = False,
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._output = output
        self._window = window
        self._size = size
        self._on_news = on_news
        self._take_over = take_over
        self._session = uuid.uuid4().hex
        self._wake = asyncio.Event()
        self._has_new_size = False

    def typed(self) -> None:
        """There is something to send."""
        self._wake.set()

    def resized(self) -> None:
        """The terminal has another size."""
        self._has_new_size = True
        self._wake.set()

    async def open(self) -> AsyncIterator[Response]:
        """A call that goes on where the last one broke off."""
        self._window.lost()
        call = self._client.scheduler.AttachJob()
        writer = asyncio.create_task(self._write(call))
        try:
            async for response in call:
                yield response
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    async def ask(self) -> bool:
        """Whether the job lives."""
        return await self._output.ask()

    def take(self, message: Response) -> MessageKind:
        """Write what is new of the output; send what there is room for."""
        self._take_over = False  # it is ours now: after a lost connection it is not taken from anybody again
        match message.WhichOneof("body"):
            case "output":
                return self._output.take(message.output)
            case "input":
                self._hear(message.input)
                return MessageKind.NEWS
            case _:
                return MessageKind.SIGN_OF_LIFE

    def forgives(self, problem: GpufleetError) -> bool:
        """Whether the call can be made again after this refusal."""
        return self._output.forgives(problem)

    def _hear(self, told: scheduler_pb2.AttachedInput) -> None:
        gone = self._window.heard(told)
        self._wake.set()
        self._on_news(told, gone)

    async def _write(self, call: Any) -> None:
        try:
            await call.write(self._first())
            while True:
                self._wake.clear()
                request = self._next()
                if request is not None:
                    await call.write(request)
                else:
                    await self._wake.wait()
        except asyncio.InvalidStateError:
            pass  # whoever reads the call hears why it ended

    def _first(self) -> Request:
        self._has_new_size = False
        start = scheduler_pb2.AttachStart(
            attachment_id=self._session, take_over=self._take_over, size=self._size(), output=self._output.request()
        )
        return Request(job_id=self._job_id, start=start)

    def _next(self) -> Request | None:
        if self._has_new_size:
            self._has_new_size = False
            size = self._size()
            if size is not None:
                return Request(size=size)
        piece = self._window.next()
        if piece is None:
            return None
        if piece.data:
            return Request(stdin=piece.data, stdin_offset=piece.offset)
        return Request(stdin_end=True, stdin_offset=piece.offset)


STDIN, STDOUT = 0, 1
END_KEY = b"\x04"
"""Ctrl-D: what the end of a pipe is to a job that has a terminal."""

WAITING_STATES = frozenset({job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_HELD, job_pb2.JOB_STATE_STARTING})


class Keyboard:
    """One session's input. A context: however it is left, the terminal is as it was."""

    def __init__(
        self,
        job: job_pb2.Job,
        streams: Streams,
        *,
        on_detach: Callable[[], None],
        on_hang_up: Callable[[], None],
        take_over: bool,
    ) -> None:
        self._job = job
        self._streams = streams
        self._on_detach = on_detach
        self._on_hang_up = on_hang_up
        self._take_over = take_over
        self._job_has_terminal = job.spec.input == job_pb2.INPUT_MODE_TERMINAL
        self._is_raw = self._job_has_terminal and has_terminal(STDIN, STDOUT)
        self._terminal = RawTerminal(STDIN)
        self._escape = EscapeFilter()
        self._modes = Modes()
        self._window = InputWindow()
        self._source = Source(STDIN, self._on_bytes, self._room_bytes)
        self._feed: AttachFeed | None = None

    def hint(self) -> str:
        """How to get away, for when the job runs."""
        return "; ~. at the beginning of a line detaches" if self._is_raw else ""

    @property
    def is_raw(self) -> bool:
        """Whether keys go to the job at this moment, Ctrl-C too."""
        return self._terminal.is_raw

    def feed(self, client: AsyncClient, output: OutputFeed) -> AttachFeed:
        """The call that brings the output and takes what is typed."""
        self._feed = AttachFeed(
            client,
            self._job.id,
            output,
            self._window,
            size=self._terminal.size if self._is_raw else lambda: None,
            on_news=self._on_news,
            take_over=self._take_over,
        )
        return self._feed

    def shown(self, data: bytes) -> None:
        """The job has shown this on the terminal."""
        if self._is_raw:
            self._modes.feed(data)

    def job_changed(self, job: job_pb2.Job) -> None:
        """While the job waits, keys are our own again: Ctrl-C is the way out."""
        if job.state in WAITING_STATES:
            self._rest()

    def __enter__(self) -> Self:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        if self._is_raw:
            self._terminal.show_raw()
            self._streams.is_raw = True
            loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
            loop.add_signal_handler(signal.SIGCONT, self._on_continue)
        elif not has_terminal(STDIN):
            self._source.want(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        self._source.want(False)
        if self._is_raw:
            self._rest()
            self._streams.end_line()
            self._streams.is_raw = False
            self._terminal.leave()
            loop = asyncio.get_running_loop()
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGCONT)

    def _rest(self) -> None:
        undone = self._modes.undo()
        if undone:
            self._streams.write(job_pb2.STREAM_STDOUT, undone)
        if self._terminal.is_raw:
            self._source.want(False)
            self._terminal.show_raw()

    def _room_bytes(self) -> int:
        # One byte of room may be needed for a tilde that was held back.
        return max(0, self._window.room_bytes - 1)

    def _on_news(self, news: scheduler_pb2.AttachedInput, gone: int) -> None:
        if news.is_open and news.is_new:
            self._begin()
        if gone:
            self._streams.note(f"{gone:,} typed bytes went to what is gone")
        if news.problem:
            self._streams.note(f"nothing can be typed for now: {news.problem}" + ("; ~. leaves" if self.is_raw else ""))
        if news.is_open and news.has_ended:
            self._source.want(False)
        self._source.look()

    def _begin(self) -> None:
        """The job can be typed to from now on, or again."""
        if self._is_raw:
            self._terminal.enter()
        self._source.want(True)

    def _on_bytes(self, data: bytes) -> None:
        if not self._is_raw:
            if data:
                self._window.put(data)
            else:
                self._end()
        elif not data:
            self._on_hang_up()  # the terminal is gone, and so is whoever typed
        else:
            self._on_keys(data)
        if self._feed is not None:
            self._feed.typed()

    def _on_keys(self, data: bytes) -> None:
        passed, asked = self._escape.feed(data)
        self._window.put(passed)
        if asked is Escape.DETACH:
            self._on_detach()
        elif asked is Escape.HELP:
            self._streams.note(HELP)

    def _end(self) -> None:
        if self._job_has_terminal:
            self._window.put(END_KEY)
        else:
            self._window.end()

    def _on_resize(self) -> None:
        if self._feed is not None:
            self._feed.resized()

    def _on_continue(self) -> None:
        """The shell has had the terminal for itself."""
        if self._terminal.is_raw:
            self._terminal.enter()
        self._on_resize()


class Watched:
    """Output as the job wrote it; who is told of it first knows what it does to the terminal."""

    def __init__(self, streams: Streams, on_shown: Callable[[bytes], None]) -> None:
        self._plain = Plain(streams)
        self._on_shown = on_shown

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Tell of the bytes and pass them on."""
        self._on_shown(data)
        self._plain.write(rank, stream, data)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._plain.note(text)

    def has_ranks(self, count: int) -> None:
        """Of several ranks it is rank 0 that is typed to, and what it draws is not to be broken into lines."""

    def finish(self) -> None:
        """Nothing is kept back."""
        self._plain.finish()


def input_mode() -> job_pb2.InputMode.ValueType:
    """What a new job's input is to be: a terminal when there is one here for it to be shown on."""
    return job_pb2.INPUT_MODE_TERMINAL if has_terminal(STDIN, STDOUT) else job_pb2.INPUT_MODE_PIPE
