"""Which sockets listen on a TCP port of this network namespace: asked of the kernel, else read in /proc.

To ask costs some 0.1 ms; to read the tables of /proc, which hold every connection of the machine, 30 ms where there are
two thousand (figures of one machine).
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES = 65_536

TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
LISTENS = 10
"""TCP_LISTEN."""

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_ANSWER = struct.Struct("=BBBB HH16s16sI8s IIIII".replace(" ", ""))
"""inet_diag_msg of linux/inet_diag.h; ports and addresses in the network's order."""


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A socket that listens on the port that was asked for."""

    address: Address
    inode: int

    def takes(self, dialled: Address) -> bool:
        """Whether a connection to this address may come to it. A wildcard of IPv6 may take those of IPv4, too."""
        if self.address == dialled:
            return True
        return self.address.is_unspecified and (self.address.version == 6 or dialled.version == 4)


def listeners_on(port: int) -> list[ListeningSocket]:
    """Every socket that listens on the port. OSError when neither the kernel nor /proc says."""
    try:
        found = [each for family in (socket.AF_INET, socket.AF_INET6) for each in _asked(family)]
    except (OSError, struct.error):
        found = list(_read(TABLES))
    return [ListeningSocket(address, inode) for number, address, inode in found if number == port]


def _asked(family: socket.AddressFamily) -> Iterator[tuple[int, Address, int]]:
    """(port, address, inode) of all that listen."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_SECONDS_MAX)
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << LISTENS)
        kernel.send(
            _HEADER.pack(_HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + request
        )
        while True:
            for kind, body in _messages(kernel.recv(ANSWER_BYTES)):
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    number = -struct.unpack_from("=i", body)[0]
                    raise OSError(number, "the kernel does not say which sockets listen")
                told = _ANSWER.unpack_from(body)
                packed = told[6][:4] if told[0] == socket.AF_INET else told[6]
                yield socket.ntohs(told[4]), _plain(ipaddress.ip_address(packed)), told[14]


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _read(tables: Iterable[Path]) -> Iterator[tuple[int, Address, int]]:
    is_told = False
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        is_told = True
        for line in lines:
            words = line.split(maxsplit=10)
            if int(words[3], 16) == LISTENS:
                address, _, port = words[1].partition(":")
                # Words of 32 bits in the order of this machine's bytes.
                packed = b"".join(struct.pack("=I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8))
                yield int(port, 16), _plain(ipaddress.ip_address(packed)), int(words[9])
    if not is_told:
        raise FileNotFoundError("neither the kernel nor /proc says which sockets listen")


def _plain(address: Address) -> Address:
    """An address of IPv4 also where a socket of IPv6 has it."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
