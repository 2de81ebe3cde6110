"""The NodeAgent service: notices of --notify that a node could not deliver, for the owner of their job."""

import asyncio
import logging

from gpufleet.v1 import job_pb2, node_agent_pb2

from gpufleet.telemetry.logs import fields

from ...engine import Engine
from ...links import AgentStream
from ...ports import StoredRecord
from ...state.events import NoticeFailed
from ...state.ids import JobId, NodeName
from ...state.jobs import Job
from ...state.records import NoticeNotDelivered
from ...wire.convert import rank_key, timestamp
from ..answers import reply_of
from ..jobs.arrays import find_job
from ..sight import Sight

log = logging.getLogger(__name__)

FAILURES_READ_MAX = 10_000
"""Failures of one job that are read: of 500 attempts."""
FAILURES_SHOWN_MAX = 20
"""Failures of one attempt that GetJob answers; a node tells of no more."""
WAITING_MAX = 1_000
"""Failures that wait to be kept, of all nodes. A further one is not acknowledged; its node sends it again."""
NOTICE_CHARS_MAX, MESSAGE_CHARS_MAX = 32, 1_000
"""What a node says of a failure is kept up to here."""
KIND = "NOTICE_FAILED"


class NoticeFailures:
    """Keeps failures one after the other, so that each is kept once, however often it is told."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()

    def keep(self, stream: AgentStream, sequence: int, told: node_agent_pb2.NoticeFailed) -> None:
        """Keep what a message of a stream says, and acknowledge that once it is stored."""
        if len(self._under_way) >= WAITING_MAX:
            log.warning(
                "too many notices that failed wait to be kept", extra=fields(node=stream.node, most=WAITING_MAX)
            )
            return
        task = asyncio.create_task(self._keep(stream, sequence, told), name=f"notice-{stream.node}")
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    async def _keep(self, stream: AgentStream, sequence: int, told: node_agent_pb2.NoticeFailed) -> None:
        async with self._turn:
            await keep_failure(self._engine, stream.node, told)
        stream.done(sequence)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.warning("a notice that failed is not kept yet; its node tells of it again", exc_info=problem)


async def keep_failure(engine: Engine, node: NodeName, told: node_agent_pb2.NoticeFailed) -> None:
    """Have it in the job's story, once. What is of no attempt that ran on this node is dropped, and logged."""
    key = rank_key(told.key)
    job = await find_job(engine, key.job)
    attempts = () if job is None else (*job.past, *(() if job.attempt is None else (job.attempt,)))
    if not any(key in each.keys(key.job) and each.ranks[key.rank].placement.node == node for each in attempts):
        log.warning("a notice failed of an attempt that is not the node's", extra=fields(node=node, attempt=str(key)))
        return
    for each in await _failures(engine, key.job):
        if isinstance(each.record, NoticeNotDelivered) and (each.record.key, each.record.number) == (key, told.number):
            return
    failed = NoticeFailed(
        at=engine.now(),
        node=node,
        key=key,
        number=told.number,
        notice=told.notice[:NOTICE_CHARS_MAX],
        message=told.message[:MESSAGE_CHARS_MAX],
    )
    await reply_of(engine.report(failed))


async def add_failures(message: job_pb2.Job, engine: Engine, job: Job, sight: Sight) -> None:
    """Add those of the newest attempt to the warnings of a job, for its owner and admins."""
    if not job.spec.notify or job.items is not None or not sight.is_whole(job.user):
        return
    stored = await _failures(engine, job.id)
    newest = [
        each.record
        for each in stored
        if isinstance(each.record, NoticeNotDelivered) and each.record.key.attempt == job.attempt_count
    ]
    for record in newest[:FAILURES_SHOWN_MAX]:
        sentence = f"The notice {record.notice!r} was not delivered: {record.message}."
        message.warnings.add(kind=KIND, sentence=sentence, time=timestamp(record.at), attempt=record.key.attempt)


async def _failures(engine: Engine, job: JobId) -> list[StoredRecord]:
    kinds = (NoticeNotDelivered.__name__,)
    return await engine.on_store_thread(lambda: engine.store.story(job, 0, FAILURES_READ_MAX, kinds=kinds))
