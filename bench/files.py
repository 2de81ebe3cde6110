"""Folders that go along, and ports of jobs: against the same without, a bare byte stream of gRPC, and a bare relay.

`python -m bench.files sink` takes a stream of bytes, `relay PORT` carries connections to a port: the floors.
"""

import asyncio
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import gpufleet
from gpufleet.api.loop_thread import close_loop_thread
from gpufleet.jobs.files import PIECE_BYTES_MAX

from .path import build_stamp
from .rows import Row, Run, percentile

FILES = 2_000
FILE_BYTES = 4_000
LARGE_FILES, LARGE_FILE_BYTES = 50, 4_000_000
SENT_BYTES = 256 * 2**20
CARRIED_BYTES = 128 * 2**20
ROUNDS = 15
ECHOES = 300
SERVICE = "bench.Sink"

SERVER = f"""
import socket, sys, threading
def serve(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:
        if peer.recv(1) == b"e":
            while data := peer.recv(1): peer.sendall(data)
        else:
            for _ in range({CARRIED_BYTES} // 65536): peer.sendall(bytes(65536))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def measure(run: Run) -> list[Row]:
    """The rows of the group `files`."""
    token_file = run.fleet.folder / "scheduler" / "admin.token"
    home, environment = run.folder / "home", dict(os.environ)
    os.environ["XDG_CACHE_HOME"] = str(home)
    try:
        with gpufleet.connect(run.fleet.address, token_file=token_file) as fleet:
            return [
                *_unchanged(fleet, run),
                *_one_changed(fleet, run),
                *_bytes_sent(fleet, run),
                *_carried(fleet, run.repeats),
            ]
    finally:
        os.environ.clear()
        os.environ.update(environment)
        close_loop_thread()


def _unchanged(fleet: gpufleet.Fleet, run: Run) -> list[Row]:
    folder = _folder(run.folder / "small", FILES, FILE_BYTES)
    stamp = str(build_stamp(run.folder))
    # A file that was written just now is read again the next time: only later is it known not to have changed.
    for _ in range(2):
        _first_instruction_ms(fleet, stamp, upload=folder)
        time.sleep(3)
    without: list[float] = []
    along: list[float] = []
    for _ in range(ROUNDS):
        without.append(_first_instruction_ms(fleet, stamp))
        along.append(_first_instruction_ms(fleet, stamp, upload=folder))
    later = statistics.median(along) - statistics.median(without)
    what = f"submit --upload of {FILES:,} unchanged files to first instruction p50"
    return [
        Row(what, statistics.median(along), "ms", statistics.median(without), "without --upload"),
        Row("which is later than without by", later, "ms"),
    ]


def _first_instruction_ms(fleet: gpufleet.Fleet, stamp: str, upload: Path | None = None) -> float:
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    job = fleet.submit([stamp], upload=upload, cwd=None if upload else "/tmp")
    assert job.wait() == 0, job.end
    return (int("".join(job.logs())) - began) / 1e6


def _one_changed(fleet: gpufleet.Fleet, run: Run) -> list[Row]:
    folder = _folder(run.folder / "large", LARGE_FILES, LARGE_FILE_BYTES)
    assert fleet.submit("true", upload=folder).wait() == 0
    stored = _stored_bytes(run)
    with (folder / "0/7").open("r+b") as file:
        file.seek(LARGE_FILE_BYTES // 2)
        file.write(b"changed")
    assert fleet.submit("true", upload=folder).wait() == 0
    sent = (_stored_bytes(run) - stored) / 1e6
    whole = LARGE_FILES * LARGE_FILE_BYTES / 1e6
    return [Row(f"sent of {whole:,.0f} MB in which one file changed", sent, "MB", whole, "all of it")]


def _stored_bytes(run: Run) -> int:
    folder = run.fleet.folder / "scheduler" / "blobs"
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _bytes_sent(fleet: gpufleet.Fleet, run: Run) -> list[Row]:
    rates: list[float] = []
    floors: list[float] = []
    before = _peak_mb(run.fleet.scheduler_pid)
    for number in range(run.repeats):
        floors.append(asyncio.run(_sink_rate()))
        folder = _folder(run.folder / f"sent-{number}", 16, SENT_BYTES // 16)
        began = time.monotonic()
        job = fleet.submit("true", upload=folder, hold=True)
        rates.append(SENT_BYTES / 1e6 / (time.monotonic() - began))
        job.cancel()
        shutil.rmtree(folder)
    grown = _peak_mb(run.fleet.scheduler_pid) - before
    floor = statistics.median(floors)
    return [
        Row(f"upload of {SENT_BYTES // 2**20} MiB", statistics.median(rates), "MB/s", floor, "a bare stream of gRPC"),
        Row("memory that the scheduler has more at its peak meanwhile", grown, "MB"),
    ]


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def _carried(fleet: gpufleet.Fleet, repeats: int) -> list[Row]:
    job = fleet.submit([sys.executable, "-c", SERVER], cwd="/tmp")
    there = int(next(job.logs(follow=True)))
    with _relay(there) as relayed, job.forward(there) as forwarded:
        pairs = [(_flood_rate(relayed), _flood_rate(forwarded)) for _ in range(repeats)]
        floor, rate = (statistics.median(each) for each in zip(*pairs, strict=True))
        bare, echoes = _echoes_ms(relayed), _echoes_ms(forwarded)
    job.cancel()
    return [
        Row("bytes through a forwarded port", rate, "MB/s", floor, "a bare relay of TCP"),
        Row(
            "echo of a byte through a forwarded port p50",
            statistics.median(echoes),
            "ms",
            statistics.median(bare),
            "relay",
        ),
        Row(
            "echo of a byte through a forwarded port p99",
            percentile(echoes, 0.99),
            "ms",
            percentile(bare, 0.99),
            "relay",
        ),
    ]


def _flood_rate(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"f")
        began, left, room = time.monotonic(), CARRIED_BYTES, bytearray(2**20)
        while left:
            left -= (more := connection.recv_into(room))
            assert more, "the connection was cut"
        return CARRIED_BYTES / 1e6 / (time.monotonic() - began)


def _echoes_ms(port: int) -> list[float]:
    times: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"e")
        for _ in range(ECHOES):
            began = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            times.append((time.perf_counter() - began) * 1e3)
    return times


def _folder(folder: Path, count: int, size: int) -> Path:
    for number in range(count):
        (folder / str(number // 100)).mkdir(parents=True, exist_ok=True)
        (folder / str(number // 100) / str(number)).write_bytes(secrets.token_bytes(size))
    return folder


@contextmanager
def _own_process(*words: str) -> Iterator[int]:
    """A floor in a process of its own; its port."""
    process = subprocess.Popen([sys.executable, "-m", "bench.files", *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def _relay(port: int) -> Iterator[int]:
    with _own_process("relay", str(port)) as here:
        yield here


async def _sink_rate() -> float:
    """Bytes that one call streams to a server that lets go of them, MB/s."""
    piece = secrets.token_bytes(PIECE_BYTES_MAX)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(SENT_BYTES // len(piece)):
            yield piece

    with _own_process("sink") as port:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.stream_unary(f"/{SERVICE}/Take")
            began = time.monotonic()
            await call(pieces())
            return SENT_BYTES / 1e6 / (time.monotonic() - began)


async def _serve_sink() -> None:
    async def take(requests: Any, _: Any) -> bytes:
        async for _request in requests:
            pass
        return b""

    server = grpc.aio.server()
    handlers: Any = {"Take": grpc.stream_unary_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def _serve_relay(port: int) -> None:
    """As plain as a relay can be: two threads a connection."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(256 * 1024):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    PROGRAMS: dict[str, Callable[[], None]] = {
        "sink": lambda: asyncio.run(_serve_sink()),
        "relay": lambda: _serve_relay(int(sys.argv[2])),
    }
    PROGRAMS[sys.argv[1]]()
