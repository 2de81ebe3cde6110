"""A request that is sent twice is carried out once, whatever happens between."""

from __future__ import annotations

import asyncio

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet


async def test_the_same_request_answers_the_same_and_makes_no_second_job(person: Client) -> None:
    spec = person.spec("true", is_held=True)
    first = await person.submit_specs([spec], request_id="once")
    again = await person.submit_specs([spec], request_id="once")
    assert again.first_job_id == first.first_job_id
    assert again.job.state == job_pb2.JOB_STATE_HELD
    other_trace = person.spec(
        "true", is_held=True, trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    )
    assert (await person.submit_specs([other_trace], request_id="once")).first_job_id == first.first_job_id
    await person.cancel(first.first_job_id)
    after_its_end = await person.submit_specs([spec], request_id="once")
    assert after_its_end.first_job_id == first.first_job_id
    assert after_its_end.job.state == job_pb2.JOB_STATE_CANCELLED


async def test_many_tries_at_the_same_time_make_one_job(person: Client) -> None:
    spec = person.spec("true", is_held=True)
    answers = await asyncio.gather(*(person.submit_specs([spec], request_id="together") for _ in range(50)))
    assert len({answer.first_job_id for answer in answers}) == 1
    await person.cancel(answers[0].first_job_id)


async def test_the_same_id_with_other_content_is_refused(person: Client) -> None:
    first = await person.submit_specs([person.spec("true", is_held=True)], request_id="taken")
    request = scheduler_pb2.SubmitRequest(specs=[person.spec("false")], request_id="taken")
    error = await refusal(person.stub.Submit(request))
    assert error.reason is Reason.REQUEST_ID_REUSED
    assert error.violations[0].field == "request_id"
    assert str(first.first_job_id) in error.message
    await person.cancel(first.first_job_id)


async def test_the_memory_of_a_request_survives_a_killed_scheduler(fleet: Fleet) -> None:
    async with fleet.client() as client:
        spec = client.spec("true", is_held=True)
        first = await client.submit_specs([spec], request_id="before the crash", count=7)
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    async with fleet.client() as client:
        again = await client.submit_specs([spec], request_id="before the crash", count=7)
        assert (again.first_job_id, again.count) == (first.first_job_id, 7)
        error = await refusal(
            client.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec], request_id="before the crash"))
        )
        assert error.reason is Reason.REQUEST_ID_REUSED
        assert len((await client.queue()).jobs) == 7


async def test_two_people_may_use_the_same_id(fleet: Fleet, admin: Client) -> None:
    token = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="bob", role=scheduler_pb2.ROLE_USER))
    spec = admin.spec("true", is_held=True)
    first = await admin.submit_specs([spec], request_id="common")
    async with fleet.client(token.secret) as bob:
        second = await bob.submit_specs([spec], request_id="common")
    assert second.first_job_id != first.first_job_id
    assert second.job.user == "bob"
