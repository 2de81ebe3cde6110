"""For whom a gateway makes a call with somebody else's token: the address that it was asked from.

The gateway brings a token of its own beside that of the person: what anybody else says of an address is not believed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

CLIENT_ADDRESS, PASSED_ON_BY = "gpufleet-client-address", "gpufleet-passed-on-by"
"""Metadata of a call: the address, and the gateway's token as `authorization` has the caller's."""

ADDRESS_CHARS_MAX = 64

PEERS_KNOWN_MAX = 1_024
"""Connections whose address is kept beside what gRPC says of it: all calls of a connection have the same."""


def passed_on(address: str, gateway_token: str) -> tuple[tuple[str, str], ...]:
    """What a gateway adds to the metadata of a call for somebody at this address; nothing where it is not known."""
    if not readable_address(address) or not gateway_token:
        return ()
    return (CLIENT_ADDRESS, address), (PASSED_ON_BY, f"Bearer {gateway_token}")


def client_said(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[str, str] | None:
    """The address, and the token of who says it, as a server gets them, unchecked; None where nobody says one."""
    found = {key: value for key, value in metadata if key in (CLIENT_ADDRESS, PASSED_ON_BY)}
    address, by = found.get(CLIENT_ADDRESS), found.get(PASSED_ON_BY)
    if not isinstance(address, str) or not isinstance(by, str):
        return None
    scheme, _, token = by.partition(" ")
    read = readable_address(address)
    return (read, token.strip()) if read and scheme == "Bearer" else None


def readable_address(text: str) -> str:
    """An IP address as it is usually written; empty for anything else."""
    if len(text) > ADDRESS_CHARS_MAX:
        return ""
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


@lru_cache(PEERS_KNOWN_MAX)
def address_of_peer(peer: str) -> str:
    """The address of who calls, without the port, from gRPC's words for it, such as ipv6:%5B::1%5D:50123."""
    _, _, where = unquote(peer).partition(":")
    return readable_address(where.rpartition(":")[0]) or peer[:ADDRESS_CHARS_MAX]
