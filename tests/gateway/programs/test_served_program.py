"""A program that is served, through everything: the first request starts it, and a replica's death costs no request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from gpufleet.v1 import scheduler_pb2, sessions_pb2

from gpufleet.net.addresses import parse_address
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.stage import Stage

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(0.02)
        said = f"{os.getpid()} {self.path} {self.headers.get('Gpufleet-User')} {self.headers.get('Authorization')}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())
    def log_message(self, *about):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""

AT_ONCE = 6
"""Callers that ask in a row."""


class Caller:
    """Asks the gateway over one connection after the other, as curl does."""

    def __init__(self, stage: Stage, token: str = "") -> None:
        self._at = parse_address(stage.gateway)
        self._authorization = f"Authorization: Bearer {token}\r\n" if token else ""

    async def get(self, path: str) -> tuple[int, str]:
        """The status, and the body."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_connection(self._at.host, self._at.port)
            try:
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: h\r\n{self._authorization}Connection: close\r\n\r\n".encode()
                )
                answer = await reader.read()
            finally:
                writer.close()
        begun, _, body = answer.decode().partition("\r\n\r\n")
        return int(begun.split()[1]), body


async def serve(admin: Client, name: str, least: int, most: int) -> None:
    (admin.cwd / "answers.py").write_text(PROGRAM)
    model = sessions_pb2.Model(
        name=name,
        worker=admin.spec(sys.executable, "-P", "-m", "gpufleet.inference"),
        http=sessions_pb2.HttpService(argv=[sys.executable, "answers.py", "$PORT"], target_concurrency=2),
        min_workers=least,
        max_workers=most,
    )
    await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))


async def test_a_program_is_started_by_its_first_request_and_a_killed_replica_costs_none(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    with long_lived("a node with its replicas"):
        await stage.fleet.add_node("n1")
    async with stage.fleet.client() as admin:
        token = scheduler_pb2.CreateTokenRequest(user="ann", role=scheduler_pb2.ROLE_USER)
        ann = Caller(stage, (await admin.stub.CreateToken(token)).secret)
        await serve(admin, "answers", 0, 3)

        # A stranger reaches nothing, and starts nothing.
        assert (await Caller(stage).get("/m/answers/a"))[0] == 401
        assert (await Caller(stage, "gf_" + "x" * 43).get("/m/answers/a"))[0] == 401

        # Of no replica becomes one, which learns who asks, and not by which token.
        status, said = await ann.get("/m/answers/a?b=1")
        _, path, user, authorization = said.split()
        assert (status, path, user, authorization) == (200, "/a?b=1", "ann", "None")

        # Replicas are killed under requests: each request is answered, by others.
        pids: set[int] = set()
        killed: set[int] = set()

        async def ask(count: int) -> None:
            for _ in range(count):
                status, said = await ann.get("/m/answers/again")
                assert status == 200, said
                pids.add(int(said.split()[0]))

        # One at a time: a request is tried once more, and not twice.
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(killed) < 2:
                asking = asyncio.gather(*(ask(10) for _ in range(AT_ONCE)))
                if len(alive := sorted(pids - killed)) > 1:
                    await asyncio.sleep(0.1)
                    os.kill(alive[0], signal.SIGKILL)
                    killed.add(alive[0])
                await asking
        assert len(killed) == 2 and pids - killed, "others took over"
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="answers"))

        async def is_gone() -> bool:
            status, said = await ann.get("/m/answers/a")
            assert status in (404, 502), said  # of a replica that has just ended, until the gateway has heard why
            return status == 404

        await until("the program is not served any more", is_gone)
