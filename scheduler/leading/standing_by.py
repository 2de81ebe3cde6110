"""A standby: looks at the leader, follows its records, and opens the store once it may lead.

It listens for no calls meanwhile, so that whoever follows the schedulers goes on to the one that leads.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.logs import fields
from gpufleet.telemetry.metrics import OFF as NO_METRICS
from gpufleet.telemetry.metrics import Metrics
from gpufleet.telemetry.metrics_door import MetricsDoor, packed

from ..api.roles import Authenticator
from ..blobs.opening import FOLDER as BLOBS_FOLDER
from ..clock import is_set_within, wall_time
from ..known_store import NOTED_EVERY_SECONDS, Memory
from ..metrics.door import LIKE_CALL
from ..state.state import State
from ..store.errors import StoreLocked, StoreUnavailable
from .following import Follower
from .judging import RUNS_MAX, Judge, Look, Run, Verdict
from .keys import NEEDED, check_keys, differences, fingerprints_of
from .opening import Opened, Shared, open_shared, shared_of

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
AWAY_SECONDS = 0.5
"""Between two looks at a store that does not answer."""
LOCK_RETRY_SECONDS = 0.02
RELEASE_SECONDS_MAX = 5.0
"""How long the lock of sessions that were ended is waited for before the leader is judged anew."""
FRESH_US = 10_000_000
"""A row whose beat is younger counts towards RUNS_MAX."""
KEYS_EVERY_SECONDS = 5.0


class StandBy:
    """One scheduler that stands by. `lead` comes to its end once it leads."""

    def __init__(self, settings: SchedulerSettings, memory: Memory, metrics: Metrics = NO_METRICS) -> None:
        self._settings = settings
        self._memory = memory
        self._metrics = metrics
        self._shared: Shared = shared_of(settings, metrics)
        self.follower = Follower(self._shared.url, self._shared.own.identity)
        self._judge = Judge(self._shared.own.identity, settings.silence_max.total_seconds())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="standby")
        self._problem = ""
        self._warnings: dict[str, str] = {}
        self._noted_s = self._checked_s = 0.0
        self._is_away = False

    @property
    def last(self) -> Look:
        """What the store said last."""
        return self._shared.beats.last

    async def lead(self, stopping: asyncio.Event) -> Opened | None:
        """Stand by, and open the store when it is time; None where it was told to stop before.

        Errors: KEYS_DIFFER, ALREADY_RUNNING, STORE_RESTORED, and what keeps this version from using the store;
        StoreUnavailable where a server refuses this account before anything was seen of the store.
        """
        has_begun, door = False, self._door()
        try:
            while not stopping.is_set():
                pause_s = LOOK_SECONDS
                try:
                    if not has_begun:
                        await self._on_thread(self._check)
                        has_begun = True
                        log.info("standing by", extra=fields(leader=self._leader_in_words()))
                    verdict = await self._on_thread(self._look)
                    self._tell_away("")
                    if verdict is not Verdict.WAIT:
                        store = await self._on_thread(partial(self._take_over, verdict))
                        if store is not None:
                            return store
                    elif await self._on_thread(self._follow):
                        pause_s = 0
                except StoreUnavailable as problem:
                    if not has_begun and await self._on_thread(self._is_refused):
                        raise
                    self._judge.lose_sight()
                    self._tell_away(str(problem))
                    pause_s = AWAY_SECONDS
                await is_set_within(stopping, pause_s)
            await self._on_thread(self._leave)
            return None
        except Exception:
            await self._on_thread(self._leave)
            raise
        finally:
            if door is not None:
                door.cancel()
                await asyncio.gather(door, return_exceptions=True)
            self._thread.shutdown()
            self.follower.close()

    def _door(self) -> asyncio.Task[None] | None:
        """Metrics of a standby, for who has a token of this fleet; None where none are served."""
        settings, metrics = self._settings, self._metrics
        if settings.metrics.port is None:
            return None

        async def check(token: str | None) -> None:
            Authenticator(State(durable=self.follower.durable), wall_time).caller_of(LIKE_CALL, token)

        async def page(is_packed: bool) -> bytes:
            text = await asyncio.to_thread(metrics.text)
            return await asyncio.to_thread(packed, text) if is_packed else text

        tls = settings.tls
        door = MetricsDoor(settings.metrics, check=check, page=page, cert_file=tls.cert_file, key_file=tls.key_file)
        return asyncio.create_task(door.serve(), name="metrics")

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _is_refused(self) -> bool:
        """Whether waiting for the server helps nothing: what it was told of itself is wrong."""
        from ..store.server_state import ServerState, server_state

        state = server_state(self._shared.url)
        return not state.may_pass and state is not ServerState.WRITABLE

    def _own(self) -> Run:
        problem = self._problem or "; ".join(self._warnings.values())
        return replace(self._shared.own, sequence=max(self.follower.sequence, 0), problem=problem)

    def _check(self) -> None:
        """What must be right before anything is written to the store, and what is said of what need not be."""
        look = self._shared.beats.last = self._shared.runs.look(None)
        own = self._shared.own
        # This process has the lock of its data folder: whoever had the folder before, a moment ago even, is dead.
        others = [run for run in look.runs if (run.host, run.data_folder) != (own.host, own.data_folder)]
        count = sum(look.clock_us - run.beat_us < FRESH_US for run in others)
        if count >= RUNS_MAX:
            raise GpufleetError(Reason.ALREADY_RUNNING, f"{count} schedulers have this store, and no more may")
        check_keys(self._settings, self._shared.runs.fingerprints())
        blobs = self._settings.data / BLOBS_FOLDER
        if not (self._settings.files.store or blobs.is_symlink() or blobs.is_mount()):
            log.warning(
                "files that people uploaded to the leader are not here: after a takeover jobs that need them fail",
                extra=fields(folder=blobs, page="docs/high-availability.md"),
            )
        if look.holder and (why := self._shared.runs.why_not_ending(look.holder)):
            self._warn("rights", f"{why}: a leader that hangs is not replaced; GRANT pg_signal_backend TO this account")

    def _warn(self, about: str, problem: str) -> None:
        if self._warnings.get(about, "") != problem:
            if problem:
                log.warning(problem)
                self._warnings[about] = problem
            else:
                self._warnings.pop(about, None)

    def _look(self) -> Verdict:
        look = self._shared.beats.last = self._shared.runs.look(self._own())
        verdict = self._judge.judge(look, time.monotonic())
        now_s = time.monotonic()
        if now_s - self._checked_s > KEYS_EVERY_SECONDS:
            self._checked_s = now_s
            wrong = differences(fingerprints_of(self._settings), self._shared.runs.fingerprints())
            why = f"the keys are not those of the leader: {', '.join(wrong.values())}" if wrong else ""
            self._warn("keys", why)
        return verdict

    def _follow(self) -> bool:
        """Follow by one step. Answers whether there is more to do at once."""
        try:
            has_more = self.follower.follow(self.last.sequence)
            now_s = time.monotonic()
            if self.follower.is_warm and now_s - self._noted_s > NOTED_EVERY_SECONDS:
                self._noted_s = now_s
                newest, starts = self.follower.stored()
                self._memory.check(newest, starts)  # before anything of it is forgotten
                self._memory.note(self.follower.known(newest, starts))
        except StoreUnavailable as problem:
            # Its tables are of an older version, or the store is away, which the next look tells.
            self._warn("following", str(problem))
            return False
        self._warn("following", "")
        return has_more

    def _take_over(self, verdict: Verdict) -> Opened | None:
        """Open the store. None where another was faster, or the leader is back. Errors: as lead()."""
        shared, began_s = self._shared, time.monotonic()
        wrong = differences(fingerprints_of(self._settings), shared.runs.fingerprints())
        if NEEDED in wrong:
            check_keys(self._settings, shared.runs.fingerprints())
        leader = self.last.leader()
        if verdict is Verdict.END_AND_LEAD:
            count = shared.runs.end_sessions(self.last.holder)
            log.warning(
                "the leader does not move: its sessions are ended",
                extra=fields(
                    leader=self._leader_in_words(), silent_seconds=round(self._judge.silent_s, 1), sessions=count
                ),
            )
        while True:
            try:
                store = open_shared(shared, self._memory)
                break
            except StoreLocked:
                if verdict is Verdict.LEAD or time.monotonic() - began_s > RELEASE_SECONDS_MAX:
                    return None
                time.sleep(LOCK_RETRY_SECONDS)
        entities = self.follower.entities(store.newest_sequence())
        store.take_followed(entities)
        log.info(
            "taking over",
            extra=fields(
                term=store.term,
                after="" if leader is None else leader.identity,
                warm=entities is not None,
                seconds=round(time.monotonic() - began_s, 3),
            ),
        )
        return Opened(store, shared)

    def _leave(self) -> None:
        try:
            self._shared.runs.leave(self._shared.own.identity)
        except StoreUnavailable as problem:
            log.info("the row of this scheduler stays", extra=fields(why=str(problem)))
        self._shared.runs.close()

    def _leader_in_words(self) -> str:
        leader = self.last.leader()
        return (
            "nobody" if leader is None else f"{leader.address} (term {leader.term}, pid {leader.pid} on {leader.host})"
        )

    def _tell_away(self, why: str) -> None:
        if bool(why) != self._is_away:
            self._is_away = bool(why)
            log.warning("the store does not answer", extra=fields(why=why)) if why else log.info("the store answers")
