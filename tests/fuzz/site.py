"""What is fuzzed: a scheduler, an agent with its keeper, a gateway, a model's worker, a program's replica; all real."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import inference_pb2, scheduler_pb2, sessions_pb2

from gpufleet.net.local_stream import can_be_local
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.fuzz.raw import LOCAL, Port
from tests.fuzz.steering import MODEL, NODE, PROGRAM, STRANGE_MODELS, STRANGE_NODES
from tests.fuzz.watching import Watched
from tests.gateway.stage import Browser, Stage, browser
from tests.ports import kept_port

ADMINS = 10
HELD_JOBS = 110
"""Jobs with the ids that are drawn most often: they wait, and may be changed in every way."""

ROLES = ("user", "viewer", "worker")
"""Those whose tokens are made; admin, agent and gateway have one of the scheduler's first start."""

CLICK_SECONDS = 0.2
"""How often the session that holds is used."""

LISTENS = "00010000"
"""The flags of a socket that listens, in /proc/net/unix."""

HOUR = Duration(seconds=3_600)

PROGRAM_TEXT = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *about): ...

class Served(ThreadingHTTPServer):
    daemon_threads = True
    def handle_error(self, *about): ...

Served(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


@dataclass(slots=True)
class Site:
    """The running programs, and what is needed to ask them."""

    stage: Stage
    admin: Client
    page: Browser
    grpc: dict[str, str] = field(default_factory=dict)
    """HOST:PORT of each program that speaks gRPC."""
    ports: list[Port] = field(default_factory=list)
    """Every port, and the keeper's socket."""
    tokens: dict[str, str] = field(default_factory=dict)
    """A secret by role; `job` is that of a running job, of itself."""
    admins: list[str] = field(default_factory=list)
    """Secrets of several admins: the HTTP API lets each person ask so often, and no more."""
    known: dict[str, list[Any]] = field(default_factory=dict)
    watched: list[Watched] = field(default_factory=list)

    frames: int = 0
    """Clicks of the session that have come back in a frame."""
    holding: asyncio.Task[None] = field(init=False)
    """Holds the session for as long as all lasts; ends only by what ends the session."""

    async def hold(self) -> None:
        """Click, and look at what comes of it, again and again."""
        while True:
            clicked = await self.page.click(0.5, 0.5)
            while (await self.page.frame())[1] < clicked:
                pass
            self.frames += 1
            await asyncio.sleep(CLICK_SECONDS)

    async def works(self) -> None:
        """Ordinary work is done: a job runs, the session goes on, the program answers. Raises where it does not."""
        job = await self.admin.run("true")
        assert job.exit.code == 0 and job.attempts, "a job did not end well"
        seen = self.frames
        await until("the session goes on", lambda: self.holding.done() or self.frames > seen + 1)
        if self.holding.done():
            self.holding.result()
        host, _, port = self.stage.gateway.rpartition(":")
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"GET /m/{PROGRAM}/ HTTP/1.1\r\nHost: {self.stage.gateway}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await reader.read()
            writer.close()
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:300]

    def ended(self) -> list[str]:
        """Programs that should run and do not."""
        return [each.name for each in self.watched if each.size() is None]


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    """Everything, started, and ended at the end."""
    stage = Stage(folder, "--metrics-port", str(metrics := kept_port()))
    try:
        await stage.fleet.scheduler.start()
        agent = await stage.fleet.add_node(NODE)
        http, grpc_port, own_metrics = kept_port(), kept_port(), kept_port()
        gateway = stage.another_gateway(
            "gateway", "--port", str(http), "--grpc-port", str(grpc_port), "--metrics-port", str(own_metrics)
        )
        await until("the gateway listens", lambda: f"listening on 127.0.0.1:{http}" in gateway.log.read_text())
        stage.gateway = f"127.0.0.1:{http}"
        async with stage.fleet.client() as admin:
            await admin.submit_specs([admin.spec("true", is_held=True)], count=HELD_JOBS)
            # Of somebody whose token nothing is sent with: whoever cancels all that is theirs does not end it.
            request = scheduler_pb2.CreateTokenRequest(user="owner", role=scheduler_pb2.ROLE_USER)
            owners = (await admin.stub.CreateToken(request)).secret
            async with stage.fleet.client(owners) as owner:
                await _serve(stage, owner)
            worker = stage.worker(MODEL)
            await worker.is_served()
            replica = await _replica(stage)
            async with browser(stage) as page:
                await page.hello(MODEL)
                await page.text("turn")
                made = Site(stage, admin, page)
                inference = await worker.address()
                made.grpc = {
                    "scheduler": stage.fleet.scheduler.address,
                    "worker": inference,
                    "gateway": f"127.0.0.1:{grpc_port}",
                }
                (keeper,) = (agent.data / "keeper" / "keepers").glob("*/socket")
                assert worker.process is not None and gateway.process is not None
                made.ports = [
                    *(Port(f"{name} gRPC", address) for name, address in made.grpc.items()),
                    Port("gateway HTTP", stage.gateway),
                    Port("gateway HTTP", stage.gateway),
                    Port("scheduler metrics", f"127.0.0.1:{metrics}"),
                    Port("gateway metrics", f"127.0.0.1:{own_metrics}"),
                    Port("replica", replica.endpoint),
                    Port("keeper", str(keeper)),
                    *(Port(LOCAL, f"\0{name}") for name in _local_sockets(worker.process.pid)),
                ]
                await _know(made, folder, owners)
                (keeper_pid,) = agent.keeper_pids()
                replica_pid = _pid_of_worker(admin.cwd)
                made.watched = [
                    Watched("scheduler", stage.fleet.scheduler.pid, stage.fleet.scheduler.log),
                    Watched("agent", agent.pid, agent.log),
                    Watched("keeper", keeper_pid, agent.data / "keeper" / "keeper.log"),
                    Watched("gateway", gateway.process.pid, gateway.log),
                    Watched("worker", worker.process.pid, worker.log),
                    Watched("replica", replica_pid, folder / "replica.log"),
                ]
                made.holding = asyncio.create_task(made.hold(), name="session")
                try:
                    yield made
                finally:
                    made.holding.cancel()
                    await asyncio.gather(made.holding, return_exceptions=True)
    finally:
        await stage.end()


async def _serve(stage: Stage, admin: Client) -> None:
    limits = sessions_pb2.SessionLimits(turn=HOUR, idle=HOUR)
    model = sessions_pb2.Model(name=MODEL, limits=limits)
    await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model), timeout=DEADLINE_SECONDS)
    (admin.cwd / "answers.py").write_text(PROGRAM_TEXT)
    log = str(stage.folder / "replica.log")
    spec = admin.spec(
        *("sh", "-c", 'exec "$@" 2>>"$0"', log, sys.executable, "-P", "-m", "gpufleet.inference"),
        gpus=1,
    )
    program = sessions_pb2.Model(
        name=PROGRAM,
        worker=spec,
        http=sessions_pb2.HttpService(argv=[sys.executable, "answers.py", "$PORT"]),
        limits=sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_OPEN),
        min_workers=1,
        max_workers=1,
    )
    await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=program), timeout=DEADLINE_SECONDS)


async def _replica(stage: Stage) -> sessions_pb2.WorkerInfo:
    async with stage.fleet.client(stage.fleet.scheduler.token("gateway")) as gateway:
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for answer in gateway.stub.WatchWorkers(sessions_pb2.WatchWorkersRequest(model=PROGRAM)):
                for each in answer.workers:
                    if each.state == inference_pb2.WORKER_STATE_READY:
                        return each
    raise AssertionError("the stream has ended")


async def _know(made: Site, folder: Path, owners: str) -> None:
    """Tokens of every role, and what requests may name so that they are about something."""
    admin, stage = made.admin, made.stage
    made.tokens = {role: stage.fleet.scheduler.token(role) for role in ("admin", "agent", "gateway")}
    thrown_away: list[str] = []
    for role in ROLES:
        kind = scheduler_pb2.Role.Value(f"ROLE_{role.upper()}")
        answer = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user=role, role=kind))
        made.tokens[role] = answer.secret
        spare = await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user=role, role=kind))
        thrown_away.append(spare.token.id)
    for number in range(ADMINS):
        request = scheduler_pb2.CreateTokenRequest(user=f"admin-{number}", role=scheduler_pb2.ROLE_ADMIN)
        made.admins.append((await admin.stub.CreateToken(request)).secret)
    async with stage.fleet.client(owners) as owner:
        said = folder / "token-of-the-job"
        line = f"printenv GPUFLEET_JOB_TOKEN > {said}.new && mv {said}.new {said}; exec sleep 100000"
        own = await owner.submit("sh", "-c", line)
        await until("the job has told its token", said.exists)
        made.tokens["job"] = said.read_text().strip()
    ended = await admin.run("sh", "-c", "echo out; echo err >&2")
    held = await admin.submit("true", is_held=True)
    jobs = [ended.id, held, own, 10**6]
    made.known = {
        "job_id": jobs,
        "job_ids": [ended.id, held, 10**6],
        "node": [NODE, *STRANGE_NODES],
        "name": [MODEL, PROGRAM, *STRANGE_MODELS],
        "model": [MODEL, PROGRAM, *STRANGE_MODELS],
        "model_name": [PROGRAM, *STRANGE_MODELS],
        "token_id": thrown_away,
        "user": ["admin", "user", "viewer"],
        "argv": ["true"],
        "attempt": [0, 1, 2],
        "protocol_version": [1],
        "page_size": [0, 1, 10],
        "program": ["scheduler", "agent"],
        "services": [PROGRAM],
    }


def _pid_of_worker(folder: Path) -> int:
    """The replica: the one of its kind that works in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"gpufleet.inference" in words and (process / "cwd").readlink() == folder:
                return int(process.name)
        except OSError:
            continue
    raise AssertionError(f"no replica works in {folder}")


def _local_sockets(pid: int) -> list[str]:
    """The names of the abstract sockets at which a worker takes streams of gateways of its machine."""
    own = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]] if can_be_local() else []
    return [line[7][1:] for line in lines if len(line) > 7 and line[3] == LISTENS and f"socket:[{line[6]}]" in own]
