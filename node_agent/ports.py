"""The port on which rank 0 of a gang will listen for the others (MASTER_PORT), found while the gang is prepared.

Between the finding and the listening lie seconds: the other nodes prepare, a process is started, `import torch` runs.
Nobody else must have the port by then, and it cannot be kept bound until rank 0 binds it itself: torch.distributed's
TCPStore sets SO_REUSEADDR before it binds, which would do, but a program that does not set it would find its own port
taken; SO_REUSEPORT is no way out, because both sides would have to set it, and a listening socket of this process would
take connections away from rank 0. So:

* the port lies outside of the range from which Linux serves whoever asks for *any* port (32768 to 60999, unless the
  machine says otherwise): no outgoing connection and no server without a port of its own ever gets it;
* a socket keeps it bound, without listening, until just before rank 0 is started, so that no other agent here finds it;
* it is not given again before all others of the range were: not to the next gang either, whose rank 0 may be slower.

It is bound for every address, IPv4 and IPv6, as TCPStore will: the address that the scheduler sees may be that of a
router, which cannot be bound here, and a port that is free everywhere is free on that of `--advertise` as well.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Callable
from pathlib import Path

from gpufleet.jobs.runs import RankKey

ANY_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
ANY_PORTS = (32_768, 60_999)
"""The same as Linux has it from the start."""

PORT_MIN, PORT_MAX = 10_000, 65_535
"""Below the first, ports belong to services of the machine."""

PORTS_WANTED = 256
"""A range with fewer ports is none: ports would soon be given again."""


class MasterPorts:
    """Ports held for prepared ranks. `first` chooses where in the range to begin: other agents begin elsewhere."""

    def __init__(self, first: Callable[[range], int] = random.choice) -> None:
        self._ports = ports_nobody_is_given(_any_ports())
        self._next = self._ports.index(first(self._ports))
        self._held: dict[RankKey, socket.socket] = {}

    def reserve(self, key: RankKey) -> int:
        """A port that is free on this machine, held for this rank; OSError when there is none."""
        self.release(key)
        for _ in self._ports:
            port = self._ports[self._next]
            self._next = (self._next + 1) % len(self._ports)
            with contextlib.suppress(OSError):
                self._held[key] = _bound(port)
                return port
        raise OSError(f"no port from {self._ports[0]} to {self._ports[-1]} is free for MASTER_PORT")

    def release(self, key: RankKey) -> None:
        """Let the rank have its port, or nobody."""
        held = self._held.pop(key, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """Let all go."""
        for key in tuple(self._held):
            self.release(key)


def ports_nobody_is_given(any_ports: tuple[int, int]) -> range:
    """The ports above those that Linux gives to whoever asks for any, or those below; else all of them."""
    low, high = any_ports
    above, below = range(high + 1, PORT_MAX + 1), range(PORT_MIN, low)
    return next((ports for ports in (above, below) if len(ports) >= PORTS_WANTED), range(PORT_MIN, PORT_MAX + 1))


def _any_ports() -> tuple[int, int]:
    try:
        low, high = map(int, ANY_PORT_RANGE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return ANY_PORTS
    return low, high


def _bound(port: int) -> socket.socket:
    """A socket that has the port of every address; where there is no IPv6, of those of IPv4."""
    try:
        return _bound_to(socket.AF_INET6, "::", port)
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise
        return _bound_to(socket.AF_INET, "0.0.0.0", port)


def _bound_to(family: int, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made
