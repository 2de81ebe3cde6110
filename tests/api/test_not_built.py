"""What is in the contract is built, and what is not in it says so and never hangs."""

from __future__ import annotations

import grpc.aio
import pytest

from tests.api.calls import Caller, not_built
from tests.e2e.fleet import Fleet


def test_every_call_of_the_contract_is_built() -> None:
    assert not not_built()


async def test_a_call_that_nobody_knows_is_unimplemented(fleet: Fleet, caller: Caller) -> None:
    for path in ("/gpufleet.v1.Scheduler/MakeCoffee", "/gpufleet.v2.Scheduler/Submit", "/nonsense"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.channel.unary_unary(path)(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
