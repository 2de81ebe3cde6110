"""A channel over several addresses: whichever serves is found, whatever the others do, and another one after it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net import resolving
from gpufleet.net.addresses import ADDRESSES_MAX, Address, addresses_text, parse_addresses
from gpufleet.net.certificates import make_certificates
from gpufleet.net.channel import (
    FOLLOWING_ANSWER_MS_MAX,
    FOLLOWING_KEEPALIVE_MS,
    Target,
    client_options,
    connect,
    connect_async,
    connected_within,
    server_options,
)
from gpufleet.net.listening import listen
from gpufleet.net.resolving import target_of_all
from gpufleet.net.tls import server_credentials

BOUND_S = 60.0


def handlers(name: bytes) -> grpc.GenericRpcHandler:
    """Answers with its name, once or as a stream that then stays silent."""

    async def ask(request: bytes, context: Any) -> bytes:
        return name

    async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield name
        await asyncio.Event().wait()

    methods: dict[str, Any] = {
        "Ask": grpc.unary_unary_rpc_method_handler(ask),
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
    }
    return grpc.method_handlers_generic_handler("T", methods)


@asynccontextmanager
async def serving(
    name: bytes, credentials: grpc.ServerCredentials | None = None, port: int = 0
) -> AsyncIterator[Address]:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((handlers(name),))
    where = Address("127.0.0.1", listen(server, Address("127.0.0.1", port), credentials))
    await server.start()
    try:
        yield where
    finally:
        await server.stop(None)


@contextmanager
def bound_and_refusing() -> Iterator[Address]:
    """A port that is taken, and that nobody listens on: connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield Address("127.0.0.1", taken.getsockname()[1])


@contextmanager
def taking_and_silent() -> Iterator[Address]:
    """Connections are taken by the kernel, and nobody ever says anything: as of a program that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Address("127.0.0.1", listening.getsockname()[1])


def target_of_list(*addresses: Address, **settings: Any) -> Target:
    return Target(address=addresses[0], others=addresses[1:], **settings)


async def answer_of(target: Target) -> bytes:
    async with connect_async(target) as channel:
        ask: Any = channel.unary_unary("/T/Ask")
        return bytes(await ask(b"", timeout=BOUND_S))


@pytest.mark.parametrize("first", [bound_and_refusing, taking_and_silent])
async def test_the_one_that_serves_is_found_behind_one_that_does_not(first: Any) -> None:
    with first() as dead:
        async with serving(b"second") as second:
            target = target_of_list(dead, second)
            assert await answer_of(target) == b"second"

            def in_a_thread() -> bytes:
                with connect(target) as channel:
                    ask: Any = channel.unary_unary("/T/Ask")
                    return bytes(ask(b"", timeout=BOUND_S))

            assert await asyncio.to_thread(in_a_thread) == b"second"


async def test_the_first_that_serves_is_taken_and_the_next_one_once_it_is_gone() -> None:
    async with serving(b"second") as second:
        async with serving(b"first") as first:
            channel = connect_async(target_of_list(first, second))
            ask: Any = channel.unary_unary("/T/Ask")
            assert await ask(b"", timeout=BOUND_S) == b"first"
        assert await ask(b"", timeout=BOUND_S, wait_for_ready=True) == b"second"
        await channel.close()


async def test_one_that_takes_over_later_is_found_by_the_same_channel() -> None:
    with bound_and_refusing() as later:
        pass  # the port is free again, and known
    async with serving(b"first") as first:
        channel = connect_async(target_of_list(first, later))
        ask: Any = channel.unary_unary("/T/Ask")
        assert await ask(b"", timeout=BOUND_S) == b"first"
    with pytest.raises(grpc.aio.AioRpcError):
        await ask(b"", timeout=BOUND_S)
    async with serving(b"later", port=later.port):
        assert await ask(b"", timeout=BOUND_S, wait_for_ready=True) == b"later"
    await channel.close()


async def test_where_none_serves_the_call_fails_at_once_and_says_why() -> None:
    with bound_and_refusing() as first, bound_and_refusing() as second, pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer_of(target_of_list(first, second))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "Connection refused" in (caught.value.details() or "")


SERVER = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_channel_of_several import serving
async def main():
    async with serving(b"stopped") as where:
        print(where, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@contextmanager
def program_that_serves() -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """A server in a process of its own, which can be stopped as a whole."""
    program = subprocess.Popen([sys.executable, "-P", "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        (where,) = parse_addresses(program.stdout.readline().strip())
        yield program, where
    finally:
        program.kill()
        program.communicate()


async def test_a_server_that_is_stopped_is_left_though_its_stream_is_silent_anyway() -> None:
    with program_that_serves() as (program, first):
        async with serving(b"second") as second, connect_async(target_of_list(first, second)) as channel:
            watch: Any = channel.unary_stream("/T/Watch")
            stream = watch(b"")
            assert await stream.read() == b"stopped"
            os.kill(program.pid, signal.SIGSTOP)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with asyncio.timeout(BOUND_S):
                    await stream.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "ping timeout" in (caught.value.details() or "")
            assert await first_word_of(watch) == b"second"


async def first_word_of(watch: Any) -> bytes:
    """Ask until one serves: a call that begins as a connection ends may still be given to that one, and fail."""
    async with asyncio.timeout(BOUND_S):
        while True:
            stream = watch(b"")
            try:
                return bytes(await stream.read())
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
            finally:
                stream.cancel()


def test_a_stopped_server_is_noticed_within_seconds_by_the_option_that_grpc_looks_at() -> None:
    of_several = dict(client_options(has_others=True))
    assert of_several["grpc.http2.ping_timeout_ms"] == FOLLOWING_ANSWER_MS_MAX == 2_000
    assert of_several["grpc.keepalive_time_ms"] == FOLLOWING_KEEPALIVE_MS == 1_000
    assert of_several["grpc.http2.max_pings_without_data"] == 0, "a silent stream is probed, too"
    asked_of_servers = dict(server_options())["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(asked_of_servers) < FOLLOWING_KEEPALIVE_MS, "else the server ends such connections"
    of_one = dict(client_options())
    assert of_one["grpc.http2.ping_timeout_ms"] == of_one["grpc.keepalive_timeout_ms"]


async def test_who_dials_one_after_the_other_leaves_a_silent_one_in_time() -> None:
    with taking_and_silent() as silent:
        async with connect_async(Target(address=silent, is_one_of_several=True)) as channel:
            with pytest.raises(GpufleetError, match="no connection within") as caught:
                await connected_within(channel, 0.2)
    assert caught.value.reason is Reason.SCHEDULER_UNREACHABLE
    with bound_and_refusing() as refusing:
        async with connect_async(Target(address=refusing, is_one_of_several=True)) as channel:
            await connected_within(channel, BOUND_S)  # the call behind it tells why


@pytest.fixture
def two_certificates(tmp_path: Path) -> tuple[grpc.ServerCredentials, grpc.ServerCredentials, Path]:
    """Of one authority, two certificates that both hold both names; and the authority."""
    made: list[grpc.ServerCredentials] = []
    for _ in range(2):
        files = make_certificates(tmp_path, ["a.lab", "b.lab", "127.0.0.1"])
        made.append(server_credentials(files.cert_file, files.key_file))
    return made[0], made[1], files.ca_file


def known_as(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    """Names that this machine then knows, beside its own."""
    real = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **options: Any) -> Any:
        if host in names or "." not in str(host):
            return real(names.get(host, host), *args, **options)
        if host.endswith(".lab"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


async def test_tls_compares_the_first_name_with_each_certificate(
    two_certificates: tuple[grpc.ServerCredentials, grpc.ServerCredentials, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = two_certificates[:2]
    authority = two_certificates[2]
    known_as(monkeypatch, {"a.lab": "127.0.0.1", "b.lab": "127.0.0.1", "c.lab": "127.0.0.1"})
    async with serving(b"b", credentials[1]) as at_b:
        async with serving(b"a", credentials[0]) as at_a:
            for names, answer in ((("a.lab", "b.lab"), b"a"), (("b.lab", "a.lab"), b"b")):
                ports = {"a.lab": at_a.port, "b.lab": at_b.port}
                named = [Address(name, ports[name]) for name in names]
                assert await answer_of(target_of_list(*named, ca_file=authority)) == answer
            with pytest.raises(grpc.aio.AioRpcError, match=r"verif|VERIFY|peer"):
                await answer_of(
                    target_of_list(Address("c.lab", at_a.port), Address("a.lab", at_a.port), ca_file=authority)
                )
        assert (
            await answer_of(target_of_list(Address("a.lab", at_a.port), Address("b.lab", at_b.port), ca_file=authority))
            == b"b"
        )


def test_names_become_ip_addresses_and_what_is_not_known_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, {"a.lab": "127.0.0.1", "six.lab": "::1"})
    a, six, unknown = Address("a.lab", 1), Address("six.lab", 2), Address("no.lab", 3)
    assert target_of_all([a, Address("10.0.0.2", 2)]) == "ipv4:127.0.0.1:1,10.0.0.2:2"
    assert target_of_all([unknown, a]) == "ipv4:127.0.0.1:1"
    assert target_of_all([a, six]) == "ipv6:[::ffff:127.0.0.1]:1,[::1]:2"
    assert target_of_all([Address("fe80::1%lo", 7)]) == "ipv6:[fe80::1%25lo]:7"
    with pytest.raises(GpufleetError, match=r"no\.lab: Name or service not known; nor\.lab: Name") as caught:
        target_of_all([unknown, Address("nor.lab", 4)])
    assert caught.value.reason is Reason.SCHEDULER_UNREACHABLE


def test_a_name_server_that_does_not_answer_keeps_nobody_from_the_other_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from threading import Event

    until = Event()

    def hang(*_: Any, **__: Any) -> Any:
        until.wait(BOUND_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(resolving, "RESOLVE_SECONDS_MAX", 0.1)
    try:
        assert target_of_all([Address("slow.lab"), Address("10.0.0.2", 2)]) == "ipv4:10.0.0.2:2"
    finally:
        until.set()


async def test_an_ipv4_address_is_reached_beside_an_ipv6_address() -> None:
    async with serving(b"here") as here:
        assert await answer_of(target_of_list(Address("::1", 1), here)) == b"here"


@pytest.mark.parametrize(
    ("hosts", "settings", "uses_tls"),
    [
        (("127.0.0.1", "localhost"), {}, False),
        (("127.0.0.1", "10.0.0.5"), {}, True),
        (("10.0.0.5", "127.0.0.1"), {}, True),
        (("10.0.0.5", "10.0.0.6"), {"is_insecure": True}, False),
    ],
)
def test_plain_text_is_spoken_where_every_address_allows_it(
    hosts: tuple[str, ...], settings: dict[str, Any], uses_tls: bool
) -> None:
    assert target_of_list(*map(Address, hosts), **settings).uses_tls is uses_tls


def test_a_list_is_read_and_written_back() -> None:
    text = "gpu1:50051,[::1]:7,10.0.0.5:50051"
    assert parse_addresses("gpu1, [::1]:7 ,10.0.0.5") == parse_addresses(text)
    assert addresses_text(parse_addresses(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a:1,b:x,c:3", 'address 2 of 3: "b:x" is not an address: the port "x" is not'),
        ("a:1,", "address 2 of 2: .* the host is missing"),
        ("a:1,b:1,a:1", "address 3 of 3: a:1 is in the list already"),
        (",".join(f"h{number}" for number in range(ADDRESSES_MAX + 1)), "a list of 9 addresses is too long: 8 is the"),
        ("http://a,b", "address 1 of 2: .*leave out the scheme"),
    ],
)
def test_of_a_wrong_list_the_part_is_named(text: str, why: str) -> None:
    with pytest.raises(GpufleetError, match=why) as caught:
        parse_addresses(text)
    assert caught.value.reason is Reason.ADDRESS_INVALID
