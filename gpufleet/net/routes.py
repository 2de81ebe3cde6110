"""By which of its addresses this machine is reached: the one on its way to the scheduler, as others are beside it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterable

from gpufleet.net.addresses import Address

LOOPBACK = "127.0.0.1"

LOOK_UP_SECONDS_MAX = 2.0
"""A name server that does not answer must not keep a program from its work."""


async def address_toward(schedulers: Iterable[Address]) -> str:
    """This machine's address on its way to the scheduler, where gateways beside it reach a worker.

    Loopback for a scheduler on loopback, and where there is no way yet.
    """
    for scheduler in schedulers:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LOOK_UP_SECONDS_MAX):
                return await asyncio.to_thread(_address_toward, scheduler)
    return LOOPBACK


def is_every_address(host: str) -> bool:
    """Whether to listen there means every address of this machine, so that it names none by which to reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def every_address(like: str) -> str:
    """The host that means every address of the family of this one; of IPv4 for a name."""
    return "::" if ":" in like else "0.0.0.0"


def _address_toward(scheduler: Address) -> str:
    found = socket.getaddrinfo(scheduler.host, scheduler.port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent, only the route is looked up
        own: str = probe.getsockname()[0]
        return own
