"""Whatever a stream or a question ends with: following goes on by its time-outs, or ends with one clear error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import create_autospec

import grpc
import grpc.aio
import pytest
from google.protobuf.empty_pb2 import Empty

from gpufleet.config.cli_settings import load_cli
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import AsyncClient, may_pass, understood
from gpufleet.fleet.following.core import TimeOuts
from gpufleet.fleet.following.feeds import MessageKind
from gpufleet.fleet.following.shell import FollowingEnd, follow
from gpufleet.fleet.settings import Settings
from gpufleet.net.status import from_rpc_error
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, job

BOUND_S = 30.0
"""Far beyond what any of these takes: reaching it means that following hangs."""

LIMITS = TimeOuts(connection_s=1000.0, max_wait_s=5000.0, unanswered_max=3, session_s=20000.0)


class CoresBatchError(grpc.aio.InternalError):
    """Like the private error that grpc.aio raises when Core takes a batch of operations no more."""


def rpc_error(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Socket closed")


PASSING: list[BaseException] = [
    rpc_error(grpc.StatusCode.UNAVAILABLE),
    rpc_error(grpc.StatusCode.CANCELLED),
    rpc_error(grpc.StatusCode.INTERNAL),
    CoresBatchError('Failed "execute_batch": (<ReceiveInitialMetadataOperation>,)'),
    asyncio.InvalidStateError("RPC already finished."),
    asyncio.CancelledError(),
    BaseExceptionGroup("tasks", [asyncio.CancelledError(), rpc_error(grpc.StatusCode.UNAVAILABLE)]),
    ExceptionGroup("tasks", [ExceptionGroup("inner", [CoresBatchError("late")])]),
    GpufleetError(Reason.SCHEDULER_UNREACHABLE),
]

LASTING: list[tuple[BaseException, type[Exception]]] = [
    (rpc_error(grpc.StatusCode.PERMISSION_DENIED), GpufleetError),
    (GpufleetError(Reason.JOB_NOT_FOUND, "there is no job 99"), GpufleetError),
    (grpc.aio.UsageError("Channel is closed."), grpc.aio.UsageError),
    (RuntimeError("async generator raised StopAsyncIteration"), RuntimeError),
    (KeyError(99), KeyError),
    (ExceptionGroup("tasks", [CoresBatchError("late"), ValueError("a fault of ours")]), ValueError),
]


@dataclass
class Scripted:
    """A feed whose streams and questions end as they are told, one after the other; the last stream brings the end."""

    streams: list[BaseException | None]
    questions: list[BaseException | bool] = field(default_factory=list)
    taken: list[Any] = field(default_factory=list)
    opened: int = 0
    asked: int = 0
    is_silent: bool = False
    ends_with_stream: bool = False
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self) -> AsyncIterator[Any]:
        self.opened += 1
        self.is_open.set()
        if self.is_silent:
            await asyncio.Event().wait()
        if self.streams:
            failure = self.streams.pop(0)
            if failure is None:
                yield None
                return
            raise failure
        yield "the end"

    async def ask(self) -> bool:
        self.asked += 1
        answer = self.questions.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def take(self, message: Any) -> MessageKind:
        self.taken.append(message)
        return MessageKind.END

    def forgives(self, problem: GpufleetError) -> bool:
        return False


def followed(feed: Scripted, limits: TimeOuts = LIMITS) -> FollowingEnd:
    async def run() -> FollowingEnd:
        async with asyncio.timeout(BOUND_S):
            return await follow(feed, limits, from_rpc_error)

    return asyncio.run(run())


def named(failure: Any) -> str:
    return type(failure).__name__ if isinstance(failure, BaseException) else ""


@pytest.mark.parametrize("failure", PASSING, ids=named)
def test_a_stream_that_is_lost_in_any_way_is_opened_again(failure: BaseException) -> None:
    feed = Scripted([failure, failure])
    assert followed(feed) is FollowingEnd.DONE
    assert (feed.opened, feed.taken) == (3, ["the end"])


@pytest.mark.parametrize("failure", PASSING, ids=named)
def test_streams_that_are_lost_for_ever_end_by_the_time_outs(failure: BaseException) -> None:
    feed = Scripted([failure] * 1000, [failure] * 1000)
    limits = TimeOuts(connection_s=0.05, max_wait_s=1.0, unanswered_max=3, session_s=BOUND_S)
    assert followed(feed, limits) is FollowingEnd.UNANSWERED
    assert feed.opened > 1 and not feed.taken


@pytest.mark.parametrize(("failure", "kind"), LASTING, ids=named)
def test_a_refusal_and_a_fault_of_ours_end_following_with_that_one_error(
    failure: BaseException, kind: type[Exception]
) -> None:
    feed = Scripted([failure])
    with pytest.raises(kind) as caught:
        followed(feed)
    assert not isinstance(caught.value, BaseExceptionGroup) and feed.opened == 1


def test_a_message_that_cannot_be_decoded_is_told_and_not_asked_for_again() -> None:
    feed = Scripted([None])
    with pytest.raises(GpufleetError, match="cannot read") as caught:
        followed(feed)
    assert "gpuctl version" in caught.value.next_step and feed.opened == 1


@pytest.mark.parametrize("failure", PASSING, ids=named)
def test_a_question_that_is_lost_is_asked_again(failure: BaseException) -> None:
    feed = Scripted([], [failure, True], is_silent=True)
    limits = TimeOuts(connection_s=0.05, max_wait_s=0.05, unanswered_max=5, session_s=BOUND_S)
    assert followed(feed, limits) is FollowingEnd.DONE
    assert feed.asked == 2


@pytest.mark.parametrize(("failure", "kind"), LASTING, ids=named)
def test_a_question_that_is_refused_ends_following(failure: BaseException, kind: type[Exception]) -> None:
    feed = Scripted([], [failure], is_silent=True)
    limits = TimeOuts(connection_s=0.05, max_wait_s=0.05, unanswered_max=5, session_s=BOUND_S)
    # Of an RpcError the client makes a GpufleetError before the feed hears of it; both come out the same.
    with pytest.raises(kind):
        followed(feed, limits)


def test_a_status_that_cannot_be_translated_is_told_as_the_fault_that_it_is() -> None:
    def translate(problem: grpc.RpcError) -> GpufleetError:
        raise LookupError("a status like no other")

    assert isinstance(understood(rpc_error(grpc.StatusCode.UNKNOWN), translate), LookupError)


def test_what_ends_the_program_is_no_failure_of_a_call() -> None:
    with pytest.raises(KeyboardInterrupt):
        understood(KeyboardInterrupt(), lambda problem: GpufleetError(Reason.UNKNOWN))


def test_who_is_told_to_leave_leaves_and_opens_nothing_again() -> None:
    async def run() -> int:
        feed = Scripted([], is_silent=True)
        following = asyncio.create_task(follow(feed, LIMITS, from_rpc_error))
        async with asyncio.timeout(BOUND_S):
            await feed.is_open.wait()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        return feed.opened

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize("failure", [each for each in PASSING if not isinstance(each, BaseExceptionGroup)], ids=named)
def test_a_single_call_that_is_lost_in_any_way_is_an_error_that_may_pass(failure: BaseException) -> None:
    async def method(request: Any, timeout: float, metadata: Any) -> Any:
        raise failure

    client = AsyncClient(Settings(load_cli({})), create_autospec(grpc.aio.Channel))
    with pytest.raises(GpufleetError) as caught:
        asyncio.run(client.call(method, Empty()))  # type: ignore[arg-type]  # called like one of grpc's
    assert may_pass(caught.value)


def test_logs_of_several_jobs_tell_one_of_several_failures(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.jobs = {1: job(1)}

    async def fail(*_: Any, **__: Any) -> FollowingEnd:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("cli.logs.jobs.follow", fail)
    done = gpuctl("logs", "-f", "1", "2")
    assert done.code == 1 and "RuntimeError: a fault of ours" in done.err
    assert "Traceback" not in done.err and "ExceptionGroup" not in done.err
