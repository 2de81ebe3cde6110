"""No field of what people ask of capacity and of a job's use, and of what is answered, is dropped in silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from gpufleet.v1 import capacity_pb2, job_pb2, sessions_pb2

from scheduler.api.fleet import tracking
from scheduler.api.fleet.tracking import TrackingCalls
from scheduler.api.roles import Caller, _caller
from scheduler.policy.capacity import Capacity
from scheduler.session_links import SessionLinks
from scheduler.state.access import Role
from scheduler.state.attempts import EndedAttempt
from scheduler.state.ids import TokenId
from scheduler.state.jobs import Job, Queued
from scheduler.state.sessions.commands import OfferSeat
from scheduler.state.sessions.events import Connection
from scheduler.state.sessions.session import Identity, SessionId, WorkerId
from scheduler.state.units import SECOND, Instant
from tests.fields.asked import BASE
from tests.fields.filled import BEGIN_SECONDS, paths, unheard, unsaid_of
from tests.store.stored_format import example

NOW = Instant((BEGIN_SECONDS + 1_000_000) * SECOND)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is waited for in place of capacity: the job, and how long in seconds."""
    asked: list[object] = []

    async def until_available(*given: Any) -> AsyncIterator[Capacity]:
        asked.extend(given[3:])
        yield Capacity(is_available=True, message="now")

    monkeypatch.setattr(tracking, "until_available", until_available)
    return asked


def test_every_field_of_a_check_is_heard(heard: list[object]) -> None:
    async def job_to_check(spec: job_pb2.JobSpec) -> object:
        return spec.SerializeToString(deterministic=True)  # field by field in test_job_fields.py

    def checked(request: capacity_pb2.CheckCapacityRequest) -> object:
        heard.clear()
        calls: Any = SimpleNamespace(
            engine=None, changes=None, links=None, one_stream=nullcontext, _job_to_check=job_to_check
        )

        async def ask() -> None:
            async for _ in TrackingCalls.CheckCapacity.__wrapped__(calls, request):  # type: ignore[attr-defined]
                pass

        asyncio.run(ask())
        return list(heard)

    base = capacity_pb2.CheckCapacityRequest(spec=BASE)
    known = paths(base.DESCRIPTOR)
    values = {path: ["true"] for path in known if path == "spec.argv"}
    assert not unheard(checked, base, values={**values, "wait": timedelta(hours=2)})


def test_every_field_of_an_answer_on_capacity_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def job_to_check(spec: job_pb2.JobSpec) -> object:
        return spec

    def told(found: Capacity) -> object:
        async def until_available(*given: Any) -> AsyncIterator[Capacity]:
            yield found

        monkeypatch.setattr(tracking, "until_available", until_available)
        calls: Any = SimpleNamespace(
            engine=None, changes=None, links=None, one_stream=nullcontext, _job_to_check=job_to_check
        )

        async def ask() -> list[object]:
            request = capacity_pb2.CheckCapacityRequest()
            wrapped: Any = TrackingCalls.CheckCapacity
            return [each.SerializeToString() async for each in wrapped.__wrapped__(calls, request)]

        return asyncio.run(ask())

    one = Capacity(is_available=False, message="one", reason="ONE", latest_start=Instant(SECOND))
    assert not unsaid_of(told, one, Capacity(is_available=True, message="other", reason="OTHER", latest_start=NOW))


def test_every_field_of_an_estimate_is_told() -> None:
    request = capacity_pb2.EstimateRequest(
        config_json='{"model": {"id_or_path": "llama-70b"}, "parameters": {"tp-size": 4, "colour": 1}}'
    )
    answer: Any = asyncio.run(TrackingCalls.Estimate.__wrapped__(SimpleNamespace(), request))  # type: ignore[attr-defined]
    assert {field.name for field, _ in answer.ListFields()} == set(paths(answer.DESCRIPTOR))


def test_every_field_of_what_is_asked_of_a_jobs_use_is_heard() -> None:
    first: EndedAttempt = example(EndedAttempt, 0)
    past = (replace(first, number=1, ended_at=NOW), replace(first, number=3, ended_at=NOW))
    whole: Job = example(Job, 0)
    jobs = {0: replace(whole, state=Queued(), past=past[:1]), 2: replace(whole, state=Queued(), past=past)}

    async def find(number: int) -> Job:
        return jobs[number]

    async def no_courses(*asked: object) -> dict[str, object]:
        return {}

    async def no_histories(devices: list[object], *asked: object) -> object:
        return SimpleNamespace(told=[(None, ()) for _ in devices])

    def asked(request: capacity_pb2.GetJobStatsRequest) -> object:
        calls: Any = SimpleNamespace(
            find=find,
            engine=SimpleNamespace(now=lambda: NOW),
            series=SimpleNamespace(of=no_courses),
            facts=SimpleNamespace(output_is_shared=lambda: True),
        )
        _caller.set(Caller(whole.user, Role.ADMIN, TokenId("admin")))
        calls._use = lambda key, rank: TrackingCalls._use(
            SimpleNamespace(engine=SimpleNamespace(view=SimpleNamespace(live=None))),  # type: ignore[arg-type]
            key,
            rank,
        )
        calls.histories = SimpleNamespace(since=no_histories)
        answer: Any = asyncio.run(TrackingCalls.GetJobStats.__wrapped__(calls, request))  # type: ignore[attr-defined]
        return answer.SerializeToString(deterministic=True)

    base = capacity_pb2.GetJobStatsRequest()
    values = {"job_id": 2, "attempt": 1}
    assert not unheard(asked, base, values=values, needs={"attempt": {"job_id": 2}})


def test_every_field_of_a_grant_is_told() -> None:
    links = SessionLinks(lambda: NOW)
    gateway = links.join_gateway()
    gateway.keys[5] = "gp_key"
    worker = links.join_worker(WorkerId("w1"), "w1:8001", b"s" * 32, certificate="PEM", local_key=b"k" * 32)
    links.send(
        OfferSeat(
            connection=Connection(gateway.number, 5),
            session=SessionId(7),
            worker=worker.worker,
            epoch=3,
            identity=Identity("ann"),
        )
    )
    (said,) = asyncio.run(gateway.outbox.next())
    assert {field.name for field, _ in said.grant.ListFields()} == set(paths(sessions_pb2.TurnGrant.DESCRIPTOR))
