"""The address by which other nodes reach this one, where the scheduler cannot see it.

The scheduler sees an agent by the address that it calls from. An agent beside its scheduler calls from loopback, and to
another node of a gang 127.0.0.1 is itself. So such an agent says by itself what `--advertise` would: the address that
this machine has on its way to other networks. A machine without such a way has nobody to be reached by.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable

from gpufleet.addresses import Address, is_loopback
from gpufleet.routes import LOOK_UP_SECONDS_MAX

SOMEWHERE = ("192.0.2.1", 9)
"""An address that is reserved for documentation: the kernel chooses a way to it, and nothing is ever sent."""


async def address_to_advertise(schedulers: Iterable[Address]) -> str:
    """What to advertise where nobody said it; "" where the scheduler sees a good address, or there is none."""
    for scheduler in schedulers:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LOOK_UP_SECONDS_MAX):
                if await _is_beside(scheduler):
                    return own_address()
    return ""


def own_address() -> str:
    """The IPv4 address of this machine on its way to other networks; "" without such a way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
    return "" if is_loopback(address) else address


async def _is_beside(scheduler: Address) -> bool:
    """Whether this machine reaches that scheduler over loopback, as it does by its own name on some distributions."""
    if is_loopback(scheduler.host):
        return True
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(scheduler.host, scheduler.port, type=socket.SOCK_STREAM)
    return any(is_loopback(str(where[0])) for *_, where in found)
