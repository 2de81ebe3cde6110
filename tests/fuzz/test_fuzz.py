"""A short run of `make fuzz` by a seed of its own; and what is promised of the fuzzing itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from gpufleet.v1 import scheduler_pb2

from scheduler.api.roles import ROLES_OF
from tests.fuzz.calls import BAD, Call, Caller, Tally
from tests.fuzz.messages import Forge
from tests.fuzz.run import Order, fuzz
from tests.fuzz.steering import NODE, STEERED
from tests.fuzz.watching import Watched

SEED, MESSAGES = 20, 2_000


@pytest.fixture
def _calm() -> Iterator[None]:
    """Writing to connections that the other side has cut is what this is about: asyncio warns of it each time."""
    logger = logging.getLogger("asyncio")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("_calm")
async def test_no_message_that_nobody_should_send_breaks_anything(tmp_path: Path) -> None:
    report = await fuzz(Order(seed=SEED, messages=MESSAGES), tmp_path / "fleet")
    assert report.is_good, str(report)
    asked = {name for name, count in report.tally.calls.items() if count}
    assert asked >= set(ROLES_OF), "calls that nothing was sent to"
    assert sum(report.tally.messages.values()) >= MESSAGES


def test_every_call_that_is_steered_is_one_of_the_contract_and_says_why() -> None:
    assert set(STEERED) <= set(ROLES_OF)
    assert all(len(each.why) > 20 for each in STEERED.values())


@pytest.mark.parametrize("call", ["UpdateNode", "ForgetNode", "RevokeNode"])
def test_the_only_node_is_never_taken_away(call: str) -> None:
    descriptor = scheduler_pb2.DESCRIPTOR.message_types_by_name[f"{call}Request"]
    forge = Forge(Random(1), {"node": [NODE, "strange-1"]})
    sent = [forge.request(descriptor, STEERED[f"Scheduler/{call}"].steer) for _ in range(2_000)]
    assert len(set(sent)) > 200
    assert not any(_node(descriptor, each) == NODE for each in sent)


def _node(descriptor: Any, data: bytes) -> str:
    try:
        message: Any = GetMessageClass(descriptor).FromString(data)
        return str(message.node)
    except DecodeError:  # what cannot be read is not carried out
        return ""


@pytest.mark.parametrize("status", sorted(BAD))
async def test_an_error_that_a_server_answers_is_told_of(status: str) -> None:
    async def answer(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.abort(grpc.StatusCode[status], "broken")

    service = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"]
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Submit": grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    call = Call("scheduler", address, service.methods_by_name["Submit"])
    tally = Tally.empty()
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        caller = Caller({address: [channel]}, {"user": "x"}, tally)
        for number in range(20):
            await caller.make(call, Random(number), known={}, roles=["user"])
    await server.stop(None)
    assert any(f"answered {status} to [" in each and "broken" in each for each in tally.wrong), tally.statuses


def test_a_seed_makes_the_same_messages_again() -> None:
    descriptor = scheduler_pb2.SubmitRequest.DESCRIPTOR

    def some(seed: int) -> list[bytes]:
        forge = Forge(Random(seed), {"name": ["a"]})
        return [forge.request(descriptor, None) for _ in range(200)]

    assert some(1) == some(1) != some(2)


def test_a_trace_in_a_log_is_found_with_what_it_is_about(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "2026-01-01T00:00:00.000Z ERROR   scheduler a call failed method=Queue\n"
        "    Traceback (most recent call last):\n      File x\n    ValueError: 1\n"
        "2026-01-01T00:00:01.000Z INFO    scheduler goes on\n"
    )
    watched = Watched("scheduler", 1, log)
    (found,) = watched.look()
    assert "a call failed method=Queue" in found and "ValueError: 1" in found and "goes on" not in found
    assert watched.look() == [] and watched.wrongs == 1
    with log.open("a") as more:
        more.write("2026-01-01T00:00:02.000Z ERROR   scheduler Task exception was never retrieved\n")
    assert len(watched.look()) == 1
