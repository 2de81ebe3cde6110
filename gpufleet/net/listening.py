"""Listening on a port, and saying who is in the way when it is taken."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address
from gpufleet.security.tokens import mask_tokens

if TYPE_CHECKING:
    import grpc
    import grpc.aio

COMMAND_CHARS_MAX = 120
_LISTENS = "0A"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens on a port: its account, and, if this account may see them, its pid and command."""

    account: str
    pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return f"a process of {self.account}"
        return f"{self.command} (pid {self.pid}, of {self.account})"


def listen(
    server: grpc.Server | grpc.aio.Server,
    address: Address,
    credentials: grpc.ServerCredentials | None = None,
    *,
    flag: str = "--port",
) -> int:
    """Add the address to a gRPC server; the answer is the port, which the system chooses for port 0.

    Raises PORT_TAKEN with its holder and the flag that changes the port, or ADDRESS_INVALID with the reason.
    """
    # gRPC says that it failed, and not why, and writes a line of its own for it: a plain socket is tried first.
    if (problem := why_not(address, flag)) is not None:
        raise problem
    try:
        if credentials is not None:
            return server.add_secure_port(str(address), credentials)
        return server.add_insecure_port(str(address))
    except RuntimeError:
        raise why_not(address, flag) or _taken_for_a_moment(address, flag) from None


def bound(address: Address, *, backlog: int, flag: str = "--port") -> socket.socket:
    """A socket that listens there, for servers that take one; raises as `listen` does."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # With its protocol named: asyncio sets TCP_NODELAY only on sockets that say they are TCP, and without it a second
    # small message waits 40 ms for the acknowledgement of the first one.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen(backlog)
    except OSError as problem:
        listening.close()
        raise why_not(address, flag) or _refused(address, str(problem.strerror)) from None
    return listening


def why_not(address: Address, flag: str = "--port") -> GpufleetError | None:
    """Why nobody can listen there, by the word of a plain socket; None when one can."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
            trial.listen(1)
    except socket.gaierror as problem:
        return _refused(address, f'the host "{address.host}" has no address: {problem.strerror}')
    except PermissionError:
        return _refused(address, f"ports below 1024 are for root; choose another with {flag}")
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            return port_taken(address.port, flag)
        if problem.errno == errno.EADDRNOTAVAIL:
            return _refused(address, "no network of this machine has this address; 0.0.0.0 is every one")
        return _refused(address, str(problem.strerror))
    return None


def _taken_for_a_moment(address: Address, flag: str) -> GpufleetError:
    return GpufleetError(
        Reason.PORT_TAKEN,
        f"port {address.port} was taken a moment ago and is free now",
        next_step=f"Try again, or choose another port with {flag}.",
    )


def port_taken(port: int, flag: str) -> GpufleetError:
    """The error of a taken port, with its holder where the system tells."""
    holder = holder_of(port)
    who = str(holder) if holder else "another process"
    stop = f"Stop it (kill {holder.pid})" if holder and holder.pid else "Stop it"
    return GpufleetError(
        Reason.PORT_TAKEN,
        f"port {port} is taken by {who}",
        next_step=f"{stop}, or choose another port with {flag}.",
        metadata={"port": str(port)} | ({"pid": str(holder.pid)} if holder and holder.pid else {}),
    )


def holder_of(port: int) -> Holder | None:
    """The process that listens on the TCP port of this machine; None when the system does not tell."""
    found = next(_rows(port), None)
    if found is None:
        return None
    inode, account = found[9], _account(int(found[7]))
    for process in Path("/proc").glob("[0-9]*"):
        if _holds(process, inode):
            return Holder(account, int(process.name), _command(process))
    return Holder(account)


def listening_hosts(port: int) -> Iterator[str]:
    """The addresses of this machine at which somebody listens on the TCP port, `0.0.0.0` and `::` for every one."""
    for columns in _rows(port):
        yield _host(columns[1].rpartition(":")[0])


def _host(digits: str) -> str:
    """An address as the kernel's tables have it: words of 32 bits, each in the machine's own order of bytes."""
    words = [int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    # gRPC listens on IPv4 by way of IPv6; people know the address as ::ffff:127.0.0.1 by its other half.
    return str(getattr(address, "ipv4_mapped", None) or address)


def _rows(port: int) -> Iterator[list[str]]:
    """The rows of the kernel's tables with a socket that listens on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENS and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns


def _holds(process: Path, inode: str) -> bool:
    try:
        return any(str(each.readlink()) == f"socket:[{inode}]" for each in (process / "fd").iterdir())
    except OSError:  # it ended meanwhile, or belongs to another account
        return False


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "a process"
    text = mask_tokens(" ".join(word for word in words if word))
    text = "".join(each if each.isprintable() else "?" for each in text) or "a process"
    return text if len(text) <= COMMAND_CHARS_MAX else f"{text[:COMMAND_CHARS_MAX]}…"


def _account(uid: int) -> str:
    import pwd  # here: Windows has none, and workers run there, too

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _refused(address: Address, why: str) -> GpufleetError:
    return GpufleetError(
        Reason.ADDRESS_INVALID, f"cannot listen on {address}: {why}", next_step="Choose another --host."
    )
