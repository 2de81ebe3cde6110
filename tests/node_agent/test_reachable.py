"""Which address an agent advertises by itself: one only where the scheduler would see loopback."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpufleet.net.addresses import Address
from node_agent import machine
from node_agent.machine import address_to_advertise, own_address


@pytest.fixture(autouse=True)
def _way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "own_address", lambda: "10.0.0.5")


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ([Address("127.0.0.1")], "10.0.0.5"),
        ([Address("localhost")], "10.0.0.5"),
        ([Address("::1")], "10.0.0.5"),
        ([Address("192.0.2.7")], ""),
        ([Address("192.0.2.7"), Address("127.0.0.1")], "10.0.0.5"),
        ([], ""),
    ],
)
async def test_an_agent_beside_its_scheduler_advertises_its_way_out_and_no_other_does(
    scheduler: list[Address], expected: str
) -> None:
    assert await address_to_advertise(scheduler) == expected


@pytest.mark.parametrize(("resolved", "expected"), [("127.0.1.1", "10.0.0.5"), ("10.0.0.5", "")])
async def test_a_name_that_means_this_very_machine_counts_by_what_it_is_looked_up_as(
    monkeypatch: pytest.MonkeyPatch, resolved: str, expected: str
) -> None:
    def look_up(*asked: Any, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved, 50051))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert await address_to_advertise([Address("head")]) == expected


async def test_a_name_that_nobody_knows_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*asked: Any, **more: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert await address_to_advertise([Address("head")]) == ""


def test_the_way_out_is_an_address_of_this_machine_or_none() -> None:
    address = own_address()
    if address:
        with socket.socket() as here:
            here.bind((address, 0))
        assert not address.startswith("127.")
