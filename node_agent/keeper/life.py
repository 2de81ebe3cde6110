"""A keeper's life as a process: it detaches, takes its locks, keeps, and cleans up behind itself."""

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from .door import Door
from .keeper import Keeper
from .linux import become_subreaper, watch_for_deletions
from .reactor import Reactor
from .requests import Requests
from .state_dir import StateDir, try_lock

LOG_BYTES_MAX = 1_000_000
READY = b"ready"
EXIT_FAILED = 70
EXIT_ANOTHER_IS_ACTIVE = 75


def live(root: str, keeper_id: str, build: str, tell_fd: int) -> NoReturn:
    """Be the keeper; tells `ready`, or a code and a reason, to whoever started it."""
    state = StateDir(root)
    code = EXIT_FAILED
    try:
        state.prepare()
        active_fd = try_lock(state.active_lock, create=True)
        if active_fd is None:
            os.write(tell_fd, b"%d another keeper is active in %s" % (EXIT_ANOTHER_IS_ACTIVE, os.fsencode(root)))
            os._exit(EXIT_ANOTHER_IS_ACTIVE)
        lock_fd = state.make_keeper(keeper_id)
        directory = state.keeper(keeper_id)
        _detach(directory / "log", {tell_fd, active_fd, lock_fd})
        _keep(state, keeper_id, build, active_fd, lambda: _tell_ready(tell_fd))
        shutil.rmtree(directory, ignore_errors=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _keep(state: StateDir, keeper_id: str, build: str, active_fd: int, ready: Callable[[], None]) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    reactor = Reactor()
    keeper = Keeper(state, keeper_id, reactor, lambda: os.close(active_fd))
    requests = Requests(keeper, build, lambda message: door.send(message))
    door = Door(reactor, state.keeper(keeper_id), requests, keeper.reports.send_again)
    keeper.send = door.send
    _watch_home(state.keeper(keeper_id), reactor, keeper)
    ready()
    _log(f"keeper {keeper_id} (build {build!r}) keeps in {state.root}")
    reactor.run()
    _log("every attempt is over; leaving")
    door.close()


def _watch_home(directory: Path, reactor: Reactor, keeper: Keeper) -> None:
    """A keeper without its directory is out of every agent's reach, and so would be what it runs: it ends both."""
    try:
        watch_fd = watch_for_deletions(directory)
    except OSError as error:
        _log(f"cannot notice when {directory} is deleted: {error}")
        return

    def something_was_deleted() -> None:
        os.read(watch_fd, 65536)
        if not (directory / "lock").exists():
            reactor.forget(watch_fd)
            _log(f"{directory} was deleted; stopping everything")
            keeper.stop_all(None)

    reactor.call_when_readable(watch_fd, something_was_deleted)


def _detach(log: Path, keep_fds: set[int]) -> None:
    """Hold nothing that belongs to whoever started this: no descriptor, no directory, no terminal."""
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a list, for the descriptors change underway
        if int(name) > 2 and int(name) not in keep_fds:
            try:
                os.close(int(name))
            except OSError:
                continue
    null_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null_fd, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null_fd)
    os.close(log_fd)


def _tell_ready(tell_fd: int) -> None:
    os.write(tell_fd, READY)
    os.close(tell_fd)


def _log(sentence: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{stamp} {sentence}", file=sys.stderr, flush=True)
