"""Listening: the port that is chosen, and the error that names who is in the way."""

from __future__ import annotations

import getpass
import socket
import subprocess
import sys
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address
from gpufleet.net.channel import server_options
from gpufleet.net.listening import Holder, holder_of, listen, listening_hosts
from gpufleet.security.tokens import make_token

TOKEN = make_token()
LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator[tuple[int, int]]:
    """Another process that listens: its pid and port. Its command holds a token, as a careless one might."""
    command = [sys.executable, "-c", LISTENER, "careless", TOKEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


async def refusal(address: Address, flag: str = "--port") -> GpufleetError:
    server = grpc.aio.server(options=server_options())
    try:
        with pytest.raises(GpufleetError) as caught:
            listen(server, address, flag=flag)
        return caught.value
    finally:
        await server.stop(None)


async def test_port_0_takes_a_free_port() -> None:
    server = grpc.aio.server(options=server_options())
    port = listen(server, Address("127.0.0.1", 0))
    await server.start()
    assert port > 0
    holder = holder_of(port)
    assert holder is not None and holder.pid is not None
    await server.stop(None)


async def test_a_taken_port_names_its_holder_and_the_flag_and_hides_tokens(
    other: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    pid, port = other
    error = await refusal(Address("127.0.0.1", port), "--scheduler-port")
    assert capfd.readouterr().err == "", "gRPC has no word of its own to add"
    assert error.reason is Reason.PORT_TAKEN
    assert error.message.startswith(f"port {port} is taken by {sys.executable} -c ")
    assert error.message.endswith(f"(pid {pid}, of {getpass.getuser()})")
    assert error.next_step == f"Stop it (kill {pid}), or choose another port with --scheduler-port."
    assert error.metadata == {"port": str(port), "pid": str(pid)}
    assert TOKEN not in error.message and "\n" not in error.message


async def test_a_port_taken_on_all_networks_is_taken_here_too() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as other:
        error = await refusal(Address("127.0.0.1", other.getsockname()[1]))
    assert error.reason is Reason.PORT_TAKEN


async def test_an_address_of_another_machine_and_an_unknown_name_are_told_apart() -> None:
    error = await refusal(Address("192.0.2.1", 0))
    assert error.reason is Reason.ADDRESS_INVALID
    assert "no network of this machine has this address" in error.message
    error = await refusal(Address("no-such-host.invalid", 0))
    assert 'the host "no-such-host.invalid" has no address' in error.message


def test_a_free_port_has_no_holder() -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else gets it, and it is not taken by a server
        bound.bind(("127.0.0.1", 0))
        assert holder_of(bound.getsockname()[1]) is None


def test_a_holder_of_another_account_is_named_by_its_account() -> None:
    assert str(Holder("alice")) == "a process of alice"


def test_the_addresses_at_which_a_port_is_listened_on_are_told_as_people_write_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as four:
        assert list(listening_hosts(four.getsockname()[1])) == ["127.0.0.1"]
    with socket.create_server(("::", 0), family=socket.AF_INET6) as six:
        assert list(listening_hosts(six.getsockname()[1])) == ["::"]
    with socket.create_server(("::ffff:127.0.0.1", 0), family=socket.AF_INET6, dualstack_ipv6=True) as mapped:
        assert list(listening_hosts(mapped.getsockname()[1])) == ["127.0.0.1"]
    with socket.socket() as silent:  # bound, so that nobody else listens there
        silent.bind(("127.0.0.1", 0))
        assert list(listening_hosts(silent.getsockname()[1])) == []
