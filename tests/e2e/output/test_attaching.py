"""Typing to jobs through real processes: pipes and terminals, restarts of all that lies between, who may."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until
from tests.e2e.typist import Request, Typist

PIPE, TERMINAL = job_pb2.INPUT_MODE_PIPE, job_pb2.INPUT_MODE_TERMINAL
RUNNING = job_pb2.JOB_STATE_RUNNING


async def test_what_is_typed_to_a_pipe_arrives_and_the_exit_comes_back(person: Client) -> None:
    job_id = await person.submit("sh", "-c", "cat; exit 3", input=PIPE)
    async with Typist(person, job_id) as typist:
        await typist.type(b"hello\n")
        await typist.shows(b"hello\n")
        await typist.type(b"bye")
        await typist.end_input()
        await typist.end()
    assert typist.shown == b"hello\nbye"
    assert typist.exit == job_pb2.ExitStatus(code=3)
    assert typist.job.state == job_pb2.JOB_STATE_FAILED
    assert await person.stdout(job_id) == b"hello\nbye"


async def test_a_terminal_has_the_size_of_whoever_attached_and_changes_with_it(person: Client) -> None:
    job_id = await person.submit("sh", input=TERMINAL)
    size = job_pb2.TerminalSize(columns=132, rows=50)
    async with Typist(person, job_id, size=size) as typist:
        await typist.type(b"stty size\n")
        after = await typist.shows(b"50 132\r\n")
        await typist.send(size=job_pb2.TerminalSize(columns=90, rows=20))
        await typist.type(b"stty size\n")
        await typist.shows(b"20 90\r\n", after)
        await typist.type(b"exit 5\n")
        await typist.end()
    assert typist.exit == job_pb2.ExitStatus(code=5)


async def test_a_signal_of_the_attached_session_reaches_the_job(person: Client) -> None:
    script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.02; done"
    job_id = await person.submit("sh", "-c", script, input=PIPE)
    async with Typist(person, job_id) as typist:
        await typist.shows(b"ready\n")
        await typist.send(signal=10)
        await typist.end()
    assert b"got it\n" in typist.shown


async def test_who_attaches_before_the_job_runs_is_told_when_it_can_type(person: Client) -> None:
    job_id = await person.submit("cat", input=PIPE, is_held=True)
    async with Typist(person, job_id) as typist:
        # Sent too early, it waits on its way.
        await typist.send(stdin=b"early\n", stdin_offset=0)
        await typist.until("the held job", lambda: typist.job.state == job_pb2.JOB_STATE_HELD)
        request = scheduler_pb2.UpdateJobRequest()
        request.jobs.job_ids.append(job_id)
        request.update_mask.paths.append("is_held")
        await person.stub.UpdateJob(request)
        await typist.shows(b"early\n")
        assert typist.news[0].is_new
        await typist.send(stdin_end=True, stdin_offset=6)
        await typist.end()
    assert typist.exit == job_pb2.ExitStatus(code=0)


async def test_a_session_that_detaches_leaves_the_job_running_and_comes_back(person: Client) -> None:
    job_id = await person.submit("cat", input=TERMINAL)
    async with Typist(person, job_id) as typist:
        await typist.type(b"one\n")
        await typist.shows(b"one\r\none\r\n")
    assert (await person.job(job_id)).state == RUNNING
    async with Typist(person, job_id) as again:
        assert (await again.is_open()).is_continued
        assert again.offset == 4
        await again.shows(b"one\r\none\r\n")
        await again.type(b"two\n\x04")
        await again.end()
    assert await person.stdout(job_id) == b"one\r\none\r\ntwo\r\ntwo\r\n"


async def test_one_session_types_at_a_time_and_another_takes_over_when_it_says_so(person: Client) -> None:
    job_id = await person.submit("cat", input=PIPE)
    async with Typist(person, job_id) as mine:
        await mine.type(b"mine\n")
        async with Typist(person, job_id, "you") as yours:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await yours.end()
            assert from_rpc_error(caught.value).reason is Reason.INPUT_TAKEN
        async with Typist(person, job_id, "you", take_over=True) as yours:
            news = await yours.is_open()
            assert (news.offset, news.is_continued) == (5, False)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await mine.end()
            assert from_rpc_error(caught.value).reason is Reason.INPUT_TAKEN
            await yours.type(b"yours\n")
            await yours.end_input()
            await yours.end()
    assert await person.stdout(job_id) == b"mine\nyours\n"


async def test_the_same_session_over_a_new_connection_takes_the_place_of_its_old_one(person: Client) -> None:
    job_id = await person.submit("cat", input=PIPE)
    async with Typist(person, job_id) as old:
        await old.type(b"old\n")
        async with Typist(person, job_id) as new:
            assert (await new.is_open()).is_continued
            await old.end()
            # Nobody knows what arrived; so all is sent again, and taken once.
            await new.send(stdin=b"old\nnew\n", stdin_offset=0)
            new.offset = 8
            await new.end_input()
            await new.end()
    assert await person.stdout(job_id) == b"old\nnew\n"


async def test_when_the_caller_sends_no_more_somebody_else_may_type_and_the_output_goes_on(person: Client) -> None:
    job_id = await person.submit("cat", input=PIPE)
    async with Typist(person, job_id) as first:
        await first.type(b"first\n")
        await first._call.done_writing()
        await first.shows(b"first\n")

        async def second_may_type() -> None:
            async with Typist(person, job_id, "second") as second:
                await second.type(b"second\n")
                await second.end_input()
                await second.end()

        async def has_typed() -> bool:
            try:
                await second_may_type()
            except grpc.aio.AioRpcError as problem:  # the end of the first one's words may still be on its way
                assert from_rpc_error(problem).reason is Reason.INPUT_TAKEN
                return False
            return True

        await until("the second has typed", has_typed)
        await first.end()
    assert first.shown == b"first\nsecond\n"


async def test_a_caller_that_says_all_at_once_and_sends_no_more_is_heard_to_the_end(person: Client) -> None:
    job_id = await person.submit("sh", "-c", "sleep 0.2; cat", input=PIPE)
    pieces = [b"%05d" % number * 6_000 for number in range(10)]
    start = scheduler_pb2.AttachStart()
    requests = [Request(job_id=job_id, start=start)]
    requests += [Request(stdin=piece, stdin_offset=30_000 * number) for number, piece in enumerate(pieces)]
    requests.append(Request(stdin_end=True, stdin_offset=300_000))

    async def all_at_once() -> AsyncIterator[Request]:
        for request in requests:
            yield request

    shown = b"".join([answer.output.data async for answer in person.stub.AttachJob(all_at_once())])
    assert shown == b"".join(pieces)
    assert (await person.job(job_id)).exit.code == 0


async def test_a_megabyte_is_typed_byte_for_byte_through_a_process_that_reads_slowly(person: Client) -> None:
    script = (
        "import sys, time\nwhile data := sys.stdin.buffer.read(50_000):\n"
        "    time.sleep(0.01)\n    sys.stdout.buffer.write(data)"
    )
    job_id = await person.submit(sys.executable, "-c", script, input=PIPE)
    sent = random.Random(1).randbytes(1_000_000)
    async with Typist(person, job_id) as typist:
        await typist.is_open()
        for at in range(0, len(sent), 32_768):
            await typist.type(sent[at : at + 32_768])
        await typist.end_input()
        await typist.end()
    assert typist.shown == sent


async def test_an_agent_and_a_scheduler_that_start_anew_lose_nothing_that_was_typed(fleet: Fleet) -> None:
    agent = await fleet.add_node()
    async with fleet.client() as admin:
        job_id = await admin.submit("cat", input=TERMINAL)
        async with Typist(admin, job_id) as typist:
            await typist.type(b"one\n")
            await typist.shows(b"one\r\none\r\n")
            agent.kill()
            await typist.until("a closed way", lambda: not typist.news[-1].is_open)
            assert typist.news[-1].problem
            agent.spawn()
            await typist.type(b"two\n")
            assert typist.news[-1].attempt == 1
            await typist.shows(b"two\r\ntwo\r\n")
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    await fleet.node_is_ready("n1")
    async with fleet.client() as admin, Typist(admin, job_id) as typist:
        news = await typist.is_open()
        assert (news.is_continued, news.offset) == (True, 8)
        await typist.type(b"three\n")
        await typist.shows(b"three\r\nthree\r\n")
        await typist.type(b"\x04")
        await typist.end()
        assert typist.shown == b"one\r\none\r\ntwo\r\ntwo\r\nthree\r\nthree\r\n"


async def test_a_requeued_job_is_typed_to_anew(person: Client) -> None:
    job_id = await person.submit("cat", input=PIPE)
    async with Typist(person, job_id) as typist:
        await typist.type(b"one\n")
        request = scheduler_pb2.RequeueJobRequest()
        request.jobs.job_ids.append(job_id)
        await person.stub.RequeueJob(request)
        await typist.until("attempt 2", lambda: typist.news[-1].attempt == 2 and typist.news[-1].is_open)
        assert not typist.news[-1].is_continued
        await typist.type(b"two\n")
        await typist.end_input()
        await typist.end()
    assert await person.stdout(job_id) == b"two\n"


async def test_what_cannot_be_attached_to_is_refused_with_its_reason(person: Client) -> None:
    plain = await person.submit("sleep", "1000")

    async def reason(*requests: Request) -> Reason:
        async def each() -> AsyncIterator[Request]:
            for request in requests:
                yield request

        return (await refusal(person.stub.AttachJob(each()))).reason

    start = scheduler_pb2.AttachStart
    assert await reason(Request(job_id=plain)) is Reason.JOB_HAS_NO_INPUT
    assert await reason(Request(job_id=2**40)) is Reason.JOB_NOT_FOUND
    assert await reason(Request()) is Reason.INVALID_ARGUMENT
    await person.cancel(plain, abandon=True)
    job_id = await person.submit("cat", input=PIPE)
    begin = Request(job_id=job_id, start=start())
    for wrong in (
        Request(stdin=b"x" * 40_000),
        Request(stdin=b"x", stdin_offset=-1),
        Request(signal=99),
        Request(size=job_pb2.TerminalSize(columns=0, rows=24)),
        Request(start=start()),
    ):
        assert await reason(begin, wrong) is Reason.INVALID_ARGUMENT, wrong
    assert await reason(Request(job_id=job_id, start=start(attachment_id="x" * 200))) is Reason.INVALID_ARGUMENT
    await person.cancel(job_id)
    terminal = await person.submit("cat", input=TERMINAL)
    assert await reason(Request(job_id=terminal, start=start()), Request(stdin_end=True)) is Reason.INVALID_ARGUMENT
    await person.cancel(terminal)


async def test_only_the_owner_and_admins_type_to_a_job(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node()
    made = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="eve", role=scheduler_pb2.ROLE_USER))
    job_id = await admin.submit("cat", input=PIPE)
    async with fleet.client(made.secret) as eve:
        async with Typist(eve, job_id) as typist:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await typist.end()
            assert from_rpc_error(caught.value).reason is Reason.NOT_YOUR_JOB
        own = await eve.submit("cat", input=PIPE)
        async with Typist(admin, own, "admin") as typist:
            await typist.type(b"hello\n")
            await typist.end_input()
            await typist.end()
    await admin.cancel(job_id)
