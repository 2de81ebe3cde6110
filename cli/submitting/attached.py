"""`run`, `shell`, `attach`: stay with a job. Its output is ours, its exit code is ours, and Ctrl-C reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import AsyncClient, connected_async
from gpufleet.fleet.client import BegunCall
from gpufleet.fleet.exit_codes import OWN_FAILURE, SIGNALLED
from gpufleet.fleet.following.core import SECOND_WITHIN_S, Interrupts, Meaning, TimeOuts
from gpufleet.fleet.following.output import OutputFeed, OutputRequest, Writer
from gpufleet.fleet.following.shell import FollowingEnd, follow
from gpufleet.fleet.outcome import has_ended
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.requests import in_options, new_request_id, outcome_unknown

from ..errors import INTERRUPTED
from ..following.writers import Plain, Streams
from .interrupted import tell_interrupted
from .progress import Progress, bring_back, code_of_end, how_to_follow
from .tracing import Tracing, tracing

if TYPE_CHECKING:
    from gpufleet.fleet.inside.ports import Listening

    from ..attaching.keyboard import Keyboard
    from .first_moments import FirstMoments

CANCEL_REASON = "interrupted in gpuctl run"

CANCEL_HEARD_S_MAX = 5.0
"""Who cancels and leaves at once waits so long at most for the cancel to be heard: it is not to be lost by that."""


async def run_attached(
    settings: Settings,
    request: scheduler_pb2.SubmitRequest,
    limits: TimeOuts,
    ports: Sequence[Listening] = (),
    *,
    begun: BegunCall[scheduler_pb2.SubmitResponse] | None = None,
    page: str | None = None,
    opens: bool = False,
) -> int:
    """Submit one job, follow it to its end and answer its exit code. `ports` here lead to the job's meanwhile.

    `begun` is its submit, where that is on its way already. `page` is what is to be seen at the first of the ports,
    behind its address; it is said, and with `opens` a browser is opened on it, as soon as the job answers.
    """
    with tracing() as trace:
        return await _run_attached(settings, request, limits, trace, ports, begun, page, opens=opens)


async def go_on(settings: Settings, request: scheduler_pb2.SubmitRequest, limits: TimeOuts, first: FirstMoments) -> int:
    """Follow a job on, from where its first moments ended."""
    async with connected_async(settings) as client:
        session = Attached(client, first.job, limits, first=first)
        return await _run_to_its_end(settings, request, session, first.job.id, session.run())


async def _run_attached(
    settings: Settings,
    request: scheduler_pb2.SubmitRequest,
    limits: TimeOuts,
    trace: Tracing,
    ports: Sequence[Listening],
    begun: BegunCall[scheduler_pb2.SubmitResponse] | None,
    page: str | None,
    *,
    opens: bool,
) -> int:
    async with connected_async(settings) as client:
        try:
            with trace.submitting("gpuctl run", request) as metadata:
                answer = await client.call_again(client.scheduler.Submit, request, metadata=metadata, begun=begun)
        except GpufleetError as problem:
            raise in_options(outcome_unknown(problem, request.request_id)) from None
        except asyncio.CancelledError:
            tell_interrupted()
            raise
        session = Attached(client, answer.job, limits)
        for note in answer.notes:
            session.say(note)
        running = _run_with_ports(client, session, answer.job.id, ports, page, opens=opens) if ports else session.run()
        return await _run_to_its_end(settings, request, session, answer.job.id, running)


async def _run_to_its_end(
    settings: Settings,
    request: scheduler_pb2.SubmitRequest,
    session: Attached,
    job_id: int,
    running: Coroutine[Any, Any, int],
) -> int:
    code = await running
    if session.has_ended and request.specs[0].results:
        return await asyncio.to_thread(bring_back, settings, job_id, code, session.say)
    return code


async def _run_with_ports(
    client: AsyncClient, session: Attached, job_id: int, ports: Sequence[Listening], page: str | None, *, opens: bool
) -> int:
    from gpufleet.fleet.inside.forwarding import Forwarding, leads_to

    from ..inside.showing import showing

    forwarding = Forwarding(client, job_id, 0, session.say)
    async with forwarding.serve(ports):
        for each in ports:
            session.say(leads_to(each, job_id))
        async with showing(forwarding, ports[0], page, session.say, opens=opens) if page else contextlib.nullcontext():
            return await session.run()


async def attach_again(
    settings: Settings, job_id: int, limits: TimeOuts, *, tail_lines: int | None, take_over: bool
) -> int:
    """Come back to a job that somebody can type to, follow it to its end and answer its exit code."""
    async with connected_async(settings) as client:
        job = (await client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id))).job
        if has_ended(job):
            raise GpufleetError(
                Reason.JOB_FINISHED,
                f"job {job_id} has ended",
                next_step=f"See its output with: gpuctl logs {job_id} · how it ended: gpuctl job {job_id}",
            )
        if not job.spec.input:
            raise GpufleetError(
                Reason.JOB_HAS_NO_INPUT,
                f"job {job_id} was submitted without a standard input",
                next_step=f"See its output with: gpuctl logs -f {job_id}",
            )
        return await Attached(client, job, limits, tail_lines=tail_lines, take_over=take_over).run()


class Attached:
    """One attached session. A job with an input gets ours; one whose `first` moments are over goes on from there."""

    def __init__(
        self,
        client: AsyncClient,
        job: job_pb2.Job,
        limits: TimeOuts,
        *,
        tail_lines: int | None = None,
        take_over: bool = False,
        first: FirstMoments | None = None,
    ) -> None:
        self._client = client
        self._job = job
        self._limits = limits
        self._has_terminal = sys.stdin.isatty() or sys.stderr.isatty()
        self._interrupts = Interrupts(self._has_terminal)
        self._signals: Sequence[signal.Signals] = ()
        """Those that came before."""
        self._since: float | None = None
        """When the session began; None for now."""
        self._keyboard: Keyboard | None = None
        if first is None:
            self._streams = Streams()
            self._progress, self._output = self._begun(job, tail_lines, take_over=take_over)
        else:
            self._streams, self._progress, self._output = first.streams, first.progress, first.output
            self._output.client, self._output.on_job = client, self._on_job
            self._signals, self._since = first.signals, first.began_at
        self._left_with: asyncio.Future[tuple[int, str]]
        self._errands: set[asyncio.Task[None]] = set()
        self._cancelling: asyncio.Task[None] | None = None
        self._is_being_cancelled = False
        """Whether the scheduler has said so."""
        self._tells_setup = False
        self._setup_told = 0
        """Number of the line of its story that was said last."""

    def _begun(self, job: job_pb2.Job, tail_lines: int | None, *, take_over: bool) -> tuple[Progress, OutputFeed]:
        writer: Writer = Plain(self._streams)
        hint: Callable[[], str] | None = None
        if job.spec.input:
            from ..attaching.keyboard import Keyboard, Watched

            self._keyboard = Keyboard(
                job,
                self._streams,
                on_detach=lambda: self._leave(0, "detached"),
                on_hang_up=lambda: self._on_leave(signal.SIGHUP),
                take_over=take_over,
            )
            writer = Watched(self._streams, self._keyboard.shown)
            hint = self._keyboard.hint
        wanted = OutputRequest(job_id=job.id, follow=True, tail_lines=tail_lines)
        output = OutputFeed(self._client, wanted, writer, on_job=self._on_job, known=job)
        return Progress(self.say, hint), output

    async def run(self) -> int:
        """Stay until the job ends, a time-out ends the session or the person leaves; answer the exit code."""
        loop = asyncio.get_running_loop()
        self._left_with = loop.create_future()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_leave, number)
        self._progress.tell(self._job)
        self._look_at_start()
        for number in self._signals:
            self._on_interrupt() if number is signal.SIGINT else self._on_leave(number)
        following = asyncio.create_task(self._follow())
        either: list[asyncio.Future[Any]] = [following, self._left_with]
        try:
            with self._keyboard or contextlib.nullcontext():
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._left_with.done():
                code, why = self._left_with.result()
                if self._cancelling is not None:
                    await asyncio.wait([self._cancelling], timeout=CANCEL_HEARD_S_MAX)
                self.say(self._how_to_follow(why))
                return code
            return self._code_of_end(following.result())
        except Exception:
            self.say(self._how_to_follow("left"))
            raise
        finally:
            for task in (following, *self._errands):
                task.cancel()
            await asyncio.gather(following, *self._errands, return_exceptions=True)

    async def _follow(self) -> FollowingEnd:
        translated = self._client.translated
        if self._keyboard is None:
            return await follow(self._output, self._limits, translated, on_cut_off=self._on_cut_off, since=self._since)
        feed = self._keyboard.feed(self._client, self._output)
        return await follow(feed, self._limits, translated, on_cut_off=self._on_cut_off)

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, for all that is known."""
        return has_ended(self._output.job or self._job)

    def say(self, text: str) -> None:
        """A line of ours on stderr."""
        self._streams.note(text)

    def _code_of_end(self, ended: FollowingEnd) -> int:
        if ended is FollowingEnd.UNANSWERED:
            waited_s = self._limits.unanswered_max * self._limits.connection_s
            self.say(self._how_to_follow(f"the scheduler did not answer for {waited_s:g} s; giving up"))
            return OWN_FAILURE
        if ended is FollowingEnd.SESSION_OVER:
            self.say(self._how_to_follow(f"the session reached its {self._limits.session_s:g} s"))
            return OWN_FAILURE
        job = self._output.job or self._job
        code = code_of_end(job, self.say)
        is_cancelled = job.state == job_pb2.JOB_STATE_CANCELLED
        return INTERRUPTED if is_cancelled and self._interrupts.has_cancelled else code

    def _how_to_follow(self, why: str) -> str:
        job_id = self._job.id
        if self._is_being_cancelled:
            return f"{why}; job {job_id} is being cancelled. Wait for its end with: gpuctl wait {job_id}"
        if self._cancelling is not None and not self._cancelling.done():
            return f"{why}; whether job {job_id} is cancelled is not known. Do it with: gpuctl cancel {job_id}"
        return how_to_follow(job_id, why, has_input=self._keyboard is not None)

    def _on_interrupt(self) -> None:
        match self._interrupts.interrupted(time.monotonic()):
            case Meaning.FORWARD:
                self._run_errand(self._forward())
            case Meaning.CANCEL:
                self._cancelling = self._run_errand(self._cancel())
            case Meaning.LEAVE:
                self._leave(INTERRUPTED, "left")

    def _on_leave(self, number: signal.Signals) -> None:
        self._leave(SIGNALLED + number, f"left by {number.name}")

    def _leave(self, code: int, why: str) -> None:
        if not self._left_with.done():
            self._left_with.set_result((code, why))

    async def _forward(self) -> None:
        job_id = self._job.id
        again = f"Ctrl-C again within {SECOND_WITHIN_S:g} s cancels it"
        request = scheduler_pb2.SignalJobRequest(signal=signal.SIGINT, request_id=new_request_id())
        request.jobs.job_ids.append(job_id)
        try:
            answer = await self._client.call(self._client.scheduler.SignalJob, request)
        except GpufleetError as problem:
            self.say(f"job {job_id} did not get SIGINT: {problem.message}; {again}")
            return
        if answer.changes and not answer.changes[0].changed:
            self.say(f"job {job_id} did not get SIGINT: {answer.changes[0].message}; {again}")
        else:
            self.say(f"sent SIGINT to job {job_id}; {again}")

    async def _cancel(self) -> None:
        job_id = self._job.id
        leaves = "; Ctrl-C once more leaves" if self._has_terminal else ""
        self.say(f"cancelling job {job_id}{leaves}")
        request = scheduler_pb2.CancelRequest(reason=CANCEL_REASON)
        request.jobs.job_ids.append(job_id)
        try:
            await self._client.call_again(self._client.scheduler.Cancel, request)
        except GpufleetError as problem:
            self.say(f"job {job_id} was not cancelled: {problem.message}; cancel it with: gpuctl cancel {job_id}")
        else:
            self._is_being_cancelled = True

    def _run_errand(self, errand: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task

    def _on_job(self, job: job_pb2.Job) -> None:
        if self._keyboard is not None:
            self._keyboard.job_changed(job)
        self._progress.tell(job)
        self._job = job
        self._look_at_start()

    @property
    def _is_starting(self) -> bool:
        return self._job.state == job_pb2.JOB_STATE_STARTING

    def _look_at_start(self) -> None:
        """Tell how far a start is, on a terminal, as long as it lasts."""
        if self._is_starting and not self._tells_setup and sys.stderr.isatty():
            self._tells_setup = True
            self._run_errand(self._tell_setup())

    async def _tell_setup(self) -> None:
        from .starting import tell_setup

        self._setup_told = await tell_setup(
            self._client, self._job.id, lambda: self._is_starting, self.say, self._setup_told
        )
        self._tells_setup = False

    def _on_cut_off(self, is_cut_off: bool) -> None:
        if is_cut_off:
            leave = "; ~. leaves" if self._keyboard is not None and self._keyboard.is_raw else ""
            self.say(f"the scheduler is away; job {self._job.id} goes on, and so does this when it is back{leave}")
        else:
            self.say("the scheduler is back")
