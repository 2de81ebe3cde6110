"""A keeper's life as a process: it detaches, takes its locks, keeps, and cleans up behind itself."""

import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from .door import Door
from .keeper import Keeper
from .linux import become_subreaper, lower_out_of_memory_score, watch_for_deletions
from .reactor import Reactor
from .requests import Requests
from .state_dir import StateDir, try_lock

LOG_BYTES_MAX = 1_000_000
"""A log longer than this is put aside when a keeper starts; one older log is kept."""

READY = b"ready"
EXIT_FAILED = 70
EXIT_ANOTHER_IS_ACTIVE = 75


class Starter:
    """Whoever started the keeper and waits to hear that it listens, or a code and a reason why not."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def tell(self, said: bytes) -> bool:
        """Say it, and answer whether anybody listened: once said, what comes later is for the log."""
        if self._fd is None:
            return False
        os.write(self._fd, said)
        os.close(self._fd)
        self._fd = None
        return True

    @property
    def fds(self) -> set[int]:
        """Answer the descriptor that must stay open."""
        return set() if self._fd is None else {self._fd}


def live(root: str, keeper_id: str, build: str, tell_fd: int) -> NoReturn:
    """Be the keeper, from the fork to the end of the process."""
    starter = Starter(tell_fd)
    code = EXIT_FAILED
    try:
        code = _live(StateDir(root), keeper_id, build, starter)
    except OSError as error:
        if not starter.tell(b"%d %s" % (EXIT_FAILED, os.fsencode(str(error)))):
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _live(state: StateDir, keeper_id: str, build: str, starter: Starter) -> int:
    state.prepare()
    active_fd = try_lock(state.active_lock, create=True)
    if active_fd is None:
        reason = f"another keeper is active in {state.root}"
        starter.tell(b"%d %s" % (EXIT_ANOTHER_IS_ACTIVE, os.fsencode(reason)))
        return EXIT_ANOTHER_IS_ACTIVE
    lock_fd = state.make_keeper(keeper_id)
    _detach(state.root / "keeper.log", {active_fd, lock_fd} | starter.fds)
    _keep(state, keeper_id, build, active_fd, lock_fd, starter)
    if state.keeper_lock(keeper_id).exists():  # else somebody is just deleting it, and would trip over another
        shutil.rmtree(state.keeper(keeper_id), ignore_errors=True)
    return 0


def _keep(state: StateDir, keeper_id: str, build: str, active_fd: int, lock_fd: int, starter: Starter) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    lower_out_of_memory_score()
    reactor = Reactor()
    keeper = Keeper(state, keeper_id, reactor, lambda: os.close(active_fd), lock_fd)
    requests = Requests(keeper, build, lambda message: door.send(message))
    door = Door(reactor, state.keeper(keeper_id), requests, keeper.reports.send_again)
    keeper.send = door.send
    _watch_home(state.keeper(keeper_id), reactor, keeper)
    _log(keeper, f"keeps (build {build!r})")
    starter.tell(READY)
    reactor.run()
    _log(keeper, "leaves")
    keeper.close()
    door.close()


def _watch_home(directory: Path, reactor: Reactor, keeper: Keeper) -> None:
    """A keeper without its directory is out of every agent's reach, and so would be what it runs: it ends both."""
    try:
        watch_fd = watch_for_deletions(directory)
    except OSError as error:
        _log(keeper, f"cannot notice when {directory} is deleted: {error}")
        return

    def something_was_deleted() -> None:
        os.read(watch_fd, 65536)
        if not (directory / "lock").exists():
            reactor.forget(watch_fd)
            _log(keeper, f"{directory} was deleted; stopping everything")
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
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    null_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null_fd, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null_fd)
    os.close(log_fd)


def _log(keeper: Keeper, sentence: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{stamp} keeper {keeper.keeper_id} (pid {os.getpid()}) {sentence}", file=sys.stderr, flush=True)
