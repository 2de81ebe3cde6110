"""Addresses: what is read, what is refused, and what counts as this machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address, is_loopback, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node7", "node7", 50051),
        ("node7:6000", "node7", 6000),
        (" gpu-1.lab.example:1 ", "gpu-1.lab.example", 1),
        ("10.0.0.5:50051", "10.0.0.5", 50051),
        ("::1", "::1", 50051),
        ("[::1]", "::1", 50051),
        ("[fe80::1]:7000", "fe80::1", 7000),
        ("my_host:65535", "my_host", 65535),
    ],
)
def test_an_address_is_read_and_written_back(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the host is missing"),
        (":50051", "the host is missing"),
        ("node7:", 'the port "" is not'),
        ("node7:0", "from 1 to 65535"),
        ("node7:65536", "from 1 to 65535"),
        ("node7:²", "from 1 to 65535"),
        ("node7:http", "from 1 to 65535"),
        ("http://node7:50051", "leave out the scheme"),
        ("[::1", "bracket"),
        ("[::1]50051", "bracket"),
        ("[node7]:1", "only an IPv6 address"),
        ("node 7", "is not a host name"),
        ("1:2:3", "is not a host name"),
        ("a" * 300, "is not a host name"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(GpufleetError, match=why) as caught:
        parse_address(text)
    assert caught.value.reason is Reason.ADDRESS_INVALID


def test_a_listener_may_ask_for_any_port() -> None:
    assert parse_address("127.0.0.1:0", lowest_port=0) == Address("127.0.0.1", 0)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.5", "node7", "localhost.example", "127.0.0.1.example"])
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    try:
        address = parse_address(text)
    except GpufleetError:
        return
    assert parse_address(str(address)) == address
