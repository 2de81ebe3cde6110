"""A job's URL cannot make the agent speak to its own machine, or to what hands out a cloud's credentials."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import psutil
import pytest

from node_agent.local_addresses import is_local
from node_agent.notice_delivery import PostRefused, post_once
from tests.node_agent.test_http_post import BODY, OK, WAIT_S, loopback, redirect

HERE = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "169.254.169.254", "::", "::1", "fe80::1%eth0", "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe", "2002:7f00:1::", "64:ff9b::7f00:1", "::127.0.0.1", "fd00:ec2::254", "100.100.100.200",
    "168.63.129.16", "192.0.0.192", "::ffff:100.100.100.200", "fd20:ce::254",
]  # fmt: skip
BEYOND = ["10.0.0.7", "192.168.1.1", "172.16.0.1", "93.184.216.34", "2606:2800:220:1::1", "fd12::1", "64:ff9b::a00:7"]
HOSTS = [
    "127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "localhost", "LOCALHOST.", "a.localhost",
    "[::1]", "[::ffff:127.0.0.1]", "[::]", "169.254.169.254",
]  # fmt: skip


def test_addresses_are_told_apart_in_every_form() -> None:
    assert [each for each in HERE if not is_local(each)] == []
    assert [each for each in BEYOND if is_local(each)] == []


def test_every_address_of_this_machines_interfaces_is_this_machine() -> None:
    own = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    assert own and [each for each in own if not is_local(each)] == []


@pytest.mark.parametrize("host", HOSTS)
async def test_no_form_of_this_machine_is_posted_to(host: str) -> None:
    async with loopback(OK) as server:
        port = server.url.rpartition(":")[2]
        with pytest.raises(PostRefused, match="allow_local"):
            await post_once(f"http://{host}:{port}/hook", BODY, WAIT_S)
        assert server.asked == []


async def test_what_a_name_leads_to_is_what_counts_and_it_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with loopback(OK) as server:
        port = int(server.url.rpartition(":")[2])
        asked: list[str] = []

        def lookup(host: str, *_: Any, **__: Any) -> list[Any]:
            asked.append(host)
            # First an address beyond, then this machine: whoever looked it up again would connect to the second.
            first = "127.0.0.1" if len(asked) > 1 or host == "inside.example" else "192.0.2.1"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (first, port))]

        def connect(address: tuple[str, int], *_: Any, **__: Any) -> socket.socket:
            assert address == ("192.0.2.1", port)
            raise ConnectionRefusedError("nobody is there")

        monkeypatch.setattr("node_agent.local_addresses.socket.getaddrinfo", lookup)
        monkeypatch.setattr("node_agent.local_addresses.socket.create_connection", connect)
        with pytest.raises(PostRefused, match=r"127\.0\.0\.1"):
            await asyncio.wait_for(post_once(f"http://inside.example:{port}/", BODY, WAIT_S), WAIT_S)
        asked.clear()
        with pytest.raises(Exception, match="nobody is there"):
            await post_once(f"http://rebinding.example:{port}/", BODY, WAIT_S)
        assert asked == ["rebinding.example"]
        assert server.asked == []


async def test_a_redirection_to_this_machine_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with loopback(OK) as inside:
        async with loopback(redirect(307, f"{inside.url}/creds")) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            with pytest.raises(PostRefused, match="allow_local"):
                await post_once("http://hooks.invalid/", BODY, WAIT_S)
        assert len(proxy.asked) == 1, "a proxy of the agent's own may be on its machine"
        assert inside.asked == []
