"""Which addresses are this machine, its link or a cloud's metadata, and connections that lead beyond them.

A user names the URL that the agent posts to. Behind these addresses are services that trust whoever can reach them: the
machine's own, at whichever of its addresses, and those that hand a cloud's machines their credentials.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

_HERE = tuple(
    map(
        ipaddress.ip_network,
        ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "::/128", "::1/128", "fe80::/10"),
    )
)
"""This machine and its link, where most clouds' machines ask for their credentials."""
_METADATA = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.100.100.200/32",  # Alibaba Cloud
            "168.63.129.16/32",  # Azure, its wire server
            "192.0.0.192/32",  # Oracle Cloud Classic
            "fd00:ec2::/32",  # Amazon
            "fd20:ce::/32",  # Google Cloud
            "fd00:42::42/128",  # Scaleway
            "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud
        ),
    )
)
"""Where machines of a cloud ask beside their link."""
_DISCARD_PORT = 9
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


class LocalAddress(Exception):
    """What is to be connected to is this machine, its link or a cloud's metadata.

    The text names the address at most.
    """

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} is this machine, its link or a cloud's metadata, and [notify] allow_local in the agent's "
            "settings does not allow that"
        )


def is_local(address: str) -> bool:
    """Whether an IP address, as text, is none to connect to, in whatever form it is written into IPv6.

    Which addresses the machine has is looked up each time: they come and go.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and (ip in _NAT64 or ip in _COMPATIBLE) and int(ip) & 0xFFFFFFFF > 1:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_local(str(inner))
    known = (network for network in (*_HERE, *_METADATA) if network.version == ip.version)
    return any(ip in network for network in known) or _is_own(ip)


def _is_own(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an interface of this machine has the address: what it sends there, it sends from there.

    Nothing is sent for this. An address that it has no route to is not its own.
    """
    kind = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as asking:
            asking.connect((str(ip), _DISCARD_PORT))
            return ipaddress.ip_address(asking.getsockname()[0].partition("%")[0]) == ip
    except OSError:
        return False


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
