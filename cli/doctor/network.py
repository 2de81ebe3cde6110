"""Name, route and port, looked at with plain sockets: they say why.

Who turns packets away is in the kernel's words about one datagram, which name the machine that answered.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from dataclasses import dataclass

from gpufleet.fleet.encryption import CONNECT_S_MAX
from gpufleet.fleet.finding import Finding, failed, ok, warning
from gpufleet.net.addresses import Address, is_loopback
from gpufleet.net.listening import listening_hosts

from ..local.folders import up_command

LOOK_UP_SECONDS_MAX = 1.0
"""Each connection waits for a look-up that takes longer."""


def check_name(host: str) -> Finding:
    """Whether the host's name stands for an address, and how long the system's resolver takes to say so."""
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as problem:
        if problem.errno == socket.EAI_AGAIN:
            return failed(
                "name",
                f'no name server says what "{host}" is: {problem.strerror}',
                "Is this machine's network up? Its name servers are in /etc/resolv.conf. An IP address needs none.",
            )
        return failed(
            "name",
            f'"{host}" is not known here: {problem.strerror}',
            f"Check the spelling, or ask a name server: getent hosts {host}. An IP address works as well.",
        )
    seconds = time.monotonic() - began
    addresses = sorted({str(each[4][0]) for each in found})
    sentence = f"{host} is {', '.join(addresses[:4])}"
    if seconds > LOOK_UP_SECONDS_MAX:
        return warning(
            "name",
            f"{sentence}; the look-up took {seconds:.1f} s",
            f"Repeat it with: time getent hosts {host}. Does each name server in /etc/resolv.conf answer? A line in "
            "/etc/hosts needs none, and neither does an IP address.",
        )
    return ok("name", sentence)


def check_port(address: Address) -> Finding:
    """Whether somebody takes connections there, and what is in the way when not."""
    try:
        with socket.create_connection((address.host, address.port), CONNECT_S_MAX):
            return ok("port", f"{address} takes connections")
    except TimeoutError:
        return failed(
            "port",
            f"{address} does not answer within {CONNECT_S_MAX:g} s",
            f"If {address.host} is up, a firewall drops it. {firewall_fix(address)}",
        )
    except OSError as problem:
        return _refused(address, problem)


def _refused(address: Address, problem: OSError) -> Finding:
    match problem.errno:
        case errno.ECONNREFUSED:
            return _not_listening(address)
        case errno.ENETUNREACH | errno.EHOSTUNREACH | errno.EACCES:
            return _unreachable(address, problem)
        case _:
            return failed("port", f"{address} cannot be reached: {problem.strerror or problem}", firewall_fix(address))


def _unreachable(address: Address, problem: OSError) -> Finding:
    """The same errno stands for a machine that is off and for one whose firewall rejects: ask who says so."""
    turned_away = who_turns_away(address.host, address.port)
    if turned_away is not None and turned_away.is_firewall:
        return failed("port", f"a firewall rejects {address}: so says {turned_away.by}", firewall_fix(address))
    if turned_away is not None:
        return failed(
            "route",
            f"there is no route to {address.host}: so says the router {turned_away.by}",
            f"Is {address.host} on, and its network or VPN up? On the router: ip route get {address.host}",
        )
    if problem.errno == errno.ENETUNREACH:
        return failed(
            "route",
            f"this machine has no route to {address.host}: {problem.strerror}",
            f"See the way with: ip route get {address.host}. Is this machine's network or VPN up?",
        )
    return failed(
        "route",
        f"{address.host} does not answer: {problem.strerror}",
        f"Is it on, and its network or VPN up? See the way with: ip route get {address.host}",
    )


def _not_listening(address: Address) -> Finding:
    """Refused: nothing listens there. On this machine it can be seen what listens instead."""
    sentence = f"nothing listens at {address}"
    here = own_address(address.host)
    others = sorted(set(listening_hosts(address.port))) if here else []
    if not others:
        return failed("port", sentence, not_listening_fix(address))
    seen = ", ".join(str(Address(host, address.port)) for host in others)
    if not is_loopback(address.host) and all(map(is_loopback, others)):
        return failed(
            "port",
            f"{sentence}: the scheduler here listens on loopback only, at {seen}",
            f"Start it with --host {here}, or --host 0.0.0.0 for every network, and TLS files or --insecure",
        )
    return failed(
        "port", f"{sentence}, but at {seen}", f"Name that one: --scheduler {Address(others[0], address.port)}"
    )


def own_address(host: str) -> str:
    """The address of this machine that the host stands for; empty when it is another machine."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as trial:
            trial.bind(where)
    except OSError:
        return ""
    return str(where[0])


def not_listening_fix(address: Address) -> str:
    """What to do where a connection is refused."""
    if is_loopback(address.host):
        return (
            f"Start one here, or what has died of it, with: {up_command()}. Or say where it runs: --scheduler HOST:PORT"
        )
    return (
        f"On {address.host}: is it running? By default it listens on loopback only; for the network start it with: "
        f"gpuctl scheduler --host 0.0.0.0 --port {address.port}, and TLS files or --insecure"
    )


def firewall_fix(address: Address) -> str:
    """What to do where packets are dropped or rejected: the line for each of the usual firewalls."""
    port = address.port
    return (
        f"On {address.host}: sudo ufw allow {port}/tcp, "
        f"or: sudo firewall-cmd --permanent --add-port={port}/tcp && sudo firewall-cmd --reload, "
        f"or: sudo iptables -I INPUT -p tcp --dport {port} -j ACCEPT"
    )


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
