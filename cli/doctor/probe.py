"""Who turns packets away: the kernel's words about one datagram, which name the machine that answered."""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass

ANSWER_S_MAX = 1.0
"""A firewall answers at once; a machine that is off does not answer at all."""

IP_RECVERR, IPV6_RECVERR = 11, 25
ERROR = struct.Struct("=IBBBBII")
"""struct sock_extended_err of <linux/errqueue.h>: errno, origin, type, code, pad, info, data."""

FROM_ICMP, FROM_ICMP6 = 2, 3
UNREACHABLE, UNREACHABLE6 = 3, 1
NO_ROUTE_CODES, NO_ROUTE_CODES6 = frozenset({0, 1, 6, 7, 11, 12}), frozenset({0, 3})
"""Codes by which a router says that it knows no way, or that the machine is not there (RFC 792, 1812, 4443)."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Somebody on the way answered: `by` is the address, `is_firewall` whether it was a rule rather than a gap."""

    by: str
    is_firewall: bool


def who_turns_away(host: str, port: int) -> TurnedAway | None:
    """Send one empty datagram there, and wait for what comes back; None when nobody answers."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except socket.gaierror:
        return None
    for family, _, _, _, where in found:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            is_six = family == socket.AF_INET6
            level, option = (socket.IPPROTO_IPV6, IPV6_RECVERR) if is_six else (socket.IPPROTO_IP, IP_RECVERR)
            probe.setsockopt(level, option, 1)
            probe.setblocking(False)
            try:
                probe.connect(where)
                probe.send(b"")
                answers = select.poll()
                answers.register(probe, select.POLLERR)
                if not answers.poll(ANSWER_S_MAX * 1000):
                    continue
                _, ancillary, _, _ = probe.recvmsg(512, 512, socket.MSG_ERRQUEUE)
            except OSError:
                continue
        for _, _, data in ancillary:
            if turned_away := read_error(bytes(data)):
                return turned_away
    return None


def read_error(data: bytes) -> TurnedAway | None:
    """What a sock_extended_err, and the address behind it, say; None when no other machine had a hand in it."""
    if len(data) < ERROR.size:
        return None
    _, origin, kind, code, _, _, _ = ERROR.unpack_from(data)
    if (origin, kind) == (FROM_ICMP, UNREACHABLE):
        return TurnedAway(socket.inet_ntop(socket.AF_INET, data[ERROR.size + 4 :][:4]), code not in NO_ROUTE_CODES)
    if (origin, kind) == (FROM_ICMP6, UNREACHABLE6):
        return TurnedAway(socket.inet_ntop(socket.AF_INET6, data[ERROR.size + 8 :][:16]), code not in NO_ROUTE_CODES6)
    return None
