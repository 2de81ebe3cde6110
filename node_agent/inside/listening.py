"""Whose a TCP port of this node is: which sockets listen on it, and which of them processes of an attempt hold.

A listening socket is known by its inode, which no other socket has while it lives. What a process holds is what /proc
lists below it. Nothing is taken from what a job says of itself.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..keeper.processes import look_at
from ..keeper.supervisor import NAME as SUPERVISOR
from .listeners import Address, ListeningSocket, listeners_on

PROCESSES_LOOKED_AT_MAX = 4_096
"""Processes of one attempt; what those beyond them hold is not found."""

DESCRIPTORS_LOOKED_AT_MAX = 65_536
"""Descriptors of one attempt."""

LOOPBACKS = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))


@dataclass(frozen=True, slots=True)
class PortOfAttempt:
    """Where an attempt's port is to be dialled, and the sockets of the attempt that answer there."""

    address: str
    inodes: frozenset[int]


class NotListening(Exception):
    """No process of the attempt listens there, or not it alone; the message says which."""


def doors_of(port: int, leader_pid: int) -> list[PortOfAttempt]:
    """Where to dial a port of the attempt of this leader, the likeliest first. Raises NotListening."""
    found = listeners_on(port)
    own = sockets_held(leader_pid, {each.inode for each in found}) if found else frozenset[int]()
    dialled = {address: None for each in found if each.inode in own for address in _dialled(each)}
    answering = {address: frozenset(each.inode for each in found if each.takes(address)) for address in dialled}
    doors = [
        PortOfAttempt(str(each), answering[each]) for each in sorted(dialled, key=_preference) if answering[each] <= own
    ]
    if doors:
        return doors
    if own:
        raise NotListening(f"others listen on port {port} of the node, too, and may get what is meant for the job")
    whose = "what listens on it there is no process of the job" if found else "nothing does on its node"
    raise NotListening(f"no process of the job listens on port {port}: {whose}")


def is_still(door: PortOfAttempt, port: int) -> bool:
    """Whether the same sockets, and no others, answered all the time since the door was found."""
    address = ipaddress.ip_address(door.address)
    return frozenset(each.inode for each in listeners_on(port) if each.takes(address)) == door.inodes


def sockets_held(leader_pid: int, wanted: set[int]) -> frozenset[int]:
    """Those of these sockets that processes of the attempt hold; none when its leader has ended."""
    leader = look_at(leader_pid)
    if leader is None or leader.is_dead:
        return frozenset()
    # Whoever lost its parents is a child of the supervisor, which serves one attempt as long as its leader lives.
    top = leader.parent_pid if _is_supervisor(leader.parent_pid) else leader_pid
    held: set[int] = set()
    descriptors = 0
    for pid in _tree(top):
        if pid == top != leader_pid:
            continue
        for link in _links(pid):
            descriptors += 1
            if link.startswith("socket:[") and (inode := int(link[8:-1])) in wanted:
                held.add(inode)
        if held == wanted or descriptors > DESCRIPTORS_LOOKED_AT_MAX:
            break
    after = look_at(leader_pid)
    is_same = after is not None and not after.is_dead and after.start_ticks == leader.start_ticks
    return frozenset(held) if is_same and after is not None and after.parent_pid == leader.parent_pid else frozenset()


def _tree(top: int) -> Iterable[int]:
    waiting, seen = [top], {top}
    while waiting and len(seen) <= PROCESSES_LOOKED_AT_MAX:
        pid = waiting.pop(0)
        yield pid
        below = [child for child in _children(pid) if child not in seen]
        seen.update(below)
        waiting += below


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
    except OSError:
        pass  # it has ended
    return found


def _links(pid: int) -> Iterable[str]:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    yield os.readlink(entry.path)  # noqa: PTH115 - thousands of descriptors, one call each
                except OSError:
                    continue
    except OSError:
        return  # it has ended, or is not ours to see


def _is_supervisor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() == SUPERVISOR
    except OSError:
        return False


def _dialled(listener: ListeningSocket) -> tuple[Address, ...]:
    """By which addresses of this machine it is reached: loopback ones, unless it is bound to another."""
    if not listener.address.is_unspecified:
        return (listener.address,)
    return LOOPBACKS[:1] if listener.address.version == 4 else LOOPBACKS[::-1]


def _preference(address: Address) -> tuple[int, str]:
    """A loopback address first: so do programs that are started to be used from this machine."""
    return (LOOPBACKS.index(address) if address in LOOPBACKS else len(LOOPBACKS), str(address))
