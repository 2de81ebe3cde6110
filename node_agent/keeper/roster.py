"""Which keepers a node has: those that live are connected to, one takes launches, what dead ones left is settled."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path

from gpufleet.jobs.runs import RankKey

from ..core.outcome import AttemptPhase, AttemptView
from . import records
from .aftermath import StillAlive, settle
from .connection import KeeperConnection, KeeperGone, KeeperSilent
from .events import Event, KeeperDied, Superseded, event_from
from .life import EXIT_ANOTHER_IS_ACTIVE
from .state_dir import StateDir, try_lock

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""How long a keeper may take to start, or one that lives to be reached."""

KILL_TIMEOUT_S = 5.0
"""How long one try to kill what a dead keeper left may take; tries go on until it is dead."""

RETRY_S = 0.1


class KeeperNotStarted(Exception):
    """No keeper could be started; the message is what it said."""


class Roster:
    """The keepers of one state directory, as one agent knows them.

    `settled` are the attempts of dead keepers, ended or lost, until they are forgotten.
    """

    def __init__(self, state: StateDir, build: str, command: Sequence[str]) -> None:
        self.settled: dict[RankKey, AttemptView] = {}
        self.newest_heartbeat_us: int | None = None
        self._state = state
        self._build = build
        self._command = tuple(command)
        self._connections: dict[str, KeeperConnection] = {}
        # As many as the keepers keep for an agent, which is bounded there.
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._starting = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._dying: dict[RankKey, AttemptView] = {}
        self._unexplained: dict[str, asyncio.Future[None]] = {}
        self._recoveries: set[asyncio.Task[None]] = set()
        self._is_superseded = False

    async def open(self) -> None:
        """Adopt what is there, and have a keeper that takes launches."""
        await asyncio.to_thread(self._state.prepare)
        async with self._starting:
            await self._adopt()
        await self.active()

    async def close(self) -> None:
        """Hang up."""
        for task in self._recoveries:
            task.cancel()
        await asyncio.gather(*self._recoveries, return_exceptions=True)
        for connection in self.connections():
            await connection.close()
        self._connections.clear()
        self._explain_all()

    def connections(self) -> tuple[KeeperConnection, ...]:
        """Answer all that are connected at the moment."""
        return tuple(self._connections.values())

    def connection(self, keeper_id: str) -> KeeperConnection | None:
        """Answer the connection to one keeper."""
        return self._connections.get(keeper_id)

    async def active(self) -> KeeperConnection:
        """Answer the keeper that takes launches; start one where there is none of this build."""
        async with self._starting:
            while True:
                if self._is_superseded:
                    raise KeeperGone("another agent took the keepers of this node over")
                for connection in self.connections():
                    if not connection.is_retired and connection.build == self._build:
                        return connection
                    if not connection.is_retired:
                        await connection.request("retire")
                        connection.is_retired = True
                await self._start()

    async def next_event(self) -> Event:
        """Wait for what the keepers, or their deaths, have to tell; raises what went wrong after a death."""
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        return event

    async def without_keeper(self) -> dict[RankKey, AttemptView]:
        """Answer the attempts no living keeper answers for: settled, or being killed at the moment.

        Waits until it is known what became of every keeper that has hung up.
        """
        while self._unexplained:
            await asyncio.wait(self._unexplained.values())
        return {**self._dying, **self.settled}

    async def all_gone(self) -> None:
        """Wait until no keeper is left."""
        for keeper_id in self._state.keeper_ids():
            while not await self._is_gone(keeper_id):  # noqa: ASYNC110 - another process's lock is no Event
                await asyncio.sleep(RETRY_S)

    # --- finding and starting

    async def _adopt(self) -> None:
        """Connect to every keeper that lives and settle what the others left, later where it does not die at once."""
        for keeper_id in await asyncio.to_thread(self._state.keeper_ids):
            await self._reach(keeper_id)
        if self._settling.locked():
            return  # a recovery is doing so
        try:
            self._take_settled(await asyncio.to_thread(settle, self._state, KILL_TIMEOUT_S))
        except StillAlive as problem:
            # The node must be heard and go on with the rest: a process may be stuck in its driver for hours.
            _log.error("%s; that is tried until they do", problem)
            self._dying = await asyncio.to_thread(self._all_unsettled)
            self._begin_recovery(self._settle_late())

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
        if self.newest_heartbeat_us is not None:
            await connection.request("set_fence", {"heartbeat_sent_us": self.newest_heartbeat_us})

    async def _is_gone(self, keeper_id: str) -> bool:
        return await asyncio.to_thread(_lock_is_free, self._state.keeper_lock(keeper_id))

    # --- when one is lost

    def _lost(self, connection: KeeperConnection) -> None:
        self._connections.pop(connection.keeper_id, None)
        loop = asyncio.get_running_loop()
        if connection.farewell == "REPLACED":
            self._is_superseded = True
            self._events.put_nowait(Superseded(connection.keeper_id))
            return
        self._unexplained[connection.keeper_id] = loop.create_future()
        self._begin_recovery(self._recover(connection.keeper_id))

    def _begin_recovery(self, recovery: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(recovery)
        self._recoveries.add(task)
        task.add_done_callback(self._recoveries.discard)

    async def _settle_late(self) -> None:
        """Go on with what did not die while the agent started, and tell."""
        try:
            async with self._settling:
                views = await self._settle()
                self._dying = {}
        except Exception as error:
            self._events.put_nowait(error)
        else:
            ids = dict.fromkeys(view.keeper_id for view in views)
            self._events.put_nowait(KeeperDied(", ".join(ids), views))

    async def _recover(self, keeper_id: str) -> None:
        """Connect again to a keeper that only hung up; settle what a dead one left, and tell."""
        try:
            async with self._settling:
                event = await self._find_out(keeper_id)
        except Exception as error:
            self._events.put_nowait(error)
        else:
            if event is not None:
                self._events.put_nowait(event)
        finally:
            self._explain(keeper_id)

    async def _find_out(self, keeper_id: str) -> KeeperDied | None:
        async with self._starting:
            await self._reach(keeper_id)
        if keeper_id in self._connections:
            return None
        # While its processes are being killed, which may take long, other keepers go on launching.
        self._dying = await asyncio.to_thread(self._unsettled, keeper_id)
        self._explain(keeper_id)
        has_left = not await asyncio.to_thread(self._state.keeper(keeper_id).exists)
        views = await self._settle()
        self._dying = {}
        return KeeperDied(keeper_id, views) if views or not has_left else None

    def _explain(self, keeper_id: str) -> None:
        explained = self._unexplained.pop(keeper_id, None)
        if explained is not None and not explained.done():
            explained.set_result(None)

    def _explain_all(self) -> None:
        for keeper_id in tuple(self._unexplained):
            self._explain(keeper_id)

    def _unsettled(self, keeper_id: str) -> dict[RankKey, AttemptView]:
        """Answer the attempts a dead keeper left running."""
        return {
            record.key: records.view_of(record, AttemptPhase.ENDING, self._state)
            for record in records.all_records(self._state)
            if record.keeper_id == keeper_id and record.end is None
        }

    def _all_unsettled(self) -> dict[RankKey, AttemptView]:
        """Answer every attempt that no living keeper holds, also those whose end is written down."""
        views = {}
        for record in records.all_records(self._state):
            if record.keeper_id not in self._connections:
                phase = AttemptPhase.ENDING if record.end is None else records.phase_of(record)
                views[record.key] = records.view_of(record, phase, self._state)
        return views

    async def _settle(self) -> tuple[AttemptView, ...]:
        """Settle what dead keepers left, and answer what is new of it."""
        while True:
            try:
                views = await asyncio.to_thread(settle, self._state, KILL_TIMEOUT_S)
            except StillAlive:
                await asyncio.sleep(RETRY_S)
                continue
            return self._take_settled(views)

    def _take_settled(self, views: tuple[AttemptView, ...]) -> tuple[AttemptView, ...]:
        """Remember them, and answer which are new."""
        new = tuple(view for view in views if view.key not in self.settled)
        self.settled.update({view.key: view for view in new})
        return new


def _lock_is_free(path: Path) -> bool:
    """A keeper's lock is free when it is dead, or when it left and took its directory with it."""
    try:
        fd = try_lock(path)
    except FileNotFoundError:
        return True
    if fd is not None:
        os.close(fd)
    return fd is not None
