"""Which addresses are this machine or its link, and connections that lead nowhere else than beyond them.

A user names the URL that the agent posts to. Behind these addresses are services that trust whoever can reach them: the
machine's own, and those that hand a cloud's machines their credentials.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

_HERE = tuple(
    map(
        ipaddress.ip_network,
        ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "::/128", "::1/128", "fe80::/10", "fd00:ec2::/32"),
    )
)
"""This machine, its link, and where a cloud's machines ask for their credentials beside them."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


class LocalAddress(Exception):
    """What is to be connected to is on this machine, or on its link. The text names the address at most."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} is this machine or its link, and [notify] allow_local in the agent's settings does not allow that"
        )


def is_local(address: str) -> bool:
    """Whether an IP address, as text, is this machine or its link, in whatever form it is written into IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and (ip in _NAT64 or ip in _COMPATIBLE) and int(ip) & 0xFFFFFFFF > 1:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_local(str(inner))
    return any(ip in network for network in _HERE if network.version == ip.version)


def refuse_local_host(host: str) -> None:
    """A host that needs no look-up to be one of these: an address in any form, or localhost. Errors: LocalAddress."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        raise LocalAddress(name)
    try:
        address = socket.inet_ntoa(socket.inet_aton(name))  # 2130706433, 0x7f.1 and 0177.0.0.1 are 127.0.0.1
    except OSError:
        address = name
    try:
        is_refused = is_local(address)
    except ValueError:
        return  # a name
    if is_refused:
        raise LocalAddress(address)


def connect_beyond(address: tuple[str, int], timeout: Any = None, source_address: Any = None) -> socket.socket:
    """As `socket.create_connection`, to what the name is resolved to now. Errors: LocalAddress, OSError.

    What was looked up is what is connected to: a name that leads elsewhere a moment later changes nothing.
    """
    host, port = address
    refused = ""
    problem: OSError | None = None
    for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        ip = str(found[0])
        if is_local(ip):
            refused = ip
            continue
        try:
            return socket.create_connection((ip, port), timeout, source_address)
        except OSError as error:
            problem = error
    if refused:
        raise LocalAddress(refused)
    raise problem or OSError("the host has no address")
