"""The fleet and its jobs for programs without asyncio: the same calls, run on the process's own loop thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from gpufleet.fleet.inside.executing import Executed
from gpufleet.fleet.settings import Settings

from .fleet import PAGE_SIZE, AsyncFleet
from .job import AsyncJob
from .job_view import JobFile, JobView
from .loop_thread import LoopThread, loop_thread
from .options import SubmitOptions

T = TypeVar("T")
R = TypeVar("R")


class Fleet:
    """A fleet. Made by `gpufleet.connect`; may be used from any thread. Each call may raise GpufleetError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: tuple[LoopThread, AsyncFleet] | None = None

    @property
    def settings(self) -> Settings:
        """Where the scheduler is and who asks."""
        return self._settings

    @overload
    def submit(
        self,
        command: Sequence[str] | str,
        *,
        request_id: str | None = None,
        dry_run: Literal[False] = False,
        **options: Unpack[SubmitOptions],
    ) -> Job: ...

    @overload
    def submit(
        self,
        command: Sequence[str] | str,
        *,
        request_id: str | None = None,
        dry_run: Literal[True],
        **options: Unpack[SubmitOptions],
    ) -> JobView: ...

    def submit(
        self,
        command: Sequence[str] | str,
        *,
        request_id: str | None = None,
        dry_run: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Job | JobView:
        """Submit a job, with its files and its folder; answers once the scheduler has stored it.

        `command` is a program and its arguments, or a line for the shell. `options` are those of `gpuctl submit` by
        their words: `time_limit="4h"` for `--time-limit 4h`; with `array` the answer is the array. The same
        `request_id` is never done twice. Raises GpufleetError where it is refused, and nothing was changed. With
        `dry_run` nothing is changed or uploaded: the answer is what the job would be, its id 0, and `why_it_waits`.

            job = fleet.submit(["python", "train.py"], gpus=2, upload=".", time_limit="4h")
        """
        if dry_run:
            return self._run(self._own.submit(command, request_id=request_id, dry_run=True, **options))
        return Job(self, self._run(self._own.submit(command, request_id=request_id, **options)))

    def job(self, which: int | str = "last") -> Job:
        """A job by its id, `41.3` for an item of an array, `last` for your newest, or its name."""
        return Job(self, self._run(self._own.job(which)))

    def jobs(
        self,
        *,
        mine: bool = False,
        user: str = "",
        name: str = "",
        state: str | Sequence[str] = (),
        label: Mapping[str, str] | None = None,
        with_ended: bool = False,
        limit: int = PAGE_SIZE,
    ) -> list[Job]:
        """Jobs that wait or run, in the order of the queue, and with `with_ended` those that have ended behind them.

        An array is one job. `state` is one or several of queued, held, starting, running, stopping, succeeded, failed,
        cancelled, timed_out.
        """
        work = self._own.jobs(
            mine=mine, user=user, name=name, state=state, label=label, with_ended=with_ended, limit=limit
        )
        return [Job(self, each) for each in self._run(work)]

    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        in_order: bool = True,
        return_exceptions: bool = False,
        chunk_size: int = 1,
        python: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Generator[R, None, None]:
        """What the function gives for each item, each call on a node of the fleet.

        The calls are items of an array, submitted at once. Results come in the order of the items, or with
        `in_order=False` as they come. An exception of a call is raised in its place, with the traceback of the node as
        its cause; with `return_exceptions` it is given as a value, and the others follow. A call that takes its process
        along (a kill, too little memory) raises TaskFailed, and costs itself alone. `chunk_size` calls share a process,
        for many small ones. To leave early, also by Ctrl-C, cancels what has not ended.

        `python` is the interpreter on the nodes, by default this one's path; it must be of the same minor version.
        `options` are those of `submit`, for each process: `gpus=1` is a GPU for each. What the function imports must be
        there, or in the folder that goes along: `upload="."`.

            squares = list(fleet.map(lambda number: number * number, range(10), cpus=1))
        """
        from .gathering import Calls

        calls = Calls(self._own, [(function, (item,), {}) for item in items], options, python, chunk_size)
        thread = self._thread
        thread.run(calls.submit())
        return self._values(thread, calls, in_order, return_exceptions)

    def _values(
        self, thread: LoopThread, calls: Any, in_order: bool, return_exceptions: bool
    ) -> Generator[Any, None, None]:
        for outcome in thread.iterate(calls.run(in_order=in_order)):
            if outcome.error is None:
                yield outcome.value
            elif return_exceptions:
                yield outcome.error
            else:
                raise outcome.error

    def close(self) -> None:
        """End the connection. Jobs go on."""
        if self._made is not None:
            thread, fleet = self._made
            self._made = None
            if thread is loop_thread():
                thread.run(fleet.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._settings.where}>"

    @property
    def _thread(self) -> LoopThread:
        return loop_thread()

    @property
    def _own(self) -> AsyncFleet:
        """The fleet of this process's loop."""
        thread = loop_thread()
        if self._made is None or self._made[0] is not thread:
            self._made = (thread, AsyncFleet(self._settings))
        return self._made[1]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)


class Job(JobView):
    """A job of a `Fleet`. Each call may raise GpufleetError."""

    def __init__(self, fleet: Fleet, job: AsyncJob) -> None:
        super().__init__(job.record)
        self._fleet = fleet
        self._job = job

    def refresh(self) -> Job:
        """Ask what is known of it now."""
        self._run(self._own.refresh())
        return self

    def wait(self, timeout_s: float | None = None, *, check: bool = False) -> int:
        """Its exit code, once it has ended; of an array the highest of its items'.

        Raises TimeoutError after `timeout_s`, and with `check` JobFailed where it did not succeed. A scheduler that is
        away is waited for, as long as gpuctl would. No job ends because nobody waits.
        """
        return self._run(self._own.wait(timeout_s, check=check))

    def logs(
        self,
        *,
        follow: bool = False,
        tail: int | None = None,
        rank: int | None = None,
        stream: Literal["stdout", "stderr"] | None = None,
        attempt: int = 0,
        setup: bool = False,
    ) -> Generator[str, None, None]:
        """What it writes, line by line with their ends, both streams as they come; of several ranks each as `[1] …`.

        With `follow` to its end, through lost connections; else what there is. `tail` is the newest so many lines. With
        `setup` it is what makes the job's environment, of rank 0 where none is named; following ends as it runs.
        """
        own = self._own
        lines = own.logs(follow=follow, tail=tail, rank=rank, stream=stream, attempt=attempt, setup=setup)
        try:
            yield from loop_thread().iterate(lines)
        finally:
            self.record = own.record

    def files(self) -> list[JobFile]:
        """What it left of what `download` chooses: of a job that has ended all of it, once that is stored.

        Of an array what all of its items left.
        """
        return self._run(self._own.files())

    def download(self, path: str = "", target: str | Path = ".", *, rank: int | None = None) -> list[Path]:
        """Bring here a file, a folder or, without a path, all that it left, once it has ended; answers where they lie.

        A target that is a folder, or ends with /, gets the file under its name. What was cut goes on where it was. Each
        rank of a job on several nodes, but for one `rank`, and each item of an array gets a folder in the target:
        `rank-0`, `item-1`. Where files of some are missing it raises FILE_NOT_FOUND, and the others are there.
        """
        return self._run(self._own.download(path, target, rank=rank))

    def cancel(self, reason: str = "") -> None:
        """Stop it: SIGTERM, then SIGKILL when its grace is over. One that has ended stays as it is."""
        self._run(self._own.cancel(reason))

    def signal(self, signal: str | int) -> None:
        """Send each process of it a signal: `USR1`, `SIGINT`, or a number. Raises JOB_NOT_RUNNING where none runs."""
        self._run(self._own.signal(signal))

    def hold(self) -> None:
        """Keep it from starting until it is released."""
        self._run(self._own.hold())

    def release(self) -> None:
        """Let it start."""
        self._run(self._own.release())

    def requeue(self, reason: str = "") -> None:
        """Take it off its node and queue it again, in its old place."""
        self._run(self._own.requeue(reason))

    def items(self) -> list[Job]:
        """The items of an array as jobs, in the order of their indices."""
        return [Job(self._fleet, each) for each in self._run(self._own.items())]

    def exec(self, command: Sequence[str] | str, *, given: bytes = b"", rank: int = 0) -> Executed:
        """Run another command in the running job, and answer how it ended and what it wrote, in bytes.

        As `gpuctl exec`: on the job's node, as its user, in its folder, with its environment and GPUs. A command that
        is one text is a line for the shell. `given` is its standard input. It ends with the job, and when this is left.
        It may write 64 MiB. Raises JOB_NOT_RUNNING, MESSAGE_TOO_LARGE.

            print(job.exec("nvidia-smi").stdout.decode())
        """
        return self._run(self._own.exec(command, given=given, rank=rank))

    @contextmanager
    def forward(self, port: int, *, local: int = 0, rank: int = 0) -> Iterator[int]:
        """A port of this machine that leads to one of the running job, as long as the block lasts; its number.

        As `gpuctl forward`: at 127.0.0.1, by default at any that is free; `local` names it. While the job does not
        listen, connections are reset. Raises PORT_TAKEN, JOB_FINISHED, NOT_YOUR_JOB.

            with job.forward(8888) as port:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/")
        """
        thread, opened = loop_thread(), self._own.forward(port, local=local, rank=rank)
        here = thread.run(opened.__aenter__())
        try:
            yield here
        finally:
            thread.run(opened.__aexit__(None, None, None))

    @property
    def _own(self) -> AsyncJob:
        """The job of this process's loop."""
        self._job = AsyncJob(self._fleet._own, self.record)
        return self._job

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._fleet._run(work)
        finally:
            self.record = self._job.record
