"""Small values of the state for the store's tests, and a way to reach behind the store's back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from scheduler.ports import Commit
from scheduler.state.access import Counters, RememberedRequest, Role, Secret, Token
from scheduler.state.durable import Entity, key_of
from scheduler.state.ids import JobId, NodeName, SecretName, TokenId, UserName
from scheduler.state.jobs import Finished, Job, Queued
from scheduler.state.nodes import Node, NodeInfo
from scheduler.state.records import JobFinished, JobHeld, JobQueued, Record
from scheduler.state.specs import Band, JobSpec, Outcome
from scheduler.state.units import Instant

START = Instant(1_700_000_000_000_000)


def at(second: float) -> Instant:
    return Instant(START + round(second * 1_000_000))


def job(number: int, user: str = "alice", name: str = "train", second: float = 0) -> Job:
    return Job(
        id=JobId(number),
        user=UserName(user),
        spec=JobSpec(argv=("python", "train.py"), name=name, cwd="/home/alice"),
        band=Band.NORMAL,
        submitted_at=at(second),
        state=Queued(),
    )


def finished(live: Job, second: float, outcome: Outcome = Outcome.SUCCEEDED) -> Job:
    return replace(live, state=Finished(outcome=outcome, at=at(second), reason="EXITED"), version=live.version + 1)


def node(name: str = "n1") -> Node:
    return Node(
        name=NodeName(name),
        agent_id="a1",
        incarnation=1,
        boot_id="b1",
        info=NodeInfo(hostname=name, cpus=8),
        registered_at=at(0),
    )


def token(name: str = "t1") -> Token:
    return Token(id=TokenId(name), user=UserName("alice"), role=Role.USER, digest="d", created_at=at(0))


def request(request_id: str = "r1", user: str = "alice") -> RememberedRequest:
    return RememberedRequest(
        user=UserName(user), request_id=request_id, digest="d", first_job=JobId(1), count=1, at=at(0)
    )


def secret(name: str = "HF_TOKEN", user: str = "alice", sealed: bytes = b"\x01\x00sealed\xff") -> Secret:
    return Secret(user=UserName(user), name=SecretName(name), set_at=at(0), set_by=UserName(user), sealed=sealed)


ONE_OF_EACH: tuple[Entity, ...] = (Counters(next_job=9), job(8), node(), request(), secret(), token())


def submit(number: int, *jobs: Job, second: float = 0) -> Commit:
    """A commit that queues jobs."""
    records = tuple(JobQueued(at=at(second), job=each) for each in jobs)
    return Commit(number=number, at=at(second), records=records, upserts=jobs)


def finish(number: int, *jobs: Job, second: float = 0) -> Commit:
    """A commit that ends jobs, each a finished value."""
    records = tuple(_finished_record(each, second) for each in jobs)
    keys = tuple(key_of(each) for each in jobs)
    return Commit(number=number, at=at(second), records=records, deletes=keys, finished=jobs)


def _finished_record(ended: Job, second: float) -> Record:
    assert isinstance(ended.state, Finished)
    return JobFinished(at=at(second), job=ended.id, finished=ended.state)


def held(number: int, second: float = 0) -> Record:
    return JobHeld(at=at(second), job=JobId(number), by=UserName("alice"))


def behind_its_back(url: str, statement: str) -> Sequence[Any]:
    """Run one statement on the store's database over a connection of its own; the rows it returns."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = create_engine(parsed, poolclass=NullPool)
    with engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        return result.all() if result.returns_rows else ()
