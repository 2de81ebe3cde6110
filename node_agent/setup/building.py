"""One build of an environment: its folders, the process that makes it, its time, and what it writes.

    ENVIRONMENTS/KEY/env      the environment, at the path that it has for ever
    ENVIRONMENTS/KEY/work     what its builder sees: the working directory
    ENVIRONMENTS/KEY/space    its home and /tmp
    ENVIRONMENTS/KEY/output   what the build wrote, up to OUTPUT_BYTES_MAX

Virtual environments hold their own path, so that it is made where it stays; it counts once it is marked as made.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from gpufleet.text.units import format_duration

from ..core.environment import PATH_DEFAULT, activated
from ..core.launch import ENVIRONMENT_PATH, FILES_PATH, HOME_PATH, ControlGroup, Isolation, Process
from ..keeper.jail import remove_space
from ..keeper.values import process_to
from .recipes import NotMade, Recipe

BUILDER = f"{__package__}.builder"

OUTPUT_BYTES_MAX = 2**20
TAIL_LINES, TAIL_CHARS_MAX = 12, 2_000
"""What is told of what a build wrote."""

END_SECONDS_MAX = 10.0
"""How long a build that is told to end may take, and what one of before may still hold the place."""
LOCK_PAUSE_SECONDS = 0.05

OF_THE_NODE = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX"),
)
"""Variables of the agent that a build has, too: the way to the network and to packages. Builds run what strangers
wrote, so they are no place for secrets."""


class Build:
    """Makes one environment in `folder`, which is its alone. `stage` is an empty folder that jails are built on."""

    def __init__(self, folder: Path, lock: Path, stage: Path, recipe: Recipe) -> None:
        self.recipe = recipe
        self.folder = folder
        self._lock = lock
        self._stage = stage
        self._tail = b""

    @property
    def output(self) -> Path:
        """The file of what it writes, once it has begun."""
        return self.folder / "output"

    def begin(self) -> None:
        """Have the file of what it writes there, so that it can be read from now on. Errors: OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.output.unlink(missing_ok=True)
        self.output.touch(0o600)

    @property
    def said(self) -> str:
        """The last lines of what it wrote."""
        lines = [line.rstrip() for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:])[-TAIL_CHARS_MAX:]

    async def make(
        self,
        files: Path,
        isolation: Isolation | None,
        group: ControlGroup | None,
        *,
        seconds_max: float,
    ) -> float:
        """Make it of the recipe; answers how many seconds that took. `files` are the job's. Errors: NotMade, OSError.

        Cancelled, it ends the build before it ends.
        """
        began = time.monotonic()
        held = await self._held()
        try:
            await asyncio.to_thread(self._prepare, files, isolation)
            order = self._order(isolation, group)
            code = await self._run(order, held, seconds_max)
        finally:
            os.close(held)
            await asyncio.to_thread(self._clear)
        if code < 0:
            raise NotMade(f"{self.recipe.in_words}: the process that made it was ended by signal {-code}")
        if code:
            raise NotMade(f"{self.recipe.in_words}: it failed with code {code}{self._last_words()}")
        return time.monotonic() - began

    def _last_words(self) -> str:
        return f": {self.said}" if self.said else ""

    async def _held(self) -> int:
        """Hold its place, once whatever an agent of before had begun there has ended."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + END_SECONDS_MAX
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(fd)
                    raise NotMade("a build of before does not end on its node") from None
                await asyncio.sleep(LOCK_PAUSE_SECONDS)

    def _prepare(self, files: Path, isolation: Isolation | None) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("env", "work", "home", "space"):  # of one of before, which was not finished
            shutil.rmtree(self.folder / name, ignore_errors=True)
        env, work = self.folder / "env", self.folder / "work"
        env.mkdir(mode=0o755)
        if self.recipe.has_folder:
            shutil.copytree(files, work, symlinks=True)
        else:
            work.mkdir(mode=0o700)
        for name, content in self.recipe.files.items():
            (work / name).write_bytes(content)
        if isolation is None:
            (self.folder / "home").mkdir(mode=0o700)
        else:
            os.chown(env, isolation.uid, isolation.gid)

    def _order(self, isolation: Isolation | None, group: ControlGroup | None) -> Mapping[str, object]:
        apart = isolation is not None
        env, work = str(self.folder / "env"), str(self.folder / "work")
        home = str(self.folder / "home")
        if isolation is not None:
            env, work, home = ENVIRONMENT_PATH, FILES_PATH, isolation.home or HOME_PATH
        variables = {name: os.environ[name] for name in OF_THE_NODE if name in os.environ}
        variables |= {
            "PATH": PATH_DEFAULT,
            "HOME": home,
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONNOUSERSITE": "1",
            "PIP_NO_INPUT": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_PROGRESS_BAR": "off",
            "UV_NO_PROGRESS": "1",
            "UV_LINK_MODE": "copy",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_PROJECT_ENVIRONMENT": env,
            "GPUFLEET_FILES": work,
        }
        variables |= activated(variables, env, is_conda=False)
        process = Process(
            argv=("/bin/sh", "-c", f"set -e\numask 022\n{self.recipe.script}"),
            env=variables,
            cwd=work,
            isolation=isolation,
            group=group,
        )
        return {
            "process": process_to(process),
            "space": str(self.folder / "space") if apart else "",
            "stage": str(self._stage),
            "group_name": f"gpufleet-setup-{self.recipe.key}",
        }

    async def _run(self, order: Mapping[str, object], held: int, seconds_max: float) -> int:
        """Run it; answers its exit code. What it writes is kept, and never waited for."""
        builder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", BUILDER, str(held)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(held,),
        )
        assert builder.stdin is not None and builder.stdout is not None
        reading = asyncio.create_task(self._read(builder.stdout))
        try:
            builder.stdin.write(json.dumps(order).encode() + b"\n")
            async with asyncio.timeout(seconds_max):
                return await builder.wait()
        except TimeoutError:
            limit = format_duration(timedelta(seconds=seconds_max))
            raise NotMade(
                f"{self.recipe.in_words}: it was not done after {limit}, the node's limit for it{self._last_words()}"
            ) from None
        finally:
            builder.stdin.close()  # which ends the build, if it still goes on
            await asyncio.shield(self._gone(builder, reading))

    async def _gone(self, builder: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
        """Wait until nothing of it is left that writes."""
        _, late = await asyncio.wait({asyncio.create_task(builder.wait()), reading}, timeout=END_SECONDS_MAX)
        if late and builder.returncode is None:
            builder.kill()
            await builder.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, output: asyncio.StreamReader) -> None:
        with self.output.open("wb") as file:
            while piece := await output.read(65_536):
                self._tail = (self._tail + piece)[-65_536:]
                if file.tell() < OUTPUT_BYTES_MAX:
                    file.write(piece[: OUTPUT_BYTES_MAX - file.tell()])
                    file.flush()

    def _clear(self) -> None:
        """Remove what only the build needed."""
        for name in ("work", "home"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        remove_space(str(self.folder / "space"))
