"""The environments of this node: who has which, which are made now and who waits for them, and what makes room.

    DATA/environments/made/KEY/        an environment, with the file `made` once it is whole: see building.py
    DATA/environments/locks/KEY        held by whoever makes it, and by what is left of that
    DATA/environments/uses/JOB.ATTEMPT.RANK   the key of what a rank has
    DATA/environments/removed/         what is being removed

One is made once at a time: others that want the same wait for it. When nobody waits any more, it goes on for LINGER
seconds, as a rank that is placed again soon wants it again; then it is ended. Killed at any moment, an agent that comes
back finds what is marked as made, and removes the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.host.whole_file import replace_file
from gpufleet.jobs.runs import RankKey
from gpufleet.text.units import format_size

from ..core.commands import LaunchAttempt
from ..core.launch import ControlGroup, Refusal, RefusalReason
from ..isolation.accounts import AccountUnusable, Isolating
from ..isolation.limits import Limiting
from ..keeper.linux import sync_file_system
from .building import Build
from .recipes import NotMade, Recipe, recipe_of
from .written import Written

_log = logging.getLogger(__name__)

LINGER_SECONDS = 60.0
"""How long a build goes on for which nobody waits: a gang that is not complete in time is placed again within that."""

MARK = "made"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
FREE_BYTES_MIN = 16 * 2**20
"""A disk with less is full: then it was no fault of the job's."""


@dataclass(slots=True)
class _Making:
    build: Build
    task: asyncio.Task[None]
    user: str = ""
    waiting: int = 0
    giving_up: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupLimits:
    """How long an environment may take, and how many bytes all of them may have."""

    seconds_max: float = 1800.0
    bytes_max: int = 20 * 2**30


Tell = Callable[[RankKey, bool, str], None]
"""Told of a rank whether its environment is there, and what is going on, in words."""


@dataclass(slots=True)
class Environments:
    """Environments below `folder`. `tell` hears how far they are."""

    folder: Path
    isolating: Isolating
    limiting: Limiting
    limits: Callable[[], SetupLimits]
    tell: Tell
    written: Written = field(init=False)
    _uses: dict[str, str] = field(default_factory=dict)
    _making: dict[str, _Making] = field(default_factory=dict)
    _claiming: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.written = Written(self.folder / "written")

    def folder_of(self, key: RankKey) -> Path | None:
        """Where the environment of a rank is; None where it has none."""
        used = self._uses.get(key.name)
        return None if used is None else self._place(used) / "env"

    async def make(self, command: LaunchAttempt, files: Path) -> Refusal | None:
        """Have the environment of a rank there, whose files are in `files`; why that cannot be, None where it is."""
        if command.environment is None:
            return None
        try:
            recipe = await asyncio.to_thread(recipe_of, command, files, is_shared=self.isolating.is_on)
            if await asyncio.to_thread(self._claim, command.key, recipe.key):
                self.written.keep(command.key, self._place(recipe.key) / "output")
                self.tell(command.key, True, f"{recipe.in_words}, made before")
                return None
            while not await self._made(command, recipe, files):
                pass
        except NotMade as problem:
            return problem.refusal
        except OSError as problem:
            reason = RefusalReason.FILES_UNAVAILABLE if problem.errno in NO_ROOM else RefusalReason.SETUP_FAILED
            return Refusal(reason, f"the environment cannot be made on its node: {problem}")
        return None

    async def _made(self, command: LaunchAttempt, recipe: Recipe, files: Path) -> bool:
        """Wait for it, and begin it where nobody has. False: what another user's job had begun came to nothing.

        That says nothing for this one, which has limits of its own: it is tried again, once for each user at most.
        Errors: NotMade, OSError, AccountUnusable.
        """
        making, is_own = self._making.get(recipe.key), False
        if making is None:
            making, is_own = self._begin(command, recipe, files), True
        self.written.keep(command.key, making.build.output)
        making.waiting += 1
        if making.giving_up is not None:
            making.giving_up.cancel()
            making.giving_up = None
        also = "" if is_own else ", which another job has begun"
        self.tell(command.key, False, f"{recipe.in_words}{also}")
        try:
            await asyncio.shield(making.task)
        except asyncio.CancelledError:
            if making.task.cancelled() and (own := asyncio.current_task()) is not None and not own.cancelling():
                raise NotMade("its node gave up making it", RefusalReason.FILES_UNAVAILABLE) from None
            raise
        except (NotMade, OSError, AccountUnusable):
            if making.user == command.user:
                raise
            return False
        finally:
            making.waiting -= 1
            if not making.waiting and not making.task.done():
                making.giving_up = asyncio.get_running_loop().call_later(LINGER_SECONDS, making.task.cancel)
        said = f":\n{making.build.said}" if making.build.said else ""
        self.tell(command.key, True, f"{recipe.in_words}{said}")
        return True

    def _begin(self, command: LaunchAttempt, recipe: Recipe, files: Path) -> _Making:
        root = self.folder
        for name in ("made", "locks"):
            (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        build = Build(self._place(recipe.key), root / "locks" / recipe.key, root / "stage", recipe)
        build.begin()
        group = self.limiting.of(command.cpus, command.memory_bytes)
        task = asyncio.create_task(self._build(build, files, group))
        making = self._making[recipe.key] = _Making(build, task, command.user)
        task.add_done_callback(lambda ended: self._ended(recipe.key, ended))
        return making

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        making = self._making.pop(key)
        if making.giving_up is not None:
            making.giving_up.cancel()
        if not task.cancelled():
            task.exception()  # each who waits hears it; where nobody does, it is nobody's

    async def _build(self, build: Build, files: Path, group: ControlGroup | None) -> None:
        limits = self.limits()
        work, env = (str(build.folder / name) for name in ("work", "env"))
        _, isolation = self.isolating.of_builder(build.recipe.user, work, env)
        try:
            seconds = await build.make(files, isolation, group, seconds_max=limits.seconds_max)
            size = await asyncio.to_thread(_size_of, build.folder)
            if size > limits.bytes_max:
                held = format_size(limits.bytes_max)
                raise NotMade(
                    f"{build.recipe.in_words}: it has {format_size(size)}, more than the {held} that its node keeps of "
                    "all environments together"
                )
            await asyncio.to_thread(self._keep, build, seconds, size)
        except NotMade as problem:
            free = shutil.disk_usage(self.folder).free
            await asyncio.to_thread(self._remove, build.folder)
            if free < FREE_BYTES_MIN:
                detail = f"{problem.refusal.detail} (the disk of the node is full)"
                raise NotMade(detail, RefusalReason.FILES_UNAVAILABLE) from None
            raise
        except BaseException:
            self._remove(build.folder)
            raise
        _log.info("%s: made in %.1f s, %s", build.recipe.in_words, seconds, format_size(size))
        await asyncio.to_thread(self._make_room)

    def _keep(self, build: Build, seconds: float, size: int) -> None:
        """Mark it as made, behind all that it holds."""
        mark = {"bytes": size, "seconds": round(seconds, 3), "what": build.recipe.in_words, "user": build.recipe.user}
        sync_file_system(build.folder)
        replace_file(build.folder / MARK, json.dumps(mark).encode())

    async def release(self, key: RankKey) -> None:
        """A rank has it no more."""
        if self._uses.pop(key.name, None) is None:
            return
        with contextlib.suppress(OSError):
            (self.folder / "uses" / key.name).unlink(missing_ok=True)
        await asyncio.to_thread(self._make_room)

    def adopt(self, known: Iterable[RankKey]) -> None:
        """Know again who has what, and remove what an earlier start of the agent has left unfinished."""
        names = {key.name for key in known}
        with contextlib.suppress(FileNotFoundError):
            for note in tuple((self.folder / "uses").iterdir()):
                if note.name in names:
                    self._uses[note.name] = note.read_text("ascii")
                else:
                    note.unlink()
        with contextlib.suppress(FileNotFoundError):
            for place in tuple((self.folder / "made").iterdir()):
                if not (place / MARK).exists():
                    self._remove(place)
        shutil.rmtree(self.folder / "removed", ignore_errors=True)

    async def close(self) -> None:
        """End what is being made: nobody waits any more."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _place(self, key: str) -> Path:
        return self.folder / "made" / key

    def _claim(self, key: RankKey, used: str) -> bool:
        """Note that a rank has it, so that it never gives way; whether it is there."""
        with self._claiming:
            self._uses[key.name] = used
            (self.folder / "uses").mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.folder / "uses" / key.name, used.encode(), is_synced=False)
            mark = self._place(used) / MARK
            if not mark.exists():
                return False
            os.utime(mark)
            return True

    def _make_room(self) -> None:
        """Let those go that were not used for the longest, until all fit; none that a rank has."""
        found: list[tuple[float, int, Path]] = []
        with contextlib.suppress(FileNotFoundError):
            for place in tuple((self.folder / "made").iterdir()):
                with contextlib.suppress(OSError, ValueError):
                    size = int(json.loads((place / MARK).read_bytes())["bytes"])
                    found.append(((place / MARK).stat().st_mtime, size, place))
        total, bytes_max = sum(size for _, size, _ in found), self.limits().bytes_max
        for _, size, place in sorted(found):
            if total <= bytes_max:
                return
            with self._claiming:
                if place.name in self._uses.values() or place.name in self._making:
                    continue
                (place / MARK).unlink(missing_ok=True)
            self._remove(place)
            total -= size

    def _remove(self, place: Path) -> None:
        """Remove an environment; it is under another name at once."""
        gone = self.folder / "removed" / uuid.uuid4().hex
        try:
            gone.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.rename(gone)
        except OSError:
            return
        shutil.rmtree(gone, ignore_errors=True)


def _size_of(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{path}/{name}").st_blocks * 512
    return total
