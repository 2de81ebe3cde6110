"""The agent's side: all keepers of a node as one. Read the package's docstring for how it is used."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ..core.launch import Launch, Refusal, RefusalReason
from ..core.launch import Launched as Launched  # part of this interface
from ..core.outcome import AttemptKey, AttemptView, Offsets, StopCause
from . import records
from .aftermath import StillAlive, settle
from .connection import KeeperConnection, KeeperGone, KeeperSilent
from .events import Event, KeeperDied, Receipt, Report, Superseded, event_from
from .frames import FrameTooLong
from .life import EXIT_ANOTHER_IS_ACTIVE
from .state_dir import StateDir, try_lock
from .tombstones import Tombstones
from .values import offsets_from, refusal_from, to_json, view_from

START_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 5.0
"""How long one try to kill what a dead keeper left may take; tries go on until it is dead."""

RETRY_S = 0.1


class KeeperNotStarted(Exception):
    """No keeper could be started; the message is what it said."""


@dataclass(frozen=True, slots=True)
class OutputEnds:
    """Up to where an attempt's output is spooled; `is_final`: no more will come."""

    ends: Offsets
    is_final: bool


def keeper_command() -> tuple[str, ...]:
    """Answer how a keeper of this very program is started."""
    return (sys.executable, "-P", "-X", "utf8", "-m", f"{__package__}")


class Keepers:
    """The keepers of one state directory; made by `open`. `close` ends no keeper and no job."""

    def __init__(self, state_dir: Path | str, build: str, command: Sequence[str]) -> None:
        self._state = StateDir(state_dir)
        self._build = build
        self._command = tuple(command)
        self._connections: dict[str, KeeperConnection] = {}
        self._owners: dict[AttemptKey, str] = {}
        self._settled: dict[AttemptKey, AttemptView] = {}
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._recoveries: set[asyncio.Task[None]] = set()
        self._newest_heartbeat_us: int | None = None
        self._is_superseded = False

    # --- its life

    @classmethod
    async def open(cls, state_dir: Path | str, *, build: str, command: Sequence[str] | None = None) -> Self:
        """Adopt the keepers that live, settle what dead ones left, and have one of this build take launches.

        `build` is any text; a keeper of another one is retired. Raises KeeperNotStarted,
        KeeperSilent, OtherProtocol.
        """
        keepers = cls(state_dir, build, command if command is not None else keeper_command())
        await asyncio.to_thread(keepers._state.prepare)
        async with keepers._turn:
            try:
                await keepers._adopt()
                await keepers._active()
            except BaseException:
                await keepers.close()
                raise
        await keepers.inventory()
        return keepers

    async def close(self) -> None:
        """Hang up."""
        for task in self._recoveries:
            task.cancel()
        await asyncio.gather(*self._recoveries, return_exceptions=True)
        for connection in tuple(self._connections.values()):
            await connection.close()
        self._connections.clear()

    async def __aenter__(self) -> Self:
        """Answer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up."""
        await self.close()

    async def shutdown(self, *, kill: bool = False, grace_us: int | None = None) -> Refusal | None:
        """End the keepers: at once when nothing runs, else, with `kill`, once the grace rule has ended all.

        Returns when they are gone. Refused with ATTEMPTS_RUNNING when something runs and `kill` is not said.
        """
        inventory = await self.inventory()
        if not kill and (running := [view for view in inventory if view.phase.is_live]):
            return Refusal(RefusalReason.ATTEMPTS_RUNNING, f"{len(running)} attempts run: stop them, or say kill")
        for connection in tuple(self._connections.values()):
            with contextlib.suppress(KeeperGone):
                answer = await connection.request("shutdown", {"kill": kill, "grace_us": grace_us})
                if "refused" in answer:
                    return refusal_from(answer["refused"])
        for keeper_id in self._state.keeper_ids():
            await self._end_of(keeper_id)
        return None

    # --- what it is asked

    async def launch(self, launch: Launch) -> Launched | Refusal:
        """Start an attempt once, however often it is asked.

        Raises KeeperGone when the keeper died under it: an event KeeperDied names the attempt if it was
        started.
        """
        known = self._settled.get(launch.key)
        if known is not None:
            return Launched(known, was_known=True)
        owner = self._connections.get(self._owners.get(launch.key, ""))
        async with self._turn:
            connection = owner or await self._active()
        try:
            answer = await connection.request("launch", {"launch": to_json(launch)})
        except FrameTooLong as error:
            return Refusal(RefusalReason.ARGV_TOO_LONG, f"argv and env: {error}")
        if "refused" in answer:
            return refusal_from(answer["refused"])
        view = view_from(answer["attempt"])
        self._owners[view.key] = view.keeper_id
        return Launched(view, bool(answer["was_known"]))

    async def signal(self, key: AttemptKey, number: int) -> Refusal | None:
        """Send a signal to all processes of an attempt's group."""
        return await self._ask_owner(key, "signal", signal=number)

    async def stop(self, key: AttemptKey, cause: StopCause, grace_us: int | None = None) -> Refusal | None:
        """Stop an attempt by the grace rule, its own grace unless one is given. Again: changes nothing."""
        return await self._ask_owner(key, "stop", cause=cause.value, grace_us=grace_us)

    async def kill(self, key: AttemptKey, cause: StopCause) -> Refusal | None:
        """Kill an attempt at once."""
        return await self.stop(key, cause, 0)

    async def forget(self, key: AttemptKey) -> Refusal | None:
        """Drop an ended attempt: its spool goes, a tombstone stays. An unknown one is forgotten already."""
        if self._settled.pop(key, None) is not None:
            await asyncio.to_thread(records.bury, self._state, key)
            Tombstones(self._state).add(str(key))
            return None
        refusal = await self._ask_owner(key, "forget")
        if refusal is None or refusal.reason is RefusalReason.UNKNOWN_ATTEMPT:
            self._owners.pop(key, None)
            return None
        return refusal

    async def inventory(self) -> tuple[AttemptView, ...]:
        """Answer everything this node knows and has not forgotten, in the order of the keys."""
        views = dict(self._settled)
        for connection in tuple(self._connections.values()):
            with contextlib.suppress(KeeperGone):
                views.update({view.key: view for view in await _inventory_of(connection)})
        self._owners.update({key: view.keeper_id for key, view in views.items()})
        return tuple(views[key] for key in sorted(views))

    async def set_fence(self, heartbeat_sent_us: int) -> None:
        """Tell when (CLOCK_BOOTTIME) the newest acknowledged heartbeat was sent: fences count from it."""
        self._newest_heartbeat_us = heartbeat_sent_us
        for connection in tuple(self._connections.values()):
            with contextlib.suppress(KeeperGone):
                await connection.request("set_fence", {"heartbeat_sent_us": heartbeat_sent_us})

    async def wait_for_output(self, key: AttemptKey, have: Offsets) -> OutputEnds | Refusal:
        """Wait until there is more output than `have`, or no more will come; one at a time per attempt.

        Raises KeeperGone when the keeper dies; the spool stays and can be read up to its clean end.
        """
        settled = self._settled.get(key)
        if settled is not None:
            return OutputEnds(settled.output_ends, is_final=True)
        connection = self._connections.get(self._owners.get(key, ""))
        if connection is None:
            return _unknown(key)
        answer = await connection.request("wait_for_output", {"key": str(key), "have": to_json(have)}, timeout_s=None)
        if "refused" in answer:
            return refusal_from(answer["refused"])
        return OutputEnds(offsets_from(answer["ends"]), bool(answer["is_final"]))

    async def output_synced(self, key: AttemptKey, synced: Offsets) -> Refusal | None:
        """Tell up to where the scheduler has an attempt's output on its disk: the spool below is deleted."""
        if key in self._settled:
            return None  # deleted as a whole when it is forgotten
        return await self._ask_owner(key, "output_synced", synced=to_json(synced))

    async def next_event(self) -> Event:
        """Wait for what the keepers have to say. Reports come again after a reconnect until acknowledged.

        Raises what went wrong when a lost keeper was looked after.
        """
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        return event

    async def acknowledge(self, report: Report) -> None:
        """Take note of a report for good: what it says is where it must get."""
        receipt: Receipt = report.receipt
        connection = self._connections.get(receipt.keeper_id)
        if connection is not None:
            with contextlib.suppress(KeeperGone):
                await connection.request("acknowledge", {"key": str(report.key), "report": receipt.sequence})

    # --- which keepers there are

    async def _adopt(self) -> None:
        """Connect to every keeper that lives and settle what the others left."""
        for keeper_id in await asyncio.to_thread(self._state.keeper_ids):
            await self._reach(keeper_id)
        for view in await self._settle():
            self._settled[view.key] = view

    async def _active(self) -> KeeperConnection:
        """Answer the keeper that takes launches; start one where there is none of this build."""
        while True:
            if self._is_superseded:
                raise KeeperGone("another agent took the keepers of this node over")
            for connection in tuple(self._connections.values()):
                if connection.is_retired:
                    continue
                if connection.build == self._build:
                    return connection
                await connection.request("retire")
                connection.is_retired = True
            await self._start()

    async def _start(self) -> None:
        keeper_id = os.urandom(6).hex()
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--dir", str(self._state.root), "--id", keeper_id, "--build", self._build),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                _, said = await process.communicate()
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise KeeperNotStarted(f"no keeper was ready within {START_TIMEOUT_S} s") from error
        if process.returncode == EXIT_ANOTHER_IS_ACTIVE:
            await self._adopt()
            await asyncio.sleep(RETRY_S)
        elif process.returncode != 0:
            raise KeeperNotStarted(said.decode(errors="replace").strip() or f"exit code {process.returncode}")
        else:
            await self._connect(keeper_id)

    async def _reach(self, keeper_id: str) -> None:
        """Connect to a keeper, unless it is gone. One that is just coming up or leaving is tried again."""
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while keeper_id not in self._connections and not await self._is_gone(keeper_id):
            await self._connect(keeper_id)
            if asyncio.get_running_loop().time() > deadline:
                raise KeeperSilent(f"keeper {keeper_id} lives and cannot be reached")

    async def _connect(self, keeper_id: str) -> None:
        directory = self._state.keeper(keeper_id)
        try:
            connection = await KeeperConnection.open(
                directory, lambda report: self._events.put_nowait(event_from(keeper_id, report)), self._lost
            )
        except KeeperGone:
            await asyncio.sleep(RETRY_S)
            return
        self._connections[keeper_id] = connection
        if self._newest_heartbeat_us is not None:
            await connection.request("set_fence", {"heartbeat_sent_us": self._newest_heartbeat_us})

    async def _end_of(self, keeper_id: str) -> None:
        while not await self._is_gone(keeper_id):  # noqa: ASYNC110 - another process's lock is no Event
            await asyncio.sleep(RETRY_S)

    async def _is_gone(self, keeper_id: str) -> bool:
        return await asyncio.to_thread(_lock_is_free, self._state.keeper_lock(keeper_id))

    async def _settle(self) -> tuple[AttemptView, ...]:
        while True:
            try:
                return await asyncio.to_thread(settle, self._state, KILL_TIMEOUT_S)
            except StillAlive:
                await asyncio.sleep(RETRY_S)

    # --- when one is lost

    def _lost(self, connection: KeeperConnection) -> None:
        self._connections.pop(connection.keeper_id, None)
        if connection.farewell == "REPLACED":
            self._is_superseded = True
            self._events.put_nowait(Superseded(connection.keeper_id))
            return
        task = asyncio.get_running_loop().create_task(self._recover(connection.keeper_id))
        self._recoveries.add(task)
        task.add_done_callback(self._recoveries.discard)

    async def _recover(self, keeper_id: str) -> None:
        """Connect again to a keeper that only hung up; settle what a dead one left."""
        try:
            event = await self._find_out(keeper_id)
        except Exception as error:
            self._events.put_nowait(error)
        else:
            if event is not None:
                self._events.put_nowait(event)

    async def _find_out(self, keeper_id: str) -> KeeperDied | None:
        async with self._turn:
            await self._reach(keeper_id)
            if keeper_id in self._connections:
                return None
            had_left = not await asyncio.to_thread(self._state.keeper(keeper_id).exists)
            views = await self._settle()
            new = tuple(view for view in views if view.key not in self._settled)
            self._settled.update({view.key: view for view in new})
        return KeeperDied(keeper_id, new) if new or not had_left else None

    async def _ask_owner(self, key: AttemptKey, do: str, **fields: object) -> Refusal | None:
        connection = self._connections.get(self._owners.get(key, ""))
        if connection is None:
            return _unknown(key)
        answer = await connection.request(do, {"key": str(key), **fields})
        return refusal_from(answer["refused"]) if "refused" in answer else None


async def _inventory_of(connection: KeeperConnection) -> list[AttemptView]:
    views: list[AttemptView] = []
    after: str | None = None
    while True:
        page = await connection.request("inventory", {"after": after})
        views += [view_from(data) for data in page["attempts"]]
        if not page["has_more"]:
            return views
        after = str(views[-1].key)


def _lock_is_free(path: Path) -> bool:
    """A keeper's lock is free when it is dead, or when it left and took its directory with it."""
    try:
        fd = try_lock(path)
    except FileNotFoundError:
        return True
    if fd is not None:
        os.close(fd)
    return fd is not None


def _unknown(key: AttemptKey) -> Refusal:
    return Refusal(RefusalReason.UNKNOWN_ATTEMPT, f"{key} is not known to this node")
