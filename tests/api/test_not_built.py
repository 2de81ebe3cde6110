"""What is in the contract and not built yet says so, with a next step, and never hangs."""

from __future__ import annotations

import grpc.aio
import pytest

from gpufleet.errors import Reason
from tests.api.calls import Caller, not_built
from tests.e2e.fleet import Fleet


def test_the_contract_names_what_is_not_built() -> None:
    assert len(not_built()) == 1


@pytest.mark.parametrize("name", not_built())
async def test_a_call_that_is_not_built_is_unimplemented_with_help(fleet: Fleet, caller: Caller, name: str) -> None:
    role = "agent" if name.startswith("NodeAgent/") else "admin"
    error = await caller.error(name, token=fleet.scheduler.token(role))
    assert error is not None
    assert error.reason is Reason.NOT_BUILT
    assert error.code.name == "UNIMPLEMENTED"
    assert name.partition("/")[2] in error.message
    assert error.next_step


async def test_a_call_that_nobody_knows_is_unimplemented(fleet: Fleet, caller: Caller) -> None:
    for path in ("/gpufleet.v1.Scheduler/MakeCoffee", "/gpufleet.v2.Scheduler/Submit", "/nonsense"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.channel.unary_unary(path)(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
