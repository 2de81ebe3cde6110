"""What files that come are for in these tests, the program that is asked about some, and forms as curl sends."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from gpufleet.v1 import sessions_pb2

from tests.gateway.asking import Answer, ask
from tests.gateway.stage import Stage

BOUNDARY = "a-boundary-of-tests"
FORM = f"multipart/form-data; boundary={BOUNDARY}"

SETTINGS = """
[routing]
gpu_wait = "1h"
gpu_queue_limit = 0

[handlers]
"audio/needy" = { command = ["sh", "-c", '[ -z "$GPUFLEET_FELL_BACK" ] || exit 75; echo on a GPU'] }
"image/*" = { model = "eye", path = "/look" }
"image/tensor" = { model = "eye", input = "picture" }
"text/*" = { command = ["cat", "{file}"], env = { WHY = "a text" } }
"x/unserved" = { model = "nobody" }
"application/x-new" = { command = ["true"] }

[handlers."audio/*"]
command = ["sh", "-c", 'echo gpu; cat "$0"', "{file}"]
cpu_command = ["sh", "-c", 'echo cpu; cat "$0"', "{file}"]
"""

PROGRAM = """
import hashlib, json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Looks(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        left, sha = int(self.headers["Content-Length"]), hashlib.sha256()
        size = left
        head = self.rfile.read(int(self.headers.get("Inference-Header-Content-Length", 0)))
        left -= len(head)
        while left:
            data = self.rfile.read(min(left, 1 << 20))
            sha.update(data)
            left -= len(data)
        said = json.dumps({
            "by": sys.argv[2], "path": self.path, "size": size, "sha256": sha.hexdigest(), "head": head.decode(),
            "type": self.headers["Content-Type"], "user": self.headers.get("Gpufleet-User"),
            "token": self.headers.get("Authorization"),
        }).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *about):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Looks).serve_forever()
"""


async def serve_eyes(stage: Stage) -> None:
    """A model with a GPU, which falls back to one without."""
    async with stage.fleet.client() as admin:
        (admin.cwd / "looks.py").write_text(PROGRAM)
        for name, gpus, cpu_model in (("eye-cpu", 0, ""), ("eye", 1, "eye-cpu")):
            model = sessions_pb2.Model(
                name=name,
                worker=admin.spec(sys.executable, "-P", "-m", "gpufleet.inference", gpus=gpus),
                http=sessions_pb2.HttpService(argv=[sys.executable, "looks.py", "$PORT", name], cpu_model=cpu_model),
                min_workers=0,
                max_workers=1,
            )
            await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))


def part(name: str, data: bytes | str, filename: str | None = None, content_type: str = "") -> bytes:
    """One part of a form."""
    said = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    said += f"\r\nContent-Type: {content_type}" if content_type else ""
    content = data.encode() if isinstance(data, str) else data
    return f"--{BOUNDARY}\r\n{said}\r\n\r\n".encode() + content + b"\r\n"


def form(parts: Sequence[bytes]) -> bytes:
    """The whole form."""
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


async def send(stage: Stage, path: str, token: str, *parts: bytes, key: str = "", method: str = "POST") -> Answer:
    """Ask with a form."""
    headers = {"content-type": FORM} | ({"idempotency-key": key} if key else {})
    return await ask(stage.gateway, f"/api/v1{path}", body=form(parts), token=token, headers=headers, method=method)


async def ingest(stage: Stage, token: str, filename: str, data: bytes, content_type: str = "", **said: Any) -> Answer:
    """Send a file as curl -F does."""
    fields = [part(name, json.dumps(value) if isinstance(value, bool) else value) for name, value in said.items()]
    return await send(stage, "/ingest/file", token, *fields, part("file", data, filename, content_type))
