"""`python -m tests.releases.keep 0.2.0`: keep what the programs of this tree leave, beside that of earlier releases.

Type it once, on the commit of the release. A fleet of the real programs does something of everything, is killed, and
goes on; between its programs stands a server that writes down what they say (`wire.py`).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2_grpc

from tests.api.sessions.people import GatewayStream
from tests.e2e.client import dial
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, AgentProcess, clean_environment, until
from tests.releases.wire import FILE, Recorder, write_lines

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
STORE, IMAGE, FACTS, COMMIT = "store.tar.gz", "protos.binpb.gz", "facts.json", "commit"
KILLED = "killed"
"""The moment at which the store was kept: what is said after it goes on from that store."""

NODE = "n1"
KEPT_BYTES_MAX = 500_000
NOT_KEPT = ("logs", "scheduler.db.lock", "listening")


READ = (
    ("queue", "--all"),
    ("job", "1"),
    ("story", "1"),
    ("logs", "1"),
    ("explain", "3"),
    ("nodes",),
    ("usage",),
    ("history",),
    ("token", "list"),
    ("secret", "list"),
    ("models",),
    ("workers",),
)
"""Commands that look, typed once everything is there."""


class Keeping:
    """One release being kept, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._fleet = Fleet(folder / "fleet")
        self._folder = folder
        self._go = folder / "go"
        self.facts: dict[str, Any] = {}

    async def run(self, target: Path) -> None:
        """Do something of everything; leave the files in the target."""
        fleet = self._fleet
        await fleet.scheduler.start()
        try:
            async with Recorder(fleet.scheduler.address) as recorder:
                self._recorder = recorder
                await self._begin()
                await self._before()
                await self._kill(target)
                await self._after()
                lines = list(recorder.lines)
        finally:
            await fleet.end()
        write_lines(target / FILE, lines)
        (target / FACTS).write_text(json.dumps(self.facts, indent=2, sort_keys=True) + "\n")

    async def _begin(self) -> None:
        fleet = self._fleet
        agent = AgentProcess(fleet.scheduler, self._folder / "agent", NODE, ["--virtual-gpus", "2", "--cpus", "4"])
        agent.flags[agent.flags.index("--scheduler") + 1] = self._recorder.address
        fleet.agents[NODE] = agent
        agent.spawn()
        await fleet.node_is_ready(NODE)

    async def _before(self) -> None:
        said: dict[str, int] = {}
        await self._gpuctl("run", "--name", "ended", "--", "sh", "-c", "echo hello; echo trouble >&2")
        await self._gpuctl("run", "--name", "failed", "--", "sh", "-c", "exit 3", code=3)
        await self._gpuctl("secret", "set", "KEPT_SECRET", stdin="a value")
        await self._gpuctl("token", "create", "ada", "--note", "laptop")
        said["held"] = await self._submit("held", "--hold", "--gpus", "1", "--", "true")
        said["cancelled"] = await self._submit("cancelled", "--hold", "--", "true")
        await self._gpuctl("cancel", str(said["cancelled"]))
        said["stopped"] = await self._submit("stopped", "--", "sleep", "1000")
        await self._is(said["stopped"], job_pb2.JOB_STATE_RUNNING)
        await self._gpuctl("cancel", str(said["stopped"]))
        await self._is(said["stopped"], job_pb2.JOB_STATE_CANCELLED)
        said["array"] = await self._submit("array", "--array", "0-3", "--hold", "--", "true")
        running = ("sh", "-c", f"echo before; while ! test -e {self._go}; do sleep 0.1; done; echo after")
        said["running"] = await self._submit("running", "--gpus", "2", "--", *running)
        said["queued"] = await self._submit("queued", "--gpus", "2", "--secret", "KEPT_SECRET", "--", "echo", "queued")
        await self._is(said["running"], job_pb2.JOB_STATE_RUNNING)
        await self._gpuctl("serve", "test-pattern", "--min", "1", "--max", "1")
        await self._take_a_turn()
        for words in READ:
            await self._gpuctl(*words)
        self.facts = {
            "jobs": {"ended": 1, "failed": 2} | said,
            "node": NODE,
            "token": self._fleet.scheduler.token("admin"),
        }

    async def _take_a_turn(self) -> None:
        """Somebody comes to the model through a gateway, is given the seat, and leaves."""
        async with dial(self._recorder.address, self._fleet.scheduler.token("gateway")) as channel:
            stream = GatewayStream(scheduler_pb2_grpc.SchedulerStub(channel).OpenSession())
            try:
                await stream.join(1, "test-pattern", "somebody")
                await stream.grant(1)
                await stream.say(1, leave=True)
                await stream.notice(1)
            finally:
                await stream.inbox.end()
                del stream

    async def _kill(self, target: Path) -> None:
        """Kill the scheduler, keep what it stored, and start it again."""
        fleet = self._fleet

        async def is_stored() -> bool:
            async with fleet.client() as admin:
                return await admin.stdout(self.facts["jobs"]["running"], follow=False) == b"before\n"

        await until("what it printed is stored", is_stored)
        fleet.scheduler.kill()
        self._recorder.mark(KILLED)
        data = fleet.scheduler.data
        with tarfile.open(target / STORE, "w:gz") as archive:
            for path in sorted(data.rglob("*")):
                if path.is_file() and not set(path.relative_to(data).parts) & set(NOT_KEPT):
                    archive.add(path, path.relative_to(data))
        await fleet.scheduler.start()
        await fleet.node_is_ready(NODE)

    async def _after(self) -> None:
        jobs = self.facts["jobs"]
        self._go.touch()
        for name in ("running", "queued"):
            await self._is(jobs[name], job_pb2.JOB_STATE_SUCCEEDED)
        await self._gpuctl("run", "--name", "newest", "--", "true")

    async def _is(self, number: int, state: job_pb2.JobState.ValueType) -> None:
        async with self._fleet.client() as admin:

            async def is_so() -> bool:
                return (await admin.job(number)).state == state

            await until(f"job {number} is {job_pb2.JobState.Name(state)}", is_so)

    async def _submit(self, name: str, *words: str) -> int:
        return int(await self._gpuctl("submit", "--name", name, "--cwd", "/", "-o", "name", *words))

    async def _gpuctl(self, *words: str, stdin: str = "", code: int = 0) -> str:
        more = {"GPUCTL_SCHEDULER": self._recorder.address, "GPUCTL_TOKEN": self._fleet.scheduler.token("admin")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gpufleet.cli", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(self._folder, more),
            cwd=self._folder,
        )
        async with asyncio.timeout(DEADLINE_SECONDS):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode == code, (words, process.returncode, out, err)
        return out.decode()


def main(release: str, folder: str = "") -> None:
    """Keep this tree as that release; nothing that is kept is written over."""
    target = FOLDER / release
    if folder:
        asyncio.run(Keeping(Path(folder)).run(target))
        return
    target.mkdir()
    with tempfile.TemporaryDirectory(prefix="keep-") as made:
        # What is kept names the interpreter and the search path of programs: those of no machine.
        environment = Path(made, "environment")
        environment.symlink_to(sys.prefix)
        again = (environment / "bin" / "python", "-m", "tests.releases.keep", release, made)
        subprocess.run(again, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "HOME": made}, check=True)
    buf = Path(sys.executable).with_name("buf")
    subprocess.run([buf, "build", "--exclude-source-info", "-o", target / IMAGE], cwd=ROOT, check=True)
    talk = (sys.executable, "-P", FOLDER / "keeper_talk.py", target)
    subprocess.run(talk, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'gen'}"}, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    (target / COMMIT).write_text(head.stdout)
    size = sum(path.stat().st_size for path in target.iterdir())
    print(f"kept {release}: {size:,} bytes in {target.relative_to(ROOT)}")
    assert size <= KEPT_BYTES_MAX, "keep less"


if __name__ == "__main__":
    main(*sys.argv[1:])
