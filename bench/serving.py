"""Served programs: what the gateway adds to a request and to a stream, a start from nothing, and a replica's death.

Everything runs as a user starts it. The peer is nginx before the same program, and `wrk` asks both by turns: Debian's
packages nginx-light and wrk; without them their rows are left out, which is said.
"""

import asyncio
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import cnn
from .fleet import START_SECONDS_MAX, free_port, running
from .floors import echo_ms
from .rows import Row, Run, middle

CONNECTIONS = 64
BURST_S = 2
RATE = 500
"""Requests a second while a replica is killed."""

RATE_S = 6.0
KILLED_AFTER_S = 2.0
EVENTS = 100
NAME = "bench"
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}

PROGRAM = """
import asyncio, sys
ANSWER = b"HTTP/1.1 200 OK\\r\\ncontent-length: 15\\r\\n\\r\\nok-ok-ok-ok-ok\\n"
STREAM = b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\nconnection: close\\r\\n\\r\\n"
class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""
    def data_received(self, data):
        self.data += data
        while (end := self.data.find(b"\\r\\n\\r\\n")) >= 0:
            head, self.data = self.data[:end], self.data[end + 4:]
            if b"/events" in head.split(b"\\r\\n")[0]:
                self.transport.write(STREAM + b"data: first\\n\\n")
            else:
                self.transport.write(ANSWER)
async def main():
    loop = asyncio.get_running_loop()
    await (await loop.create_server(Answers, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(main())
"""
"""A program that answers at once; its path /events is a stream that stays open behind its first event."""

PREDICTED = """
class NoOp:
    def load(self, device):
        pass

    def predict(self, items):
        return items
"""

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log /dev/null crit;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000;
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    upstream program {{ server 127.0.0.1:{to}; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ {location} }}
    }}
}}
"""
PASS = 'proxy_pass http://program; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;'
ANSWER = 'return 200 "ok-ok-ok-ok-ok\\n";'


def measure(run: Run) -> list[Row]:
    """The rows of programs with an HTTP port, and of a class that answers batches."""
    folder = run.folder / "serving"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    (folder / "noop.py").write_text(PREDICTED)
    missing = [name for name in ("nginx", "wrk") if shutil.which(name) is None]
    if missing:
        print(f"not measured, for want of {' and '.join(missing)}: rates and what the gateway adds", file=sys.stderr)
    rows: list[Row] = []
    with house(folder) as started:
        if not missing:
            rows += _proxy_rows(started, run)
        rows += _stream_rows(started)
        rows += _start_rows(started, run.repeats)
        rows += _death_rows(started)
    if not missing:
        rows += _predict_rows(folder, run)
    return [*rows, *cnn.measure(folder, run)]


@dataclass(frozen=True, slots=True)
class House:
    """What `gpuctl up` has started, in folders of its own."""

    folder: Path
    port: int

    def gpuctl(self, *words: str) -> str:
        """Run gpuctl there; what it printed."""
        command = [sys.executable, "-m", "gpufleet.cli", *words]
        done = subprocess.run(command, env=environment(self.folder), cwd=self.folder, check=False, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"gpuctl {' '.join(words)}: {done.stderr.decode()}")
        return done.stdout.decode()

    @contextmanager
    def served(self, *options: str, program: Sequence[str]) -> Iterator[str]:
        """A program for everybody, for the length of the block; the path below which it answers."""
        self.gpuctl("serve", NAME, "--gpus", "1", "--access", "open", *options, "--", *program)
        try:
            yield f"/m/{NAME}"
        finally:
            self.gpuctl("serve", NAME, "--stop")


def environment(folder: Path) -> dict[str, str]:
    """Of gpuctl there: no setting of the account reaches it."""
    own = {f"XDG_{each}_HOME": str(folder / each.lower()) for each in ("CONFIG", "STATE", "RUNTIME", "CACHE")}
    return {**os.environ, **own, "HOME": str(folder)}


@contextmanager
def house(folder: Path) -> Iterator[House]:
    """What `gpuctl up` starts, with four virtual GPUs, for the length of the block."""
    port, scheduler_port = free_port(), free_port()
    started = House(folder, port)
    ports = ("--port", str(port), "--scheduler-port", str(scheduler_port))
    started.gpuctl("up", "--detach", "--virtual-gpus", "4", *ports)
    try:
        yield started
    finally:
        started.gpuctl("down", "--yes")


@contextmanager
def _nginx(folder: Path, name: str, location: str, to: int = 1) -> Iterator[int]:
    port, own = free_port(), folder / name
    own.mkdir()
    (own / "nginx.conf").write_text(NGINX.format(folder=own, port=port, to=to, location=location))
    with running(["nginx", "-p", str(own), "-c", str(own / "nginx.conf")], port, own):
        yield port


def _wrk(url: str, connections: int, *more: str) -> tuple[float, float, float]:
    """Requests a second, and the median and the 99th percentile of their times in milliseconds."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{BURST_S}", "--latency", *more, url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in text or "Socket errors" in text:
        raise RuntimeError(f"not every request of {url} was answered:\n{text}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    times = dict(re.findall(r"^\s+(50|99)%\s+(\S+)$", text, re.MULTILINE))
    assert rate is not None
    return float(rate[1]), _ms(times["50"]), _ms(times["99"])


def _ms(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


def _proxy_rows(house: House, run: Run) -> list[Row]:
    """nginx answers at both ends, so that what lies between is what is measured."""
    added: list[Row] = []
    rates: list[Row] = []
    relayed: list[Row] = []
    with house.served(program=_answering(house.folder)) as path:
        port = int((house.folder / "answering" / "port").read_text())
        ours = f"http://127.0.0.1:{house.port}{path}/"
        relay_port = free_port()
        relay = [sys.executable, "-P", str(Path(__file__).with_name("relay.py")), str(relay_port), str(port)]
        with _nginx(house.folder, "before", PASS, port) as before, running(relay, relay_port, house.folder):
            for _ in range(run.repeats):
                direct = _wrk(f"http://127.0.0.1:{port}/", 1)[1]
                theirs = _wrk(f"http://127.0.0.1:{before}/", 1)[1] - direct
                name = "served program: added to a request by the gateway, p50"
                added.append(Row(name, _wrk(ours, 1)[1] - direct, "ms", theirs, "nginx"))
                rate = _wrk(f"http://127.0.0.1:{before}/", CONNECTIONS)[0]
                name = f"served program: requests at {CONNECTIONS} connections"
                rates.append(Row(name, _wrk(ours, CONNECTIONS)[0], "/s", rate, "nginx"))
                name = f"a relay in Python that does nothing else: requests at {CONNECTIONS} connections"
                relayed.append(Row(name, _wrk(f"http://127.0.0.1:{relay_port}/", CONNECTIONS)[0], "/s", rate, "nginx"))
    return [middle(added), middle(rates), middle(relayed)]


def _answering(folder: Path) -> list[str]:
    """nginx as a program that is served. Its settings are a file, so that its port is written there by a shell."""
    own = folder / "answering"
    own.mkdir()
    settings = NGINX.format(folder=own, port="@PORT@", to=1, location=ANSWER)
    (own / "settings").write_text(settings)
    script = (
        f"cd {own} && echo $0 > port && sed s/@PORT@/$0/ settings > nginx.conf && exec nginx -p . -c {own}/nginx.conf"
    )
    return ["sh", "-c", script, "$PORT"]


def _stream_rows(house: House) -> list[Row]:
    direct_port = free_port()
    program = [sys.executable, str(house.folder / "program.py")]
    with (
        running([*program, str(direct_port)], direct_port, house.folder),
        house.served(program=[*program, "$PORT"]) as path,
    ):
        direct, ours = [], []
        for _ in range(EVENTS):
            direct.append(asyncio.run(_first_event_ms(direct_port, "/events")))
            ours.append(asyncio.run(_first_event_ms(house.port, f"{path}/events")))
    name = "served program: added to the first event of a stream, p50"
    return [Row(name, statistics.median(ours) - statistics.median(direct), "ms")]


async def _first_event_ms(port: int, path: str) -> float:
    """On a connection that is there already, as a browser's mostly is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await reader.readuntil(b"data: first")
    taken_ms = (time.perf_counter() - begin) * 1e3
    writer.close()
    return taken_ms


def _start_rows(house: House, repeats: int) -> list[Row]:
    """From a request to its answer, where no replica is there; the floor is to start the program by hand."""
    program = [sys.executable, str(house.folder / "program.py")]
    taken, floor = [], []
    for _ in range(repeats):
        with house.served("--min", "0", program=[*program, "$PORT"]) as path:
            begin = time.perf_counter()
            assert asyncio.run(_answered(house.port, f"{path}/")), "the request was not answered"
            taken.append(time.perf_counter() - begin)
        port = free_port()
        begin = time.perf_counter()
        with running([*program, str(port)], port, house.folder):
            floor.append(time.perf_counter() - begin)
    name = "served program: a request to the first replica's answer (0 to 1)"
    return [Row(name, statistics.median(taken), "s", statistics.median(floor), "the program alone")]


def _death_rows(house: House) -> list[Row]:
    """At RATE requests a second one of three replicas is killed: how many requests were not answered."""
    program = [sys.executable, str(house.folder / "program.py")]
    with house.served("--min", "3", program=[*program, "$PORT"]) as path:
        began = time.monotonic()
        while len(pids := _children(house.folder / "program.py")) < 3 or time.monotonic() < began + 3:
            if time.monotonic() > began + START_SECONDS_MAX:
                raise TimeoutError("three replicas did not start")
            time.sleep(0.1)
        asked, lost = asyncio.run(_through_a_death(house.port, f"{path}/", pids[0]))
    name = f"served program: lost of {asked:,} requests, one of three replicas killed"
    return [Row(name, lost, "requests")]


def _children(program: Path) -> list[int]:
    """The processes that run a program's file themselves."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if process.name.isdecimal() and len(words) > 2 and words[1] == os.fsencode(program):
                found.append(int(process.name))
    return found


async def _through_a_death(port: int, path: str, pid: int) -> tuple[int, int]:
    """Ask at RATE; how many requests there were, and how many were not answered with 200."""
    begin = time.perf_counter()
    asking: list[asyncio.Task[bool]] = []
    was_killed = False
    for number in range(round(RATE * RATE_S)):
        await asyncio.sleep(max(0.0, begin + number / RATE - time.perf_counter()))
        asking.append(asyncio.create_task(_answered(port, path)))
        if not was_killed and time.perf_counter() - begin > KILLED_AFTER_S:
            was_killed = True
            os.kill(pid, signal.SIGKILL)
    answers = await asyncio.gather(*asking)
    return len(answers), answers.count(False)


async def _answered(port: int, path: str) -> bool:
    """Whether a GET got its 200, on a connection of its own."""
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
                return (await reader.read()).startswith(b"HTTP/1.1 200")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _predict_rows(folder: Path, run: Run) -> list[Row]:
    """A class that gives its items back, asked without the gateway, as a peer's server would be."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "gpufleet.inference.predict", "noop:NoOp", "--device", "cpu"]
    asks = folder / "asks.lua"
    body = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1.0]}]}'
    asks.write_text(f"wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['content-type'] = 'application/json'\n")
    url = f"http://127.0.0.1:{port}/v2/models/NoOp/infer"
    rates, tails, alone = [], [], []
    with running([*command, "--port", str(port)], port, folder):
        for _ in range(run.repeats):
            rate, _, tail = _wrk(url, CONNECTIONS, "-s", str(asks))
            rates.append(rate)
            tails.append(tail)
            alone.append(_wrk(url, 1, "-s", str(asks))[1])
    floor = statistics.median(asyncio.run(echo_ms(run.rounds)))
    return [
        Row(f"predict: no-op requests of {CONNECTIONS} callers", statistics.median(rates), "/s"),
        Row(f"predict: a no-op request of {CONNECTIONS} callers, p99", statistics.median(tails), "ms"),
        Row("predict: a no-op request of one caller, p50", statistics.median(alone), "ms", floor, "grpc.aio echo"),
    ]
