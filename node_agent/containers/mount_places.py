"""Holds what a container is shown in places that only the agent can write, from its check until the container is gone.

    /run/gpufleet/mounts/AGENT/         a file system in memory of this agent's own, mode 0700
    /run/gpufleet/mounts/AGENT/KEY/0    what was opened for the first mount of an attempt, bound here

An engine follows a path when it starts a container. A job that can write below a mount root could exchange a folder
for a link after the check; so the engine is given the place to which the checked descriptor itself was bound.

It works where the agent is root and the engine has the agent's mount namespace. Elsewhere a mount is allowed only if no
user can change a folder above it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..core.launch import SPACE_PATH, Mount
from ..keeper.linux import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    MS_SLAVE,
    mount,
    unmount,
)
from .mounts import folder_that_users_can_change, opened_without_links, refused

FOLDER = Path(SPACE_PATH, "mounts")
ANSWER_SECONDS_MAX = 5.0
_CREDENTIALS = struct.Struct("iII")


class MountPlaces:
    """The places of one agent. Its methods block and may be called by any thread."""

    def __init__(self, agent_id: str, folder: Path = FOLDER) -> None:
        self._folder = folder / agent_id
        self._lock = threading.Lock()

    def held(self, attempt: str, mounts: Sequence[Mount], engine_socket: str) -> tuple[Mount, ...]:
        """The mounts as the engine is asked for them. Sources are without links. Errors: ContainerTrouble."""
        if not mounts:
            return ()
        why_not = _why_nothing_is_held(engine_socket)
        if not why_not:
            try:
                with self._lock:
                    return self._all_held(attempt, mounts)
            except PermissionError as problem:
                why_not = f"its agent may not mount ({problem.strerror})"
            except OSError as problem:
                raise refused(mounts[0].source, f"it cannot be held in place: {problem}") from None
        for each in mounts:
            _refuse_in_reach_of_users(each.source, why_not)
        return tuple(mounts)

    def release(self, attempt: str) -> None:
        """Let go of what was held for an attempt. OSError where the system does not."""
        with self._lock:
            self._release(attempt)

    def sweep(self, in_use: Callable[[], Collection[str]]) -> None:
        """Let go of what is held for attempts that are not in use, also by an earlier agent. Errors: OSError."""
        with self._lock:
            for attempt in set(_names(self._folder)).difference(in_use()):
                self._release(attempt)

    def _all_held(self, attempt: str, mounts: Sequence[Mount]) -> tuple[Mount, ...]:
        self._release(attempt)
        return tuple(
            replace(each, source=self._hold(f"{attempt}/{number}", each.source)) for number, each in enumerate(mounts)
        )

    def _hold(self, name: str, source: str) -> str:
        """Bind what is there now; the place that it has then. Errors: ContainerTrouble, OSError."""
        place = self._folder / name
        with _opened(source) as descriptor:
            self._make(place, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            mount(f"/proc/self/fd/{descriptor}", str(place), flags=MS_BIND | MS_REC)
            # Else what is unmounted below the place later would be unmounted where it came from, too.
            mount("", str(place), flags=MS_SLAVE | MS_REC)
        return str(place)

    def _make(self, place: Path, *, is_folder: bool) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._folder.is_mount():
            # An engine that does not see this agent's mounts finds no place, instead of an empty folder.
            mount("tmpfs", str(self._folder), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=700,size=1m")
        place.parent.mkdir(exist_ok=True)
        if is_folder:
            place.mkdir()
        else:
            place.touch(exist_ok=False)

    def _release(self, attempt: str) -> None:
        folder = self._folder / attempt
        for name in _names(folder):
            place = folder / name
            with contextlib.suppress(OSError):  # the agent died before it was bound
                mount("", str(place), flags=MS_PRIVATE | MS_REC)
                unmount(str(place))
            # Neither removes what is in a folder: what is still bound stays whole.
            if place.is_dir():
                place.rmdir()
            else:
                place.unlink()
        if folder.is_dir():
            folder.rmdir()
        if self._folder.is_mount() and not _names(self._folder):
            unmount(str(self._folder))
            self._folder.rmdir()


def _why_nothing_is_held(engine_socket: str) -> str:
    if os.geteuid() != 0:
        return "its agent is not root"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(ANSWER_SECONDS_MAX)
            channel.connect(engine_socket)
            told = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        engine, _, _ = _CREDENTIALS.unpack(told)
        is_shared = os.path.samestat(os.stat(f"/proc/{engine}/ns/mnt"), os.stat("/proc/self/ns/mnt"))  # noqa: PTH116
    except OSError:
        is_shared = False
    return "" if is_shared else "its engine has other mounts than its agent"


def _refuse_in_reach_of_users(source: str, why_not_held: str) -> None:
    """Errors: ContainerTrouble, where a user can put something else in its place."""
    try:
        folder = folder_that_users_can_change(source)
    except OSError as problem:
        raise refused(source, f"it is not there any more: {problem}") from None
    if folder:
        raise refused(
            source,
            f"users can change {folder}, and this node cannot hold in place what it checked, as {why_not_held}: "
            f"mount {folder} itself, or let root alone write to it",
        )


@contextlib.contextmanager
def _opened(source: str) -> Iterator[int]:
    try:
        descriptor = opened_without_links(source)
    except OSError:
        raise refused(source, "something else has taken its place since it was checked; submit the job again") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir())
    except FileNotFoundError:
        return []
