"""A real PostgreSQL for tests: Debian's server programs, a temp directory, a spare port, one server per test process.

`shared_server()` starts it at the first use and stops it with the last user. Without the programs the tests that
need them are skipped with the reason; with CI=true they fail instead.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest

START_SECONDS_MAX = 60.0
FIRST_DATABASE = "fleet_1"
"""The name that the first `new_database` of a server gives."""
PROGRAMS = "/usr/lib/postgresql/*/bin"

PORTS = range(20_000, 30_000)
"""Linux gives these to nobody who asks for any: one that is free is so until the server has started, and while it is
stopped."""

# Tests want the server's behaviour, not its promise to survive a power cut.
FAST = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=50", "autovacuum=off")


class PostgresServer:
    """One cluster that can be stopped and started again on the same port."""

    def __init__(self, programs: Path, folder: Path, *, inside: Sequence[str] = (), host: str = "127.0.0.1") -> None:
        """`inside` is what the server's command line begins with to run on another machine, whose address is `host`."""
        self._programs = programs
        self._inside = inside
        self._host = host
        self.folder = folder
        self._account = unprivileged_account()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.port = _spare_port()
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        if not (folder / "data").exists():
            self._run("initdb", "-D", str(folder / "data"), "-U", "gpufleet", "-A", "trust", "-E", "UTF8", "-N")

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://gpufleet@127.0.0.1:{port or self.port}/{database}"

    def socket_url(self, database: str) -> str:
        """The same for programs in other network namespaces."""
        return f"postgresql://gpufleet@/{database}?host={self.folder}&port={self.port}"

    def _near_url(self, database: str) -> str:
        """How this process reaches the server, which may be in another network."""
        return self.socket_url(database) if self._inside else self.url(database)

    def new_database(self) -> str:
        """The name of a fresh, empty database."""
        self._databases += 1
        name = f"fleet_{self._databases}"
        with psycopg.connect(self._near_url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._process is not None

    def start(self, *more: str, is_awaited: bool = True) -> None:
        """Start it with more settings; return once it lets people in, unless that is not awaited."""
        assert self._process is None
        options = [word for setting in (*FAST, *more) for word in ("-c", setting)]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._inside,
                    *(self._as_its_account() if self._inside else ()),
                    str(self._programs / "postgres"),
                    *("-D", str(self.folder / "data"), "-k", str(self.folder), "-p", str(self.port)),
                    *("-h", self._host),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self.folder,
                user=None if self._account is None or self._inside else self._account.pw_uid,
                group=None if self._account is None or self._inside else self._account.pw_gid,
                extra_groups=None if self._account is None or self._inside else [],
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while is_awaited:
            try:
                psycopg.connect(self._near_url("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "server.log").read_text(errors="replace")) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """End the server at once, as a crash of its machine would (its children leave with it)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(START_SECONDS_MAX)
        self._process = None

    def follow_nobody(self) -> None:
        """Have the next start recover without an end, as a server that follows another one, until `promote`."""
        self._touch("standby.signal")

    def promote(self) -> None:
        """Have a server that recovers take writes."""
        assert self._process is not None
        self._touch("promote")
        self._process.send_signal(signal.SIGUSR1)

    def _touch(self, name: str) -> None:
        file = self.folder / "data" / name
        file.touch(mode=0o600)
        if self._account is not None:
            os.chown(file, self._account.pw_uid, self._account.pw_gid)

    def _as_its_account(self) -> list[str]:
        """Only root may go to another machine: there it becomes the account that may do nothing else."""
        if self._account is None:
            return []
        return ["setpriv", f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}", "--clear-groups"]

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            user=None if self._account is None else self._account.pw_uid,
            group=None if self._account is None else self._account.pw_gid,
            extra_groups=None if self._account is None else [],
        )


def unprivileged_account() -> pwd.struct_passwd | None:
    """The server refuses to run as root: then it runs as an account that may do nothing else."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("no account to run PostgreSQL as: neither postgres nor nobody exists")


def _spare_port() -> int:
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"every port from {PORTS.start} to {PORTS.stop - 1} is taken")


def programs() -> Path | str:
    """Where the server's programs are, or why they are not there."""
    found = sorted(Path("/").glob(PROGRAMS.lstrip("/") + "/postgres"), key=lambda path: path.parts[-3].zfill(4))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).parent
    return f"PostgreSQL's server programs are not installed ({PROGRAMS}): apt-get install postgresql"


def needed_programs() -> Path:
    """The same for a test: it is skipped without them, and fails where CI must have them."""
    found = programs()
    if isinstance(found, Path):
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(found)
    pytest.skip(found)


_users = 0
_server: PostgresServer | None = None


@contextlib.contextmanager
def shared_server(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[PostgresServer]:
    """The running server of this test process, started by its first user and stopped by its last."""
    global _users, _server
    if _server is None:
        server = PostgresServer(needed_programs(), Path(tempfile.mkdtemp(prefix="gpufleet-postgres-")))
        with long_lived("PostgreSQL"):
            server.start()
        _server = server
    _users += 1
    try:
        yield _server
    finally:
        _users -= 1
        if _users == 0:
            _server.stop()
            shutil.rmtree(_server.folder)
            _server = None
