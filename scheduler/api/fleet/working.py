"""The Scheduler service: ListWorkers. Both queues, and what each node and each worker of a served model is at.

A job stands in the queue for GPUs as long as it asks for any: one that fell back stands in the other. What is held, or
not eligible yet, stands in neither.
"""

from collections.abc import Collection, Iterator
from itertools import islice

from gpufleet.v1 import status_pb2

from ...policy.order.queue import queue_order
from ...state.ids import JobId, UserName
from ...state.jobs import Job, Running, Stopping
from ...state.nodes import Node
from ...state.sessions.session import Model
from ...state.specs import Asked
from ...wire.convert import timestamp
from ...wire.convert_jobs import state_of
from ...wire.convert_nodes import node_state
from ...wire.convert_sessions import model_proto
from ..jobs.finding import JobsFound
from ..paging import PageTokens, page_size

FIRST_SHOWN = 10
"""Jobs of a queue that are shown."""

JOBS_SHOWN = 100
"""Jobs of a node that are shown."""

MODELS_SHOWN = 1_000
"""Served models on the first page."""


class WorkCalls(JobsFound):
    """What works, and what waits for it."""

    pages: PageTokens

    async def ListWorkers(self, request: status_pb2.ListWorkersRequest) -> status_pb2.ListWorkersResponse:
        """A page of nodes, and on the first one the queues and the models."""
        size = page_size(request.page_size)
        cursor = self.pages.read("workers", request.page_token)
        nodes = self.engine.view.durable.nodes
        wanted = [nodes[name] for name in sorted(nodes) if not cursor or name > cursor[0]]
        answer = status_pb2.ListWorkersResponse(
            nodes=[self._node(node) for node in wanted[:size]],
            next_page_token=self.pages.sign("workers", [wanted[size - 1].name]) if len(wanted) > size else "",
        )
        if cursor is None:
            models = self.engine.view.durable.models
            answer.models.extend(self._model(models[name]) for name in sorted(models)[:MODELS_SHOWN])
            self._fill_queues(answer)
        return answer

    def _fill_queues(self, answer: status_pb2.ListWorkersResponse) -> None:
        durable = self.engine.view.durable
        for with_gpus, queue in ((True, answer.gpu_queue), (False, answer.cpu_queue)):
            queue.waiting_count = sum(
                len(line)
                for of_band in durable.lines.of_band.values()
                for of_user in of_band.values()
                for key, line in of_user.items()
                if bool(key.asked.resources.gpus) is with_gpus
            )
            active = (durable.jobs[job_id] for job_id in durable.active)
            queue.running_count = sum(bool(job.spec.resources.gpus) is with_gpus for job in active)
            order = islice(
                queue_order(self.engine.view, self.engine.now(), _OtherQueue(with_gpus=with_gpus)), FIRST_SHOWN
            )
            queue.first.extend(work_of(job) for job in order)

    def _node(self, node: Node) -> status_pb2.NodeWork:
        view = self.engine.view
        live, hold = view.live.nodes.get(node.name), view.durable.hold(node.name)
        jobs = sorted({key.job for key in hold.ranks})
        return status_pb2.NodeWork(
            node=node.name,
            state=node_state(node, live),
            gpu_count=len(node.info.devices),
            gpus_held=len(hold.device_uuids()),
            cpu_count=node.info.cpus,
            cpus_held=hold.cpus,
            last_contact_time=timestamp(live.heard_at) if live is not None and live.stream else None,
            job_count=len(jobs),
            jobs=[work_of(view.durable.jobs[job_id]) for job_id in jobs[:JOBS_SHOWN]],
        )

    def _model(self, model: Model) -> status_pb2.ModelWork:
        shown = model_proto(model, self.engine.view.durable, self.engine.view.live.turns, self.reasons.of)
        return status_pb2.ModelWork(
            model=model.name,
            gpu_count=0 if model.worker is None else model.worker.resources.gpus,
            cpu_model="" if model.http is None else model.http.cpu_model,
            request_count=shown.request_count if model.http is not None else shown.waiting_count + shown.turn_count,
            workers=shown.workers,
        )


def work_of(job: Job) -> status_pb2.Work:
    """A job at a glance."""
    started_at = job.state.started_at if isinstance(job.state, Running | Stopping) else None
    return status_pb2.Work(
        job_id=job.id,
        name=job.spec.name,
        user=job.user,
        state=state_of(job),
        gpu_count=job.spec.resources.gpus,
        fell_back=job.fell_back is not None,
        serves=job.spec.serves or "",
        start_time=None if started_at is None else timestamp(started_at),
    )


class _OtherQueue(Collection[Asked | tuple[UserName, Asked] | JobId]):
    """Classes of request that stand in the other queue, for the order to leave out."""

    def __init__(self, *, with_gpus: bool) -> None:
        self._with_gpus = with_gpus

    def __contains__(self, each: object) -> bool:
        return isinstance(each, Asked) and bool(each.resources.gpus) is not self._with_gpus

    def __iter__(self) -> Iterator[Asked | tuple[UserName, Asked] | JobId]:
        return iter(())

    def __len__(self) -> int:
        return 1  # never empty: nearly every class is in one of the two
