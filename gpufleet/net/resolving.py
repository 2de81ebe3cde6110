"""Several addresses of one scheduler as one target of gRPC, which then connects to whichever of them serves.

gRPC takes a list only as IP addresses, so names are looked up here, all of them at the same time. It dials the
addresses in their order, a quarter of a second apart, and takes the first that speaks HTTP/2: one that is dead, that
drops packets, or that takes connections and says nothing costs no more than that (RFC 8305).
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Sequence
from typing import NamedTuple

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address

RESOLVE_SECONDS_MAX = 3.0
"""A name server that does not answer must not keep a caller from the addresses that are known."""

IPS_PER_NAME_MAX = 4
"""IP addresses of one name that are dialled; a name server may tell many."""


class _Found(NamedTuple):
    """What a name server says of one host: IP addresses, or why there is none."""

    ips: tuple[str, ...] = ()
    problem: str = ""


def target_of_all(addresses: Sequence[Address]) -> str:
    """The target of gRPC for these addresses, in their order: `ipv4:10.0.0.1:50051,10.0.0.2:50051`.

    Names that are not known are left out while another address is. Takes RESOLVE_SECONDS_MAX at most. Raises
    SCHEDULER_UNREACHABLE where no name is known.
    """
    found = _look_up(addresses)
    dialled = [(ip, address.port) for address, each in zip(addresses, found, strict=True) for ip in each.ips]
    if not dialled:
        why = "; ".join(f"{address.host}: {each.problem}" for address, each in zip(addresses, found, strict=True))
        raise GpufleetError(Reason.SCHEDULER_UNREACHABLE, f"this machine knows none of the names: {why}")
    if all(":" not in ip for ip, _ in dialled):
        return "ipv4:" + ",".join(f"{ip}:{port}" for ip, port in dialled)
    # One target is of one family: an IPv4 address is written as the IPv6 address that stands for it (RFC 4291).
    return "ipv6:" + ",".join(f"[{_as_ipv6(ip)}]:{port}" for ip, port in dialled)


def _look_up(addresses: Sequence[Address]) -> list[_Found]:
    found = [_Found(problem=f"no name server answered within {RESOLVE_SECONDS_MAX:g} s") for _ in addresses]
    asking: list[threading.Thread] = []
    for number, address in enumerate(addresses):
        if is_ip(address.host):
            found[number] = _Found((address.host,))
            continue

        def ask(number: int = number, address: Address = address) -> None:
            found[number] = _asked(address)

        asking.append(threading.Thread(target=ask, daemon=True, name="resolver"))
    for thread in asking:
        thread.start()
    _wait_for(asking)
    return list(found)


def _wait_for(threads: Sequence[threading.Thread]) -> None:
    import time

    until = time.monotonic() + RESOLVE_SECONDS_MAX
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))


def _asked(address: Address) -> _Found:
    try:
        answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        return _Found(problem=getattr(problem, "strerror", None) or str(problem))
    ips = dict.fromkeys(str(where[0]) for *_, where in answers)  # each once, in the resolver's order (RFC 6724)
    return _Found(tuple(ips)[:IPS_PER_NAME_MAX])


def is_ip(host: str) -> bool:
    """Whether the host is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _as_ipv6(ip: str) -> str:
    return ip.replace("%", "%25") if ":" in ip else f"::ffff:{ip}"
