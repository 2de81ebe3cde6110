"""A program that is served is updated under a stream of requests: each is answered, and a broken update costs none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from tests.e2e.client import Client
from tests.e2e.processes import until
from tests.gateway.programs.test_served_program import PROGRAM, Caller
from tests.gateway.stage import Stage

pytestmark = pytest.mark.slow

AT_ONCE = 3
"""Callers that ask in a row."""

IN_A_ROW = 20
"""Answers that are looked at together."""


def request_of(admin: Client, *argv: str) -> sessions_pb2.ServeModelRequest:
    (admin.cwd / "versions.py").write_text(PROGRAM.replace("{os.getpid()}", "{sys.argv[2]}"))
    model = sessions_pb2.Model(
        name="steady",
        worker=admin.spec(sys.executable, "-P", "-m", "gpufleet.inference", gpus=1),
        http=sessions_pb2.HttpService(argv=[sys.executable, *argv]),
        limits=sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_OPEN),
        min_workers=2,
        max_workers=2,
    )
    return sessions_pb2.ServeModelRequest(model=model)


async def served(admin: Client) -> sessions_pb2.Model:
    (model,) = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
    return model


def ready(model: sessions_pb2.Model) -> list[int]:
    """The revisions of the replicas that are ready."""
    return sorted(each.revision for each in model.workers if each.state == inference_pb2.WORKER_STATE_READY)


class Stream:
    """Requests without an end: what was answered, in order."""

    def __init__(self, caller: Caller) -> None:
        self.versions: list[str] = []
        self._caller = caller

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        asking = [asyncio.create_task(self._ask()) for _ in range(AT_ONCE)]
        try:
            yield
        finally:
            for each in asking:
                each.cancel()
            ended = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    async def _ask(self) -> None:
        while True:
            status, said = await self._caller.get("/m/steady/a")
            assert status == 200, said
            self.versions.append(said.split()[0])

    async def are_all(self, version: str) -> None:
        """From some request on each is answered by this version."""

        async def is_so() -> bool:
            seen = len(self.versions)
            await until("there are answers", lambda: len(self.versions) >= seen + IN_A_ROW)
            return set(self.versions[seen + AT_ONCE :]) == {version}

        await until(f"all are answered by {version}", is_so)


async def test_every_request_is_answered_while_a_program_is_updated_and_a_broken_one_takes_no_place(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    with long_lived("a node with its replicas"):
        await stage.fleet.add_node("n1", "--virtual-gpus", "3")
    async with stage.fleet.client() as admin:
        stream = Stream(Caller(stage))
        await admin.stub.ServeModel(request_of(admin, "versions.py", "$PORT", "v1"))

        async def is_updated(*revisions: int) -> bool:
            model = await served(admin)
            return ready(model) == list(revisions) and len(model.workers) == 2 and not model.HasField("update")

        await until("two replicas are ready", lambda: is_updated(1, 1))
        async with stream.running():
            await stream.are_all("v1")
            assert set(stream.versions) == {"v1"}

            # Another version takes over; what comes meanwhile is answered by one of both.
            answer = await admin.stub.ServeModel(request_of(admin, "versions.py", "$PORT", "v2"))
            assert (answer.model.revision, answer.model.former_revision) == (2, 1)
            assert answer.model.HasField("update")
            await until("the second revision has taken over", lambda: is_updated(2, 2))
            await stream.are_all("v2")
            assert set(stream.versions) == {"v1", "v2"}

            # One that cannot be run is given up, and says why; the one before stays.
            seen = len(stream.versions)
            await admin.stub.ServeModel(request_of(admin, "-c", "raise SystemExit('no such thing')"))

            async def has_failed() -> bool:
                return (await served(admin)).update.HasField("failure")

            await until("the update has failed", has_failed)
            model = await served(admin)
            assert "no such thing" in model.update.failure.last_lines
            assert (ready(model), model.revision, model.HasField("failure")) == ([2, 2], 3, False)
            await admin.stub.ServeModel(
                sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="steady"), rollback=True)
            )
            await until("it is as before", lambda: is_updated(2, 2))
            await stream.are_all("v2")
            assert set(stream.versions[seen + AT_ONCE :]) == {"v2"}
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="steady"))
