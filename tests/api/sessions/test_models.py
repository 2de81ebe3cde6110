"""Models that the fleet serves, through the contract: their workers are jobs, and a worker is known by its launch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, job_pb2, scheduler_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.pass_phrases import hash_pass_phrase
from gpufleet.security.tickets import TurnTicket, read_ticket
from scheduler.state.ids import JobId, RankKey
from scheduler.worker_secrets import WorkerSecrets, read_or_make
from tests.api.sessions.people import WorkerStream, gateway
from tests.e2e.client import Client, dial, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

SLEEPS = ("/bin/sh", "-c", "exec sleep 1000")
"""A worker that never calls the scheduler. What the scheduler adds to it are arguments of the shell's."""


def serving(admin: Client, name: str, **fields: Any) -> sessions_pb2.ServeModelRequest:
    fields = {"entry_point": "models:Class", "worker": admin.spec(*SLEEPS), "min_workers": 1, **fields}
    return sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name=name, **fields))


@asynccontextmanager
async def served(admin: Client, name: str, **fields: Any) -> AsyncIterator[sessions_pb2.Model]:
    model = (await admin.stub.ServeModel(serving(admin, name, **fields))).model
    try:
        yield model
    finally:
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name=name))
        for worker in model.workers:
            await admin.wait(worker.job_id)


async def test_workers_are_jobs_of_the_models_owner(admin: Client) -> None:
    async with served(admin, "jobs", arguments={"steps": "32"}) as model:
        assert (model.min_workers, model.max_workers, model.worker.band) == (1, 1, job_pb2.BAND_HIGH)
        (worker,) = model.workers
        assert worker.state in (inference_pb2.WORKER_STATE_QUEUED, inference_pb2.WORKER_STATE_STARTING)
        job = await admin.job(worker.job_id)
        assert (job.spec.kind, job.spec.serves, job.spec.name) == (job_pb2.JOB_KIND_SERVICE, "jobs", "jobs")
        added = ["models:Class", "--name", "jobs", "--model-arg", "steps=32"]
        assert (job.spec.band, list(job.spec.argv)) == (job_pb2.BAND_HIGH, [*SLEEPS, *added])
        assert worker.job_id in {each.id for each in (await admin.queue()).jobs}

        # The same again changes nothing; another least number of workers holds at once.
        again = (await admin.stub.ServeModel(serving(admin, "jobs", arguments={"steps": "32"}))).model
        assert [each.job_id for each in again.workers] == [worker.job_id]
        more = serving(admin, "jobs", arguments={"steps": "32"}, min_workers=2)
        await admin.stub.ServeModel(more)

        async def are_two() -> bool:
            return len((await shown(admin, "jobs")).workers) == 2

        await until("there are two workers", are_two)
        fewer = serving(admin, "jobs", arguments={"steps": "32"}, max_workers=1)
        await admin.stub.ServeModel(fewer)

        async def is_one() -> bool:
            return len((await shown(admin, "jobs")).workers) == 1

        await until("there is one worker", is_one)

    async def is_over() -> bool:
        return (await admin.job(worker.job_id)).state == job_pb2.JOB_STATE_CANCELLED

    await until("the worker's job is over", is_over)


async def shown(admin: Client, name: str) -> sessions_pb2.Model:
    models = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
    return next(model for model in models if model.name == name)


async def test_a_worker_that_finds_no_room_says_what_it_waits_for(admin: Client) -> None:
    node = (await admin.stub.ListNodes(scheduler_pb2.ListNodesRequest())).nodes[0]
    worker = admin.spec(*SLEEPS, cpus=node.info.cpus)
    async with served(admin, "crowded", worker=worker, min_workers=2):

        async def says_so() -> bool:
            waiting = [each for each in (await shown(admin, "crowded")).workers if each.wait_reason]
            return [each.wait_reason for each in waiting] == ["CPUS_IN_USE"]

        await until("one worker waits for CPUs", says_so)
        queued = next(each for each in (await shown(admin, "crowded")).workers if each.wait_reason)
        assert queued.state == inference_pb2.WORKER_STATE_QUEUED
        assert queued.message.startswith(f"waits: node {node.name} has 0 of ") and "CPU" in queued.message
        explained = await admin.stub.Explain(scheduler_pb2.ExplainRequest(job_id=queued.job_id))
        assert explained.explanation.reason.reason == queued.wait_reason, "models says what explain says"


async def test_a_cancelled_worker_is_replaced_as_long_as_the_model_is_served(admin: Client) -> None:
    async with served(admin, "cancelled") as model:
        first = model.workers[0].job_id
        request = scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(job_ids=[first]))
        (change,) = (await admin.stub.Cancel(request)).changes
        assert "to end the model: gpuctl serve cancelled --stop" in change.message

        async def is_replaced() -> bool:
            jobs = {worker.job_id for worker in (await shown(admin, "cancelled")).workers}
            return bool(jobs - {first})

        await until("another worker is started", is_replaced)


async def test_numbers_change_alone_where_nothing_says_what_a_worker_is(admin: Client) -> None:
    limits = sessions_pb2.SessionLimits(line_length=7)
    limits.turn.FromSeconds(90)
    async with served(admin, "numbers-alone", limits=limits) as model:
        other = sessions_pb2.SessionLimits()
        other.grace.FromSeconds(3)
        request = sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="numbers-alone", limits=other))
        changed = (await admin.stub.ServeModel(request)).model
        assert (changed.limits.turn.seconds, changed.limits.grace.seconds, changed.limits.line_length) == (90, 3, 7)
        assert (changed.entry_point, changed.worker, changed.min_workers) == ("models:Class", model.worker, 1)


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"entry_point": "no class here"}, Reason.INVALID_ARGUMENT, "model.entry_point"),
        ({"entry_point": "-x"}, Reason.INVALID_ARGUMENT, "model.entry_point"),
        ({"arguments": {"a b": "1"}}, Reason.INVALID_ARGUMENT, "model.arguments['a b']"),
        ({"min_workers": -1}, Reason.INVALID_ARGUMENT, "model.min_workers"),
        ({"min_workers": 3, "max_workers": 2}, Reason.INVALID_ARGUMENT, "model.max_workers"),
        ({"max_workers": 1_001}, Reason.INVALID_ARGUMENT, "model.max_workers"),
        ({"limits": {"access": 9}}, Reason.INVALID_ARGUMENT, "model.limits.access"),
        ({"limits": {"pass_phrase_hash": "hunter2"}}, Reason.INVALID_ARGUMENT, "model.limits.pass_phrase_hash"),
        ({"limits": {"access": 2}}, Reason.INVALID_ARGUMENT, "model.limits.pass_phrase_hash"),
        (
            {"limits": {"access": 3, "pass_phrase_hash": hash_pass_phrase("correct horse")}},
            Reason.INVALID_ARGUMENT,
            "model.limits.pass_phrase_hash",
        ),
        ({"worker": {"cwd": "here"}}, Reason.INVALID_ARGUMENT, "model.worker.cwd"),
        ({"worker": {"node_count": 2}}, Reason.INVALID_ARGUMENT, "model.worker.node_count"),
        ({"worker": {"retries": 1}}, Reason.INVALID_ARGUMENT, "model.worker.retries"),
        ({"worker": {"is_held": True}}, Reason.INVALID_ARGUMENT, "model.worker.is_held"),
        ({"worker": {"gpus": 64}}, Reason.NEVER_FITS, "model.worker.devices[0].count"),
        ({"worker": {"nodelist": ["n9"]}}, Reason.UNKNOWN_NODE, "model.worker.nodelist[0]"),
        ({"worker": {"env": {"A=B": ""}}}, Reason.ENV_NAME_INVALID, "model.worker.env['A=B']"),
    ],
)
async def test_what_is_wrong_with_a_model_is_refused_by_name(
    admin: Client, fields: dict[str, Any], reason: Reason, field: str
) -> None:
    if "worker" in fields:
        fields = {**fields, "worker": admin.spec(*SLEEPS, **fields["worker"])}
    error = await refusal(admin.stub.ServeModel(serving(admin, "wrong", **fields)))
    assert (error.reason, error.violations[0].field) == (reason, field), error
    assert error.next_step


# --- a worker is known by its launch


@asynccontextmanager
async def launched(
    fleet: Fleet, model: str, job: int, attempt: int, token: str, **hello: Any
) -> AsyncIterator[WorkerStream]:
    """A worker that says hello as one that the fleet started."""
    async with dial(fleet.scheduler.address, token) as channel:
        stream = WorkerStream(scheduler_pb2_grpc.SchedulerStub(channel).ConnectWorker(), model, 1)
        said = sessions_pb2.WorkerHello(
            model=model, endpoint="127.0.0.1:8001", worker_start=stream.start, job_id=job, attempt=attempt, **hello
        )
        try:
            await stream.inbox.call.write(sessions_pb2.ConnectWorkerRequest(hello=said))
            yield stream
        finally:
            await stream.inbox.end()


async def refused_hello(fleet: Fleet, token: str, **said: Any) -> GpufleetError:
    """Why a hello is refused."""
    async with dial(fleet.scheduler.address, token) as channel:
        call = scheduler_pb2_grpc.SchedulerStub(channel).ConnectWorker()
        hello = sessions_pb2.WorkerHello(endpoint="127.0.0.1:8001", worker_start="w", **said)

        async def answer() -> Any:
            await call.write(sessions_pb2.ConnectWorkerRequest(hello=hello))
            return await call.read()

        return await refusal(answer())


async def test_a_worker_needs_no_more_than_it_was_launched_with(fleet: Fleet, admin: Client) -> None:
    workers = read_or_make(fleet.scheduler.data)
    async with served(admin, "launched") as model, gateway(fleet) as people:
        job = model.workers[0].job_id

        async def is_placed() -> bool:
            return bool((await admin.job(job)).attempt_count)

        await until("the worker is placed", is_placed)
        token = workers.token(await first_key(admin, job))
        async with launched(fleet, "launched", job, 1, token) as worker:
            await worker.inbox.first(lambda message: message.HasField("welcome"))
            await worker.report()

            async def is_ready() -> bool:
                states = [(each.job_id, each.state) for each in (await shown(admin, "launched")).workers]
                return states == [(job, inference_pb2.WORKER_STATE_READY)]

            await until("it is the worker of its job", is_ready)
            await people.join(1, "launched", "ann")
            grant = await people.grant(1)
            secret = workers.ticket_secret(await first_key(admin, job))
            now_s = (await admin.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())).server_time.ToMicroseconds()
            ticket = read_ticket(grant.ticket, secret, worker_start=worker.start, now_s=now_s / 1e6)
            assert isinstance(ticket, TurnTicket), ticket
            async with fleet.client(token) as itself:
                assert (await refusal(itself.stub.Queue(scheduler_pb2.QueueRequest()))).reason is (
                    Reason.PERMISSION_DENIED
                )
            await people.say(1, leave=True)

    async def is_useless() -> bool:
        async with fleet.client(token) as itself:
            error = await refusal(itself.stub.Queue(scheduler_pb2.QueueRequest()))
        return error.reason is Reason.TOKEN_INVALID

    await until("the token ends with the attempt", is_useless)


async def first_key(admin: Client, job: int) -> RankKey:
    """Of the first attempt of a worker's job, which is placed."""
    return RankKey(JobId(job), 1, 0, (await admin.job(job)).attempts[0].lineage)


@pytest.mark.parametrize(
    ("model", "attempt", "hello", "field"),
    [
        ("other", 1, {}, "hello.job_id"),
        ("foreign", 2, {}, "hello.job_id"),
        ("foreign", 1, {"ticket_secret": bytes(32)}, "hello.ticket_secret"),
    ],
)
async def test_a_workers_token_speaks_for_its_own_job_only(
    fleet: Fleet, admin: Client, model: str, attempt: int, hello: dict[str, Any], field: str
) -> None:
    workers = read_or_make(fleet.scheduler.data)
    async with served(admin, "foreign") as of_fleet:
        job = of_fleet.workers[0].job_id

        async def is_placed() -> bool:
            return bool((await admin.job(job)).attempt_count)

        await until("the worker is placed", is_placed)
        token = workers.token(await first_key(admin, job))
        error = await refused_hello(fleet, token, model=model, job_id=job, attempt=attempt, **hello)
        assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, field)


async def test_nobody_passes_for_a_worker_of_the_fleet(fleet: Fleet, admin: Client) -> None:
    async with served(admin, "passing") as model:
        job = model.workers[0].job_id
        by_hand = fleet.scheduler.token("admin")
        said: dict[str, Any] = {"model": "passing", "job_id": job, "attempt": 1}
        error = await refused_hello(fleet, by_hand, ticket_secret=bytes(32), **said)
        assert error.violations[0].field == "hello.job_id"
        guessed = WorkerSecrets().token(await first_key(admin, job))
        assert (await refused_hello(fleet, guessed, **said)).reason is Reason.TOKEN_INVALID
