"""The agent's dealings with its keepers: nothing is taken as done before a keeper has said so.

A keeper may hang up, be slow, or die at any moment. Every request is safe to repeat, so it is repeated until there is
an answer, or until the attempt has ended by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar, assert_never

from gpufleet.jobs.runs import RankKey, StopCause

from .core.actions import Change
from .core.inventory import Inventory
from .core.launch import Launch, Objection, Refusal, RefusalReason
from .core.outcome import AttemptView, Offsets, Stream
from .keeper.client import KeeperNotStarted, Keepers, Launched
from .keeper.connection import KeeperGone, KeeperSilent
from .keeper.events import AttemptEnded, AttemptStarted, KeeperDied, SpoolChanged, Superseded

_log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
"""The pause before a keeper that did not answer is asked again."""

FORGET_RETRY_SECONDS = 2.0
"""The same for a forgetting, which nobody waits for and a full disk can refuse for long."""

GROWTH_PAUSE_SECONDS = 0.005
"""What a job writes goes up at once, and what it writes in so short a time behind that together."""

TOLD_STEP_BYTES = 64 * 1024
"""A keeper hears of so much synced output at once: less than the smallest piece of a spool that it can delete."""


Answer = TypeVar("Answer")


class Listener(Protocol):
    """Who is told what becomes of attempts."""

    def changed(self, key: RankKey, change: Change) -> None:
        """It ended, its output grew, or waits for room."""
        ...

    def saw(self, view: AttemptView) -> None:
        """Everything about it is known anew."""
        ...


class Keeping:
    """All requests to the keepers, and all that they say. `listen` comes before all else."""

    def __init__(self, keepers: Keepers, inventory: Inventory) -> None:
        self._keepers = keepers
        self._inventory = inventory
        self._listener: Listener
        self._told: dict[RankKey, Offsets] = {}
        self._synced: dict[RankKey, Offsets] = {}
        self._fence_us: int | None = None
        self._wake = asyncio.Event()
        self._followers: dict[RankKey, asyncio.Task[None]] = {}

    def listen(self, listener: Listener) -> None:
        """Say who is told what the keepers say."""
        self._listener = listener

    async def launch(self, launch: Launch) -> Launched | Refusal:
        """Start it, or answer what became of it when it was launched before."""

        async def ask() -> Launched | Refusal:
            answer = await self._keepers.launch(launch)
            if isinstance(answer, Refusal) and answer.reason is RefusalReason.INTERNAL:
                # Nobody knows whether it runs, and to call it refused would have it run elsewhere, too.
                return await self._found(launch.key) or answer
            return answer

        # When a keeper dies under it, whether it was started is not known; asking again either starts it or tells.
        return await self._ask_the_active("launching", launch.key, ask)

    async def check(self, launch: Launch) -> Objection | None:
        """What speaks against a launch, as far as it shows without starting it; None when nothing does."""
        return await self._ask_the_active("checking", launch.key, lambda: self._keepers.check(launch))

    async def _ask_the_active(self, doing: str, key: RankKey, ask: Callable[[], Awaitable[Answer]]) -> Answer | Refusal:
        while True:
            try:
                return await ask()
            except (KeeperNotStarted, OSError) as problem:
                return Refusal(RefusalReason.SPAWN_FAILED, f"no keeper can be started on this node: {problem}")
            except (KeeperGone, KeeperSilent) as problem:
                _log.warning("%s %s is tried again: %s", doing, key, problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _found(self, key: RankKey) -> Launched | None:
        views = await self._keepers.inventory()
        return next((Launched(view, was_known=True) for view in views if view.key == key), None)

    async def stop(self, key: RankKey, cause: StopCause, grace_us: int | None) -> None:
        """End it by the grace rule; 0 kills at once."""
        await self._insist(key, lambda: self._keepers.stop(key, cause, grace_us))

    async def set_time_limit(self, key: RankKey, time_limit_us: int | None) -> bool:
        """Give it another time limit, None for none. False when its keeper refuses, as one of an older version does."""
        refusal = await self._insist(key, lambda: self._keepers.set_time_limit(key, time_limit_us))
        if refusal is not None:
            _log.error("attempt %s keeps its time limit: %s", key, refusal.detail)
        return refusal is None

    async def signal(self, key: RankKey, number: int) -> None:
        """Send a signal to its group."""
        await self._insist(key, lambda: self._keepers.signal(key, number))

    async def forget(self, key: RankKey) -> None:
        """Delete its spool and keep its tombstone."""
        self.let_go(key)
        while True:
            try:
                refusal = await self._keepers.forget(key)
            except (KeeperGone, KeeperSilent, OSError) as problem:
                _log.warning("forgetting %s is tried again: %s", key, problem)
                await asyncio.sleep(FORGET_RETRY_SECONDS)
                continue
            if refusal is None:
                return
            _log.warning("%s is not forgotten: %s", key, refusal.detail)
            if refusal.reason is not RefusalReason.SPOOL_UNAVAILABLE:
                return
            await asyncio.sleep(FORGET_RETRY_SECONDS)

    def set_fence(self, sent_us: int) -> None:
        """Every fence counts from here: when the newest message that the scheduler stored was sent."""
        self._fence_us = sent_us
        self._wake.set()

    def synced(self, key: RankKey, stream: Stream, offset: int) -> None:
        """Everything of the stream below the offset is stored. The keeper is told once a piece can be deleted."""
        before = self._synced.get(key, Offsets())
        now = replace(before, **{stream.value: max(offset, before.of(stream))})
        self._synced[key] = now
        told = self._told.get(key, Offsets())
        if any(now.of(each) - told.of(each) >= TOLD_STEP_BYTES for each in Stream):
            self._wake.set()

    def follow(self, view: AttemptView) -> None:
        """Learn of its output as it comes; once is enough."""
        if view.phase.is_live and view.key not in self._followers:
            follower = asyncio.create_task(self._follow(view.key, view.output_ends))
            self._followers[view.key] = follower
            follower.add_done_callback(lambda done: self._followers.pop(view.key, None))

    def let_go(self, key: RankKey) -> None:
        """Nothing of it is of interest any more."""
        self._synced.pop(key, None)
        self._told.pop(key, None)

    async def run(self) -> None:
        """Take in what the keepers say until another agent takes them over."""
        while True:
            event = await self._keepers.next_event()
            if isinstance(event, Superseded):
                raise SupersededError("another agent took over the keepers of this data folder")
            self._take(event)

    async def tell_keepers(self) -> None:
        """Pass on fences and synced offsets, the newest of each."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._tell_fence()
                await self._tell_synced()
            except (KeeperGone, KeeperSilent) as problem:
                _log.warning("a keeper is told later: %s", problem)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def close(self) -> None:
        """Ask nothing more."""
        followers = tuple(self._followers.values())
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    async def _tell_fence(self) -> None:
        fence_us, self._fence_us = self._fence_us, None
        if fence_us is not None:
            await self._keepers.set_fence(fence_us)

    async def _tell_synced(self) -> None:
        for key, synced in tuple(self._synced.items()):
            if synced != self._told.get(key):
                refusal = await self._keepers.output_synced(key, synced)
                if refusal is not None and self._is_live(key):
                    # The keeper hung up just now. Without this word it may wait for room for ever.
                    raise KeeperGone(refusal.detail)
                self._told[key] = synced

    async def _follow(self, key: RankKey, have: Offsets) -> None:
        while self._is_live(key):
            try:
                grown = await self._keepers.wait_for_output(key, have)
            except KeeperGone:
                grown = None
            if grown is None or isinstance(grown, Refusal):
                # The keeper only hung up, or is dead: then its end is on the way.
                await asyncio.sleep(RETRY_SECONDS)
                continue
            have = grown.ends
            self._listener.changed(key, have)
            if grown.is_final:
                return
            await asyncio.sleep(GROWTH_PAUSE_SECONDS)

    async def _insist(self, key: RankKey, ask: Callable[[], Awaitable[Refusal | None]]) -> Refusal | None:
        while self._is_live(key):
            try:
                refusal = await ask()
                if refusal is None or refusal.reason is not RefusalReason.UNKNOWN_ATTEMPT:
                    return refusal
            except (KeeperGone, KeeperSilent) as problem:
                _log.warning("a keeper is asked again about %s: %s", key, problem)
            await asyncio.sleep(RETRY_SECONDS)
        return None

    def _is_live(self, key: RankKey) -> bool:
        view = self._inventory[key]
        return isinstance(view, AttemptView) and view.phase.is_live

    def _take(self, event: AttemptStarted | AttemptEnded | SpoolChanged | KeeperDied) -> None:
        match event:
            case AttemptStarted():
                pass  # the answer to the launch said so
            case AttemptEnded():
                self._listener.changed(event.key, event.end)
            case SpoolChanged():
                self._listener.changed(event.key, event.full)
            case KeeperDied():
                _log.error("keeper %s died; %d of its attempts are over", event.keeper_id, len(event.attempts))
                for view in event.attempts:
                    self._listener.saw(view)
            case _:
                assert_never(event)


class SupersededError(Exception):
    """This agent has no keepers any more."""
