"""Programs of an exclusive group share one GPU: requests to all of them are answered, each by its own program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from gpufleet.v1 import scheduler_pb2, sessions_pb2

from tests.e2e.client import Client
from tests.e2e.processes import until
from tests.gateway.programs.test_served_program import PROGRAM, Caller
from tests.gateway.stage import Stage

pytestmark = pytest.mark.slow

ROUNDS = 2


@pytest.fixture(scope="module")
def stage(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """As that of the folder, with turns of a second in a group."""
    folder = tmp_path_factory.mktemp("stage")
    settings = folder / "scheduler.toml"
    settings.write_text("[policy]\nleast_awake = '1s'\n")
    stage = Stage(folder, "--config", str(settings))
    try:
        with long_lived("the gateway's programs"):
            asyncio.run(stage.start())
        yield stage
    finally:
        asyncio.run(stage.end())


def asked(admin: Client, name: str, folder: Path) -> sessions_pb2.ServeModelRequest:
    (folder / "programs.py").write_text(PROGRAM.replace("{os.getpid()}", "{sys.argv[2]}"))
    model = sessions_pb2.Model(
        name=name,
        worker=admin.spec(sys.executable, "-P", "-m", "gpufleet.inference", gpus=1),
        http=sessions_pb2.HttpService(argv=[sys.executable, "programs.py", "$PORT", name]),
        limits=sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_OPEN),
        max_workers=1,
        exclusive_group="small",
    )
    return sessions_pb2.ServeModelRequest(model=model)


async def standing(admin: Client) -> dict[str, sessions_pb2.ModelInGroup]:
    models = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
    return {model.name: model.in_group for model in models}


async def test_programs_of_a_group_share_a_gpu_and_every_request_is_answered(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    with long_lived("a node with its replicas"):
        await stage.fleet.add_node("n1", "--virtual-gpus", "1")
    async with stage.fleet.client() as admin:
        caller = Caller(stage)
        for name in ("one", "two"):
            await admin.stub.ServeModel(asked(admin, name, admin.cwd))
        for _ in range(ROUNDS):
            for name in ("one", "two"):
                answers = await asyncio.gather(*(caller.get(f"/m/{name}/a") for _ in range(3)))
                assert [(status, said.split()[0]) for status, said in answers] == [(200, name)] * 3
        # Both at once, which takes turns.
        both = await asyncio.gather(*(caller.get(f"/m/{name}/b") for _ in range(2) for name in ("one", "two")))
        assert {(status, said.split()[0]) for status, said in both} == {(200, "one"), (200, "two")}

        async def sleeps() -> bool:
            found = await standing(admin)
            return {found[name].state for name in ("one", "two")} == {
                sessions_pb2.GROUP_STATE_AWAKE,
                sessions_pb2.GROUP_STATE_ASLEEP,
            }

        await until("one is awake and one sleeps", sleeps)
        (why,) = [each.message for each in (await standing(admin)).values() if each.message]
        assert why.startswith("gave its GPU to ") and "waited for" in why

        # Somebody else's group of that name is another one: its request puts nobody to sleep.
        token = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="bob", role=scheduler_pb2.ROLE_USER))
        async with stage.fleet.client(token.secret) as bob:
            await bob.stub.ServeModel(asked(bob, "bobs", admin.cwd))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await bob.stub.ServeModel(asked(bob, "one", admin.cwd))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        waiting = asyncio.create_task(caller.get("/m/bobs/a"))

        async def waits() -> bool:
            return (await standing(admin))["bobs"].state == sessions_pb2.GROUP_STATE_WAITING

        await until("the replica of bob's program waits", waits)
        before = await standing(admin)
        # A whole hand-over later, bob's still waits: what one leaves is the other one's.
        sleeping = "one" if before["one"].state == sessions_pb2.GROUP_STATE_ASLEEP else "two"
        assert (await caller.get(f"/m/{sleeping}/c"))[0] == 200
        assert await waits()
        # Once nobody else wants the GPU, it is bob's.
        for name in ("one", "two"):
            await admin.stub.StopModel(sessions_pb2.StopModelRequest(name=name))
        await waiting  # with 503, if all of this took longer than a request waits

        async def is_bobs() -> bool:
            status, said = await caller.get("/m/bobs/b")
            return status == 200 and said.split()[0] == "bobs"

        await until("bob's program answers", is_bobs)
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="bobs"))
