"""Addresses of programs: HOST, HOST:PORT, IPv6 in brackets, lists; and which of them never leave the machine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, Reason

DEFAULT_PORT = 50051
"""Where a scheduler listens and is looked for, unless something else is said."""

ADDRESSES_MAX = 8
"""How many addresses of one scheduler and its standbys a list may hold."""

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")


@dataclass(frozen=True, slots=True)
class Address:
    """A host (a name, an IPv4 or an IPv6 address without brackets) and a port."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int = DEFAULT_PORT, *, lowest_port: int = 1) -> Address:
    """Read `node7`, `node7:50051`, `10.0.0.5:50051`, `::1` or `[::1]:50051`; the port defaults to 50051.

    A listener passes `lowest_port=0`, where 0 asks for any free port. Raises ADDRESS_INVALID.
    """
    text = text.strip()
    host, port_text = _split(text)
    if not _is_host(host):
        raise _refused(text, "the host is missing" if not host else f'"{host}" is not a host name or an IP address')
    if port_text is None:
        return Address(host, default_port)
    if not port_text.isascii() or not port_text.isdigit() or not lowest_port <= int(port_text) <= 65535:
        raise _refused(text, f'the port "{port_text}" is not a number from {lowest_port} to 65535')
    return Address(host, int(port_text))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Read `a:1` or `a:1,b:2`: where a scheduler is looked for, ADDRESSES_MAX places at most, each once.

    Raises ADDRESS_INVALID, which says of a list which of its addresses is wrong.
    """
    return addresses_of(text.split(","))


def addresses_of(texts: Sequence[str]) -> tuple[Address, ...]:
    """The same of texts that are apart already."""
    if len(texts) > ADDRESSES_MAX:
        raise GpufleetError(
            Reason.ADDRESS_INVALID, f"a list of {len(texts)} addresses is too long: {ADDRESSES_MAX} is the most"
        )
    found: list[Address] = []
    for number, text in enumerate(texts, 1):
        place = f"address {number} of {len(texts)}: " if len(texts) > 1 else ""
        try:
            address = parse_address(text)
        except GpufleetError as problem:
            raise GpufleetError(Reason.ADDRESS_INVALID, f"{place}{problem.message}") from None
        if address in found:
            raise GpufleetError(Reason.ADDRESS_INVALID, f"{place}{address} is in the list already")
        found.append(address)
    return tuple(found)


def addresses_text(addresses: Sequence[Address]) -> str:
    """A list as it is typed: `a:1,b:2`."""
    return ",".join(map(str, addresses))


def is_loopback(host: str) -> bool:
    """Whether the host can only be this machine: a loopback address, or a name reserved for one.

    Names are judged without asking a name server, which could answer anything.
    """
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _refused(text, "the bracket around the IPv6 address is not closed before the port")
        if ":" not in host:
            raise _refused(text, "only an IPv6 address stands in brackets")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:  # an IPv6 address without brackets has no port: which colon would begin it?
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    return _HOST_NAME.fullmatch(host) is not None


def _refused(text: str, why: str) -> GpufleetError:
    hint = " (leave out the scheme)" if "://" in text else ""
    return GpufleetError(Reason.ADDRESS_INVALID, f'"{text}" is not an address: {why}{hint}')
