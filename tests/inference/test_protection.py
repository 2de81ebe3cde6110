"""What a worker shows to the network: nothing in clear text beyond its machine, unless it was told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, inference_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target, connect_async
from gpufleet.security.tokens import make_token
from gpufleet.telemetry.spans import OFF
from inference.options import parser
from inference.program import Program
from tests.inference.serving import WAIT_S_MAX, until
from tests.inference.test_link import FakeScheduler, scheduler

EVERYWHERE = ("test-pattern", "--device", "cpu", "--host", "0.0.0.0", "--port", "0")


@pytest.fixture(autouse=True)
def a_token_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_TOKEN", make_token())


async def hello_of(*flags: str) -> tuple[sessions_pb2.WorkerHello, str]:
    """What a worker with these flags says to its scheduler, and the model's name by who believes it."""
    fake = FakeScheduler()
    async with scheduler(fake) as port:
        program = Program(parser().parse_args([*EVERYWHERE, *flags, "--scheduler", f"127.0.0.1:{port}"]), OFF)
        running = asyncio.create_task(program.run())
        await until(lambda: bool(fake.hellos))
        hello = fake.hellos[0]
        target = Target(address=parse_address(hello.endpoint), certificate=hello.certificate.encode())
        async with connect_async(target) as channel:
            stub: Any = inference_pb2_grpc.InferenceStub(channel)
            info = await stub.GetModelInfo(inference_pb2.GetModelInfoRequest(), timeout=WAIT_S_MAX)
        program.stop()
        assert await running is None
    return hello, info.model


async def test_a_worker_beyond_its_machine_makes_a_certificate_and_is_reached_where_it_says() -> None:
    hello, model = await hello_of()
    assert hello.certificate.startswith("-----BEGIN CERTIFICATE-----")
    assert hello.endpoint.startswith("127.0.0.1:"), "the address towards its scheduler, and not 0.0.0.0"
    assert model == "test-pattern"
    again, _ = await hello_of()
    assert again.certificate != hello.certificate


async def test_a_worker_that_is_told_to_do_without_makes_none() -> None:
    hello, model = await hello_of("--insecure")
    assert (hello.certificate, model) == ("", "test-pattern")


async def test_a_worker_without_a_scheduler_has_nobody_to_tell_a_certificate_and_asks_for_one() -> None:
    given = parser().parse_args([*EVERYWHERE, "--standalone"])
    with pytest.raises(GpufleetError) as refused:
        Program(given, OFF)
    assert refused.value.reason is Reason.TLS_REQUIRED
