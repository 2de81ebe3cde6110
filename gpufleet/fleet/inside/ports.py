"""Ports as they are typed, `8888`, `8888:9999` or `8888:0`, and this machine's own, opened before anything is asked."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.reading import wrong
from gpufleet.net.carrying import PORT_MAX

HERE = "127.0.0.1"
"""Nobody but this machine's own programs reaches what listens there."""

PORTS_MAX = 32
"""Ports of one job that a command forwards."""

HOW = "Write it as 8888, or as 8888:9999 for another port here; 8888:0 takes a free one."


@dataclass(frozen=True, slots=True)
class Pair:
    """A port of the job, and the one here that leads to it; 0 for whichever is free."""

    port: int
    local: int


@dataclass(frozen=True, slots=True)
class Listening:
    """A port of the job, and the socket here that leads to it."""

    port: int
    listener: socket.socket

    @property
    def local(self) -> int:
        """The port here."""
        number: int = self.listener.getsockname()[1]
        return number


def read_ports(words: Sequence[str]) -> list[Pair]:
    """Read what was typed. Raises INVALID_ARGUMENT."""
    pairs = [_pair(word) for word in words]
    if len(pairs) > PORTS_MAX:
        raise wrong(f"{len(pairs)} ports are more than {PORTS_MAX}", "Name fewer, in several commands.")
    local = [pair.local for pair in pairs if pair.local]
    if twice := next((each for each in local if local.count(each) > 1), None):
        raise wrong(f"port {twice} of this machine would lead to two ports", HOW)
    return pairs


@contextlib.contextmanager
def listening(pairs: Sequence[Pair]) -> Iterator[list[Listening]]:
    """Listen on this machine's ports as long as the block lasts. Errors: PORT_TAKEN."""
    with contextlib.ExitStack() as opened:
        yield [Listening(pair.port, opened.enter_context(_listener(pair))) for pair in pairs]


def _listener(pair: Pair) -> socket.socket:
    try:
        return socket.create_server((HERE, pair.local))
    except OSError as problem:
        raise GpufleetError(
            Reason.PORT_TAKEN,
            f"port {pair.local} of this machine cannot be had: {problem.strerror}",
            next_step=f"Choose another one here: {pair.port}:{pair.local % PORT_MAX + 1}, or a free one: {pair.port}:0",
        ) from None


def _pair(word: str) -> Pair:
    port, colon, local = word.partition(":")
    if not (_is_number(port) and (_is_number(local) or not colon)):
        raise wrong(f'"{word[:40]}" is no port', HOW)
    pair = Pair(int(port), int(local) if colon else int(port))
    if not 1 <= pair.port <= PORT_MAX or pair.local > PORT_MAX:
        raise wrong(f'"{word}": a port is 1 to {PORT_MAX:,}', HOW)
    return pair


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 6
