"""Channels to workers that turns leave to the next ones. The workers are bare servers of grpc.health.v1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1 import sessions_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gateway import workers as module
from gateway.workers import Workers
from gpufleet.net.addresses import parse_address
from gpufleet.net.certificates import OwnCertificate, make_own_certificate
from gpufleet.net.channel import Target
from tests.e2e.processes import DEADLINE_SECONDS, until

READY = grpc.ChannelConnectivity.READY


def target_of(grant: sessions_pb2.TurnGrant) -> Target:
    return Target(address=parse_address(grant.endpoint), certificate=grant.certificate.encode())


@asynccontextmanager
async def gateway() -> AsyncIterator[Workers]:
    """The channels of one gateway."""
    workers = Workers(target_of)
    try:
        yield workers
    finally:
        await workers.close()


@asynccontextmanager
async def worker(port: int = 0, own: OwnCertificate | None = None) -> AsyncIterator[sessions_pb2.TurnGrant]:
    """A turn at a server that is there for the length of the block."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    healthy: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    if own is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        credentials = grpc.ssl_server_credentials([(own.key, own.certificate)])
        port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    try:
        certificate = own.certificate.decode() if own is not None else ""
        yield sessions_pb2.TurnGrant(endpoint=f"127.0.0.1:{port}", certificate=certificate)
    finally:
        await server.stop(None)


def port_of(grant: sessions_pb2.TurnGrant) -> int:
    return int(grant.endpoint.rpartition(":")[2])


async def ask(channel: grpc.aio.Channel) -> None:
    """Be at the worker; raises where it does not answer."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    await stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS)


async def turn(workers: Workers, grant: sessions_pb2.TurnGrant) -> grpc.aio.Channel:
    """A turn that begins and ends; answers the channel that it had."""
    async with workers.reached(grant) as channel:
        await ask(channel)
    return channel


async def test_the_next_turn_of_a_worker_finds_the_connection_of_the_one_before() -> None:
    async with gateway() as workers, worker() as grant:
        first = await turn(workers, grant)
        assert first.get_state() is READY
        async with workers.reached(grant) as second, workers.reached(grant) as third:
            assert first is second is third


async def test_a_worker_that_is_gone_leaves_no_channel_and_another_one_at_its_address_is_reached_at_once() -> None:
    async with gateway() as workers:
        async with worker() as grant:
            first = await turn(workers, grant)
        async with workers.reached(grant) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(channel)
        assert channel is first
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        async with worker(port_of(grant)) as again:
            assert await turn(workers, again) is not first


async def test_a_worker_that_was_lost_during_a_turn_is_dialled_anew_for_the_next_one() -> None:
    async with gateway() as workers:
        async with worker() as grant:
            stack = workers.reached(grant)
            lost = await stack.__aenter__()
            await ask(lost)
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(lost)
        async with worker(port_of(grant)) as again:
            # The lost one is still in use, and waits before it dials again.
            assert await turn(workers, again) is not lost
            await stack.__aexit__(None, None, None)
            assert lost.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_a_worker_with_another_certificate_gets_a_channel_that_trusts_just_that() -> None:
    async with gateway() as workers:
        async with worker(own=make_own_certificate("127.0.0.1")) as grant:
            first = await turn(workers, grant)
        async with worker(port_of(grant), own=make_own_certificate("127.0.0.1")) as again:
            second = await turn(workers, again)
        assert first is not second
        assert first.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_of_the_channels_without_a_turn_the_one_that_was_used_the_longest_ago_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WITHOUT_TURN_MAX", 2)
    async with gateway() as workers, worker() as one, worker() as two, worker() as three, worker() as four:
        channels = [await turn(workers, grant) for grant in (one, two, one, three, four)]
        # A turn that goes on keeps its channel however many there are.
        async with workers.reached(three):
            channels += [await turn(workers, grant) for grant in (two, four)]
            states = [each.get_state() for each in channels]
        gone = grpc.ChannelConnectivity.SHUTDOWN
        assert states == [gone, gone, gone, READY, READY, READY, READY]


async def test_a_connection_that_has_no_turn_for_long_ends_and_is_dialled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_MS_MAX", 1_000)
    async with gateway() as workers, worker() as grant:
        first = await turn(workers, grant)
        await until("the connection ends", lambda: first.get_state() is grpc.ChannelConnectivity.IDLE)
        assert await turn(workers, grant) is first
        assert first.get_state() is READY


async def test_a_gateway_that_leaves_closes_every_channel() -> None:
    async with worker() as grant:
        async with gateway() as workers:
            channel = await turn(workers, grant)
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
