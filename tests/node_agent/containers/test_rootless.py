"""A rootless engine: who is who inside and outside, and whose engine counts. With a real Podman where there is one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest

from node_agent.containers.engine import SCHEME, Engine, EngineFacts
from node_agent.containers.making import request_of
from node_agent.core.launch import FILES_PATH
from tests.containers.engine import APPLETS, BEGIN, DEADLINE_SECONDS
from tests.node_agent.containers.test_making import DOCKER, WANTED

IMAGE = "localhost/busybox:1"


@pytest.mark.parametrize(
    ("facts", "user", "namespace"),
    [
        (DOCKER, "1900000001:1900000001", None),
        (replace(DOCKER, is_rootless=True), "0:0", None),
        (replace(DOCKER, is_podman=True), "1900000001:1900000001", None),
        (replace(DOCKER, is_podman=True, is_rootless=True), "1900000001:1900000001", "keep-id"),
    ],
    ids=["docker", "docker without root", "podman", "podman without root"],
)
def test_it_runs_as_who_is_the_jobs_user_outside(facts: EngineFacts, user: str, namespace: str | None) -> None:
    request = request_of(WANTED, facts)
    assert (request["User"], request["HostConfig"].get("UsernsMode")) == (user, namespace)


class Answering(BaseHTTPRequestHandler):
    """A rootless Podman, as far as it is asked for what it is."""

    def do_GET(self) -> None:
        body = b'{"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}], "Rootless": true}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return ""

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_rootless_engine_of_another_account_is_none_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.sock"
    with ThreadingUnixStreamServer(str(path), Answering) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            own = Engine(SCHEME + str(path)).look()
            account = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: account + 1)
            others = Engine(SCHEME + str(path)).look()
        finally:
            server.shutdown()
            serving.join()
    assert (own.name, own.is_rootless, own.problem) == ("podman 4.3.1", True, "")
    assert others.name == "" and f"is of account {account}, and the agent runs as {account + 1}" in others.problem
    assert others.fix.startswith("Run the agent as that account")


@dataclass(frozen=True)
class Account:
    """An account of this machine, with numbers for its containers."""

    name: str
    uid: int
    gid: int


def account_with_numbers() -> Account:
    """One that may have a rootless engine; skips where there is none."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("podman", "newuidmap", "busybox", "unshare", "crun"))):
        pytest.skip("a rootless engine needs root to make it, podman, crun and newuidmap")
    with suppress(FileNotFoundError):
        for line in Path("/etc/subuid").read_text().splitlines():
            name = line.partition(":")[0]
            with suppress(KeyError):
                found = pwd.getpwnam(name)
                return Account(name, found.pw_uid, found.pw_gid)
    pytest.skip("no account has numbers for containers: useradd, and a line in /etc/subuid and /etc/subgid")


@contextmanager
def rootless_engine(account: Account, folder: Path) -> Iterator[str]:
    """The socket of an engine of this account, with IMAGE."""
    image = folder / "image"
    (image / "bin").mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), image / "bin" / "busybox")
    for name in APPLETS:
        (image / "bin" / name).symlink_to("busybox")
    subprocess.run(["tar", "--create", "--file", folder / "image.tar", "--directory", image, "."], check=True)
    for name in ("run", "home"):
        (folder / name).mkdir(mode=0o700)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    podman = ("podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "file")
    begin = ("unshare", "--mount", "sh", "-c", BEGIN, "sh")
    become = ("setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups")
    command = (*begin, *become, *podman)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run")}
    path = folder / "engine.sock"

    def run(*words: str) -> None:
        subprocess.run([*command, *words], env=env, check=True, cwd=folder, capture_output=True)

    run("import", str(folder / "image.tar"), IMAGE)
    service = subprocess.Popen([*command, "system", "service", "--time", "0", f"unix://{path}"], env=env, cwd=folder)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not path.is_socket():
            assert service.poll() is None and time.monotonic() < deadline, "the engine does not answer"
            time.sleep(0.05)
        yield str(path)
    finally:
        service.terminate()
        service.wait(DEADLINE_SECONDS)
        run("rm", "--force", "--all", "--time", "0")
        for pid in folder.glob("run/**/pause.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), 9)


def test_a_job_reads_and_writes_its_own_folder_by_a_rootless_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    account = account_with_numbers()
    with tempfile.TemporaryDirectory(prefix="rootless-", dir="/tmp") as name:
        folder = Path(name)
        with rootless_engine(account, folder) as socket:
            files = folder / "files"
            files.mkdir(mode=0o700)
            (files / "given").write_text("mine")
            for path in (files, files / "given"):
                os.chown(path, account.uid, account.gid)
            monkeypatch.setattr(os, "geteuid", lambda: account.uid)  # as which the agent would run
            engine = Engine(SCHEME + socket)
            facts = engine.look()
            assert (facts.problem, facts.is_rootless, facts.is_podman) == ("", True, True)
            script = f'test "$(cat given)" = mine && test "$(id -u)" = {account.uid} && echo done > left'
            wanted = replace(
                WANTED,
                image=IMAGE,
                argv=("/bin/sh", "-c", script),
                cwd=FILES_PATH,
                uid=account.uid,
                gid=account.gid,
                groups=(),
                memory_bytes=0,
                mounts=(),
                files=str(files),
                home="",
            )
            assert run_to_its_end(engine.client(socket), request_of(wanted, facts)) == 0
        left = files / "left"
        assert (left.read_text(), left.stat().st_uid, left.stat().st_gid) == ("done\n", account.uid, account.gid)


def run_to_its_end(client: Any, request: dict[str, Any]) -> int:
    """The exit code of what was asked for."""
    request["HostConfig"].pop("NanoCpus")  # control groups of the first version are nobody's but root's
    request["HostConfig"].pop("PidsLimit")
    answer = client._post_json(client._url("/containers/create"), request)
    client._raise_for_status(answer)
    made = answer.json()["Id"]
    client.start(made)
    return int(client.wait(made)["StatusCode"])
