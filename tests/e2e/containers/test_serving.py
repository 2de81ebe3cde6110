"""Programs that are served from images: how they are reached, how they end, and what is said where they cannot run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import inference_pb2, job_pb2, sessions_pb2

from tests.containers.engine import IMAGE, WEB_IMAGE, WEB_PORT, EngineOfTests, EngineProcess
from tests.e2e.client import Client
from tests.e2e.containers.test_kills import kill, with_words
from tests.e2e.processes import until
from tests.gateway.programs.test_served_program import Caller
from tests.gateway.stage import Stage

pytestmark = pytest.mark.nightly

AT_ONCE = 3
"""Callers that ask in a row."""

IN_A_ROW = 20
"""Answers that are looked at together."""


@pytest.fixture(scope="module")
def web(
    engine_and_process: tuple[EngineOfTests, EngineProcess],
    long_lived: Callable[[str], AbstractContextManager[None]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """A fleet with a gateway, and a node of three virtual GPUs with the engine."""
    stage = Stage(tmp_path_factory.mktemp("stage"))

    async def start() -> None:
        await stage.start()
        environment = engine_and_process[0].environment
        await stage.fleet.add_node("n1", "--virtual-gpus", "3", environment=environment)

    try:
        with long_lived("the gateway's programs and a node with an engine"):
            asyncio.run(start())
        yield stage
    finally:
        asyncio.run(stage.end())


@pytest.fixture
async def server(web: Stage) -> AsyncIterator[Client]:
    """The admin of that fleet."""
    async with web.fleet.client() as client:
        yield client


def request_of(
    name: str,
    *argv: str,
    image: str = WEB_IMAGE,
    replicas: int = 1,
    container: dict[str, Any] | None = None,
    **http: Any,
) -> sessions_pb2.ServeModelRequest:
    model = sessions_pb2.Model(
        name=name,
        worker=job_pb2.JobSpec(
            container=job_pb2.ContainerSettings(image=image, **(container or {})),
            devices=[job_pb2.DeviceRequest(count=1)],
        ),
        http=sessions_pb2.HttpService(argv=argv, **http),
        limits=sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_OPEN),
        min_workers=replicas,
        max_workers=max(1, replicas),
    )
    return sessions_pb2.ServeModelRequest(model=model)


async def shown(server: Client, name: str) -> sessions_pb2.Model:
    models = (await server.stub.ListModels(sessions_pb2.ListModelsRequest())).models
    return next(model for model in models if model.name == name)


@asynccontextmanager
async def served(server: Client, request: sessions_pb2.ServeModelRequest) -> AsyncIterator[str]:
    """A model that is stopped at the end, and leaves nothing; answers its name."""
    name = request.model.name
    await server.stub.ServeModel(request)
    try:
        yield name
    finally:
        await server.stub.StopModel(sessions_pb2.StopModelRequest(name=name))


async def are_ready(server: Client, name: str, count: int, revision: int = 1) -> sessions_pb2.Model:
    async def is_so() -> bool:
        model = await shown(server, name)
        assert not model.HasField("failure"), model.failure
        ready = [each for each in model.workers if each.state == inference_pb2.WORKER_STATE_READY]
        return len(ready) == len(model.workers) == count and all(each.revision == revision for each in ready)

    await until(f"{count} replicas of {name} are ready", is_so)
    return await shown(server, name)


def containers_of(engine: EngineOfTests, model: sessions_pb2.Model) -> dict[int, str]:
    """The container of each replica's job."""
    jobs = {str(each.job_id) for each in model.workers}
    return {
        int(label): each["Id"] for each in engine.containers() if (label := each["Labels"].get("gpufleet.job")) in jobs
    }


async def none_is_left(engine: EngineOfTests) -> None:
    await until("no container is left", lambda: not engine.containers())


async def test_replicas_of_an_image_that_listen_on_the_same_port_share_a_node_and_are_all_asked(
    web: Stage, server: Client, engine: EngineOfTests
) -> None:
    async with served(server, request_of("web", replicas=2, port=WEB_PORT, ready_path="/version")) as name:
        model = await are_ready(server, name, 2)
        assert (model.worker.container.image, model.http.port, list(model.http.argv)) == (WEB_IMAGE, WEB_PORT, [])
        assert await Caller(web).get("/m/web/version") == (200, "1\n")
        containers = containers_of(engine, model)
        assert len(containers) == 2
        told = [engine.ask("GET", f"/v1.41/containers/{each}/json")["Config"]["Env"] for each in containers.values()]
        for variables in told:
            assert f"PORT={WEB_PORT}" in variables
            secrets = ("GPUCTL_TOKEN=", "GPUFLEET_TICKET_SECRET=")
            assert not [each for each in variables if each.startswith(secrets)]
    await none_is_left(engine)
    for job in containers:
        ended = await server.wait(job, job_pb2.JOB_STATE_CANCELLED)
        assert ended.attempts[-1].exit.code == 0, "its worker ended it"


async def test_a_program_that_is_told_its_port_listens_on_the_nodes_loopback(web: Stage, server: Client) -> None:
    script = "mkdir /tmp/www; echo told >/tmp/www/a; exec httpd -f -p 127.0.0.1:$LISTEN -h /tmp/www"
    request = request_of("told", "/bin/sh", "-c", script, image=IMAGE, port_env="LISTEN")
    request.model.worker.env["PATH"] = "/bin"
    async with served(server, request):
        await are_ready(server, "told", 1)
        assert await Caller(web).get("/m/told/a") == (200, "told\n")


async def test_the_first_request_starts_one_and_it_goes_when_nobody_asks(
    web: Stage, server: Client, engine: EngineOfTests
) -> None:
    request = request_of("rare", replicas=0, port=WEB_PORT)
    request.model.http.idle.FromSeconds(1)
    async with served(server, request):
        assert await Caller(web).get("/m/rare/version") == (200, "1\n")

        async def is_gone() -> bool:
            return not (await shown(server, "rare")).workers

        await until("nobody asks, and it has no replica", is_gone)
        await none_is_left(engine)


class Stream:
    """Requests without an end, each of which is answered."""

    def __init__(self, caller: Caller, path: str) -> None:
        self.said: list[str] = []
        self._caller = caller
        self._path = path

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
            status, said = await self._caller.get(self._path)
            assert status == 200, said
            self.said.append(said.strip())

    async def are_all(self, version: str) -> None:
        async def is_so() -> bool:
            seen = len(self.said)
            await until("there are answers", lambda: len(self.said) >= seen + IN_A_ROW)
            return set(self.said[seen + AT_ONCE :]) == {version}

        await until(f"all are answered by {version}", is_so)


async def test_no_request_is_lost_while_image_and_arguments_change_and_a_container_is_killed(
    web: Stage, server: Client, engine: EngineOfTests
) -> None:
    stream = Stream(Caller(web), "/m/steady/version")
    request = request_of("steady", replicas=2, port=WEB_PORT, ready_path="/version")
    async with served(server, request):
        await are_ready(server, "steady", 2)
        async with stream.running():
            await stream.are_all("1")

            # The arguments alone: another port, and another version; all else stays as it is.
            changes = sessions_pb2.Model(
                name="steady", http=sessions_pb2.HttpService(argv=["/bin/web", "$PORT", "2"], port=9000)
            )
            mask = FieldMask(paths=["http.argv", "http.port"])
            await server.stub.ServeModel(sessions_pb2.ServeModelRequest(model=changes, update_mask=mask))
            await are_ready(server, "steady", 2, revision=2)
            await stream.are_all("2")

            # An image that is not there is given up, and says so; what was served stays.
            changes = sessions_pb2.Model(name="steady")
            changes.worker.container.image = "localhost/nothing:1"
            mask = FieldMask(paths=["worker.container.image"])
            await server.stub.ServeModel(sessions_pb2.ServeModelRequest(model=changes, update_mask=mask))

            async def has_failed() -> bool:
                return (await shown(server, "steady")).update.HasField("failure")

            await until("the update has failed", has_failed)
            assert "localhost/nothing:1" in (await shown(server, "steady")).update.failure.message
            back = sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="steady"), rollback=True)
            await server.stub.ServeModel(back)
            model = await are_ready(server, "steady", 2, revision=2)

            # The engine's own administrator ends one: it is started again, and the other one answers meanwhile.
            job, container = min(containers_of(engine, model).items())
            engine.ask("POST", f"/v1.41/containers/{container}/kill?signal=KILL")

            async def is_another() -> bool:
                now = containers_of(engine, await shown(server, "steady"))
                return len(now) == 2 and container not in now.values()

            await until("another container takes its place", is_another)
            model = await are_ready(server, "steady", 2, revision=2)
            assert job in {each.job_id for each in model.workers}, "the same job, by another attempt"
            await stream.are_all("2")
        assert set(stream.said) == {"1", "2"}
    await none_is_left(engine)


@pytest.mark.parametrize(
    ("image", "argv", "said"),
    [
        ("localhost/nothing:1", (), "localhost/nothing:1"),
        (WEB_IMAGE, ("/bin/nothing-here",), "the image has no such program"),
        (WEB_IMAGE, ("/bin/sh", "-c", "echo no weights >&2; exit 3"), "the program ended with exit code 3"),
    ],
)
async def test_what_cannot_run_is_said_of_the_model(
    server: Client, engine: EngineOfTests, image: str, argv: tuple[str, ...], said: str
) -> None:
    async with served(server, request_of("bad", *argv, image=image, port=WEB_PORT)):

        async def has_failed() -> bool:
            return (await shown(server, "bad")).HasField("failure")

        await until("the model has failed", has_failed)
        failure = (await shown(server, "bad")).failure
        assert said in failure.message, failure
        if "weights" in " ".join(argv):
            assert "no weights" in failure.last_lines
    await none_is_left(engine)


async def test_a_port_on_which_nobody_listens_is_named_and_the_replica_is_never_ready(
    server: Client, engine: EngineOfTests
) -> None:
    async with served(server, request_of("deaf", port=WEB_PORT + 1)):

        async def says_so() -> bool:
            workers = (await shown(server, "deaf")).workers
            return [each.message for each in workers] == [f"waits for port {WEB_PORT + 1} of its container to open"]

        await until("it says which port", says_so)
        assert (await shown(server, "deaf")).workers[0].state == inference_pb2.WORKER_STATE_LOADING
    await none_is_left(engine)


@pytest.mark.parametrize("whom", ["runner", "worker"])
async def test_neither_a_container_nor_its_worker_outlives_the_other(
    web: Stage, server: Client, engine: EngineOfTests, whom: str
) -> None:
    async with served(server, request_of("pair", port=WEB_PORT, ready_path="/version")):
        model = await are_ready(server, "pair", 1)
        (container,) = containers_of(engine, model).values()
        first = engine.ask("GET", f"/v1.41/containers/{container}/json")["State"]["Pid"]
        words = {"runner": (b"-S\0-E\0-c", container.encode()), "worker": (b"--program-state", container.encode())}
        pids = with_words(*words[whom])
        if whom == "runner":
            pids = [pid for pid in pids if pid not in with_words(b"--program-state")]
        kill(pids)

        def is_gone() -> bool:
            return container not in {each["Id"] for each in engine.containers()}

        await until("its container is gone", is_gone)
        await until("and so is its first process", lambda: not Path(f"/proc/{first}").exists())
        await are_ready(server, "pair", 1)
        assert await Caller(web).get("/m/pair/version") == (200, "1\n")
    await none_is_left(engine)
