"""The agent's side: all keepers of a node as one. Read the package's docstring for how it is used."""

import asyncio
import binascii
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from gpufleet.jobs.runs import RankKey, StopCause

from ..core.entering import EnteredCommand
from ..core.launch import Launch, NotRun, Objection, Refusal, RefusalReason
from ..core.launch import Launched as Launched  # part of this interface
from ..core.outcome import AttemptView, Offsets
from ..core.typed import InputPiece, Typed
from . import records
from .connection import KeeperConnection, KeeperGone
from .entering.client import Entry, enter
from .events import Event, Receipt, Report
from .frames import FrameTooLong
from .roster import KeeperNotStarted as KeeperNotStarted  # part of this interface
from .roster import Roster
from .state_dir import StateDir, Tombstones
from .values import launch_to, not_run_from, offsets_from, refusal_from, to_json, typed_from, view_from


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
        self._roster = Roster(self._state, build, command)
        self._owners: dict[RankKey, str] = {}
        self._entering = asyncio.Lock()

    # --- its life

    @classmethod
    async def open(cls, state_dir: Path | str, *, build: str, command: Sequence[str] | None = None) -> Self:
        """Adopt the keepers that live, settle what dead ones left, and have one of this build take launches.

        `build` is any text; a keeper of another one is retired. Raises KeeperNotStarted,
        KeeperSilent, OtherProtocol.
        """
        keepers = cls(state_dir, build, command if command is not None else keeper_command())
        try:
            await keepers._roster.open()
            await keepers.inventory()
        except BaseException:
            await keepers.close()
            raise
        return keepers

    async def close(self) -> None:
        """Hang up."""
        await self._roster.close()

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
        for connection in self._roster.connections():
            with contextlib.suppress(KeeperGone):
                answer = await connection.request("shutdown", {"kill": kill, "grace_us": grace_us})
                if "refused" in answer:
                    return refusal_from(answer["refused"])
        await self._roster.all_gone()
        return None

    # --- what it is asked

    async def launch(self, launch: Launch) -> Launched | Refusal:
        """Start an attempt once, however often it is asked.

        Raises KeeperGone when the keeper died under it: an event KeeperDied names the attempt if it was
        started.
        """
        known = self._roster.settled.get(launch.key)
        if known is not None:
            return Launched(known, was_known=True)
        connection = self._owner(launch.key) or await self._roster.active()
        try:
            answer = await connection.request("launch", {"launch": launch_to(launch)})
        except FrameTooLong as error:
            return _too_long(error)
        if "refused" in answer:
            return refusal_from(answer["refused"])
        view = view_from(answer["attempt"])
        self._owners[view.key] = view.keeper_id
        return Launched(view, bool(answer["was_known"]))

    async def check(self, launch: Launch) -> Objection | None:
        """Answer why a launch would start nothing, as far as that shows without starting it; None: it would."""
        known = self._roster.settled.get(launch.key)
        if known is not None:
            return known
        connection = self._owner(launch.key) or await self._roster.active()
        try:
            answer = await connection.request("check", {"launch": launch_to(launch)})
        except FrameTooLong as error:
            return _too_long(error)
        if "refused" in answer:
            return refusal_from(answer["refused"])
        if "not_run" in answer:
            return not_run_from(answer["not_run"])
        return view_from(answer["attempt"]) if "attempt" in answer else None

    async def signal(self, key: RankKey, number: int) -> Refusal | None:
        """Send a signal to all processes of an attempt's group."""
        return await self._ask_owner(key, "signal", signal=number)

    async def stop(self, key: RankKey, cause: StopCause, grace_us: int | None = None) -> Refusal | None:
        """Stop an attempt by the grace rule, its own grace unless one is given. Again: changes nothing."""
        return await self._ask_owner(key, "stop", cause=cause.value, grace_us=grace_us)

    async def set_time_limit(self, key: RankKey, time_limit_us: int | None) -> Refusal | None:
        """Give an attempt another time limit, None for none. Again: changes nothing."""
        return await self._ask_owner(key, "set_time_limit", time_limit_us=time_limit_us)

    async def kill(self, key: RankKey, cause: StopCause) -> Refusal | None:
        """Kill an attempt at once."""
        return await self.stop(key, cause, 0)

    async def forget(self, key: RankKey) -> Refusal | None:
        """Drop an ended attempt: its spool goes, a tombstone stays. An unknown one is forgotten already."""
        if key in self._roster.settled:
            await asyncio.to_thread(records.bury, self._state, key)
            Tombstones(self._state).add(key.name)
            self._roster.settled.pop(key, None)
            return None
        refusal = await self._ask_owner(key, "forget")
        if refusal is None or refusal.reason is RefusalReason.UNKNOWN_ATTEMPT:
            self._owners.pop(key, None)
            return None
        return refusal

    async def inventory(self) -> tuple[AttemptView, ...]:
        """Answer everything this node knows and has not forgotten, in the order of the keys."""
        while True:
            views = await self._roster.without_keeper()
            try:
                for connection in self._roster.connections():
                    views.update({view.key: view for view in await _inventory_of(connection)})
            except KeeperGone:
                continue  # it is being found out what became of it
            self._owners.update({key: view.keeper_id for key, view in views.items()})
            return tuple(views[key] for key in sorted(views))

    async def forgotten(self) -> tuple[AttemptView, ...]:
        """Answer every tombstone that this node has, the newest first."""
        return await asyncio.to_thread(records.tombstones_on_disk, self._state)

    async def set_fence(self, heartbeat_sent_us: int) -> None:
        """Tell when (CLOCK_BOOTTIME) the newest acknowledged heartbeat was sent: fences count from it."""
        self._roster.newest_heartbeat_us = heartbeat_sent_us
        for connection in self._roster.connections():
            with contextlib.suppress(KeeperGone):
                await connection.request("set_fence", {"heartbeat_sent_us": heartbeat_sent_us})

    async def wait_for_output(self, key: RankKey, have: Offsets) -> OutputEnds | Refusal:
        """Wait until there is more output than `have`, or no more will come; one at a time per attempt.

        Raises KeeperGone when the keeper dies; the spool stays and can be read up to its clean end.
        """
        settled = self._roster.settled.get(key)
        if settled is not None:
            return OutputEnds(settled.output_ends, is_final=True)
        connection = self._owner(key)
        if connection is None:
            return _unknown(key)
        answer = await connection.request("wait_for_output", {"key": key.name, "have": to_json(have)}, timeout_s=None)
        if "refused" in answer:
            return refusal_from(answer["refused"])
        return OutputEnds(offsets_from(answer["ends"]), bool(answer["is_final"]))

    async def output_synced(self, key: RankKey, synced: Offsets) -> Refusal | None:
        """Tell up to where the scheduler has an attempt's output on its disk: the spool below is deleted."""
        if key in self._roster.settled:
            return None  # deleted as a whole when it is forgotten
        return await self._ask_owner(key, "output_synced", synced=to_json(synced))

    async def begin_input(self, key: RankKey, writer: str) -> tuple[Typed, bool] | Refusal:
        """Let a session type; answers where the input stands, and whether it was the last session that typed."""
        connection = self._owner(key)
        if connection is None:
            return _unknown(key)
        answer = await connection.request("begin_input", {"key": key.name, "writer": writer})
        if "refused" in answer:
            return refusal_from(answer["refused"])
        return typed_from(answer["typed"]), bool(answer["is_continued"])

    async def type(self, key: RankKey, writer: str, piece: InputPiece) -> Typed | Refusal:
        """Pass on what was typed; waits until all of it has found room. One piece at a time per attempt."""
        connection = self._owner(key)
        if connection is None:
            return _unknown(key)
        fields = {"key": key.name, "writer": writer, "offset": piece.offset, "is_end": piece.is_end}
        data = binascii.b2a_base64(piece.data, newline=False).decode("ascii")
        answer = await connection.request("input", {**fields, "data": data}, timeout_s=None)
        return refusal_from(answer["refused"]) if "refused" in answer else typed_from(answer["typed"])

    async def resize(self, key: RankKey, columns: int, rows: int) -> Refusal | None:
        """Give an attempt's terminal another size."""
        return await self._ask_owner(key, "resize", columns=columns, rows=rows)

    async def enter(self, key: RankKey, command: EnteredCommand) -> Entry | NotRun | Refusal:
        """Run another command in the world of an attempt. Nothing of it is kept; it ends when it is let go of."""
        connection = self._owner(key)
        if connection is None:
            return _unknown(key)
        return await enter(self._state.keeper(connection.keeper_id), key, command, self._entering)

    async def next_event(self) -> Event:
        """Wait for what the keepers have to say. Reports come again after a reconnect until acknowledged.

        Raises what went wrong when a lost keeper was looked after.
        """
        return await self._roster.next_event()

    async def acknowledge(self, report: Report) -> None:
        """Take note of a report for good: what it says is where it must get."""
        receipt: Receipt = report.receipt
        connection = self._roster.connection(receipt.keeper_id)
        if connection is not None:
            with contextlib.suppress(KeeperGone):
                await connection.request("acknowledge", {"key": report.key.name, "report": receipt.sequence})

    def _owner(self, key: RankKey) -> KeeperConnection | None:
        return self._roster.connection(self._owners.get(key, ""))

    async def _ask_owner(self, key: RankKey, do: str, **fields: object) -> Refusal | None:
        connection = self._owner(key)
        if connection is None:
            return _unknown(key)
        answer = await connection.request(do, {"key": key.name, **fields})
        return refusal_from(answer["refused"]) if "refused" in answer else None


async def _inventory_of(connection: KeeperConnection) -> list[AttemptView]:
    views: list[AttemptView] = []
    after: str | None = None
    while True:
        page = await connection.request("inventory", {"after": after})
        views += [view_from(data) for data in page["attempts"]]
        if not page["has_more"]:
            return views
        after = views[-1].key.name


def _too_long(error: FrameTooLong) -> Refusal:
    return Refusal(RefusalReason.ARGV_TOO_LONG, f"argv and env: {error}")


def _unknown(key: RankKey) -> Refusal:
    return Refusal(RefusalReason.UNKNOWN_ATTEMPT, f"{key} is not known to this node")
