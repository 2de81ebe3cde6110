"""The keeper itself: its attempts, what happens to them, and when it leaves."""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace

from gpufleet.jobs.runs import RankKey

from ..control_groups.group import Group
from ..control_groups.kept import KeptGroups
from ..core.adoption import LaunchDecision, decide_launch
from ..core.launch import Launch, Launched, NotRun, Objection, Process, Refusal, RefusalReason, refusal_of_launch
from ..core.offsets import CHUNK_BYTES
from ..core.outcome import AttemptView, Offsets
from ..spool import SpoolWriter
from . import records, reports
from .copying import OutputCopy, open_copy, unusable_copy
from .crew import Crew, Spawned
from .jail import make_space, remove_space
from .linux import boot_id, boottime_us
from .reactor import Reactor
from .records import RecordFile
from .spawn import KEY_VARIABLE, Spawner, key_value, limit_too_high, missing_cwd
from .state_dir import StateDir, Tombstones
from .supervised import Supervised
from .values import Json, to_json

ATTEMPTS_MAX = 10_000
"""Attempts of one keeper that run, or have ended and are not forgotten."""


class Keeper:
    """Launches, watches, limits and ends the attempts of one node.

    `send` speaks to the agent, if one listens; `release_active_lock` lets another keeper take the launches. `lock_fd`
    says that it lives: its supervisors hold it, too, so that it is free only when these have ended what they had.
    """

    def __init__(
        self,
        state: StateDir,
        keeper_id: str,
        reactor: Reactor,
        release_active_lock: Callable[[], None],
        lock_fd: int,
    ) -> None:
        self.keeper_id = keeper_id
        self.boot_id = boot_id()
        self.reactor = reactor
        self.send: Callable[[Json], None] = lambda message: None
        self.reports = reports.Reports(lambda report: self.send(report))
        self._state = state
        self._release_active_lock = release_active_lock
        self._attempts: dict[RankKey, Supervised] = {}
        self._living: dict[Supervised, None] = {}
        self._spawner = Spawner()
        self._crew = Crew(reactor, self._spawner, {lock_fd}, str(state.keeper(keeper_id) / "stage"))
        self._groups = KeptGroups(state.keeper(keeper_id), keeper_id, reactor.call_at, boottime_us)
        self._tombstones = Tombstones(state)
        self._spares = records.Spares(state.keeper(keeper_id))
        self._buffer = bytearray(CHUNK_BYTES)
        self._refusing: RefusalReason | None = None
        self._newest_heartbeat_us = 0
        reactor.call_on_signal(signal.SIGCHLD, self._reap)
        reactor.call_on_signal(signal.SIGTERM, self._terminated)
        reactor.call_after_turn(self._crew.have_one_wait)

    # --- what an agent asks

    @property
    def is_retired(self) -> bool:
        """Say whether it takes no more launches."""
        return self._refusing is not None

    def known(self, key: RankKey) -> AttemptView | None:
        """Look among its own attempts, then among what this or another keeper has written down."""
        attempt = self._attempts.get(key)
        return attempt.view() if attempt is not None else records.view_on_disk(self._state, key)

    def launch(self, launch: Launch) -> Launched | Refusal:
        """Start an attempt that this node has never seen; one that it has seen is answered, not started."""
        known = self.known(launch.key)
        if known is not None and decide_launch(known.phase) is LaunchDecision.ANSWER:
            return Launched(known, was_known=True)
        refusal = self._refusal_of(launch)
        if refusal is not None:
            return refusal
        record = records.Record(
            key=launch.key,
            keeper_id=self.keeper_id,
            boot_id=self.boot_id,
            note=launch.note,
            is_isolated=launch.process.isolation is not None,
            container=launch.process.container,
        )
        try:
            file = records.claim(self._state, self._spares, record)
        except OSError as error:
            return Refusal(RefusalReason.SPOOL_UNAVAILABLE, f"{self._state.root}: {error.strerror}")
        if file is None:
            return Refusal(RefusalReason.CLAIMED_ELSEWHERE, f"{launch.key} has a directory and no record")
        started = self._start(launch, file)
        return started if isinstance(started, Refusal) else Launched(started, was_known=False)

    def check(self, launch: Launch) -> Objection | None:
        """Say what a launch would be answered, as far as it shows without starting anything; None: it would start."""
        known = self.known(launch.key)
        if known is not None and decide_launch(known.phase) is LaunchDecision.ANSWER:
            return known
        refusal = self._refusal_of(launch)
        if refusal is not None or launch.process.isolation is not None:
            return refusal
        return self._spawner.check(self._marked(launch))

    def attempt(self, key: RankKey) -> Supervised | None:
        """Answer an attempt of its own that is not forgotten."""
        return self._attempts.get(key)

    def views(self, after: RankKey | None, count_max: int) -> tuple[list[AttemptView], bool]:
        """Answer the next attempts in the order of their keys, and whether there are more."""
        keys = sorted(key for key in self._attempts if after is None or key > after)
        return [self._attempts[key].view() for key in keys[:count_max]], len(keys) > count_max

    def forget(self, key: RankKey) -> Refusal | None:
        """Drop an ended attempt and its spool; its tombstone stays. An unknown one is forgotten already."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return None
        if attempt.end is None:
            return Refusal(RefusalReason.STILL_RUNNING, f"{key} has not ended: stop it first")
        try:
            records.bury(self._state, key, self._spares)
        except OSError as error:
            return Refusal(RefusalReason.SPOOL_UNAVAILABLE, f"{self._state.root}: {error.strerror}")
        attempt.forgotten()
        del self._attempts[key]
        self.reports.forget(key)
        self._tombstones.add(key.name)
        self._room_was_made()
        self._leave_if_done()
        return None

    def heartbeat_acknowledged(self, sent_us: int) -> None:
        """Move the fence of every attempt that has one."""
        self._newest_heartbeat_us = max(self._newest_heartbeat_us, sent_us)
        for attempt in self._living:
            attempt.heartbeat_acknowledged(sent_us)

    def output_synced(self, attempt: Supervised, synced: Offsets) -> None:
        """Delete what the scheduler has on its disk."""
        if attempt.output.synced(synced):
            self._room_was_made()

    def retire(self) -> None:
        """Take no more launches, let another keeper do so, and leave with the last attempt."""
        if self._refusing is None:
            self._refusing = RefusalReason.RETIRED
            self._release_active_lock()
        self._leave_if_done()

    def stop_all(self, grace_us: int | None) -> int:
        """Stop all by the grace rule, and leave when it is dead. Ends nobody took stay written down."""
        self._refusing = RefusalReason.SHUTTING_DOWN
        running = tuple(self._living)
        for attempt in running:
            attempt.leave(grace_us)
        self._leave_if_done()
        return len(running)

    def running_count(self) -> int:
        """Count the attempts that have not ended."""
        return len(self._living)

    def close(self) -> None:
        """Leave nothing of its own behind."""
        self._groups.close()

    # --- what an attempt needs (Household)

    def fullness_changed(self, attempt: Supervised) -> None:
        """Report that its output waits for room, or goes on."""
        self.reports.add(attempt.key, reports.SPOOL, {"full": attempt.output.full})

    def has_ended(self, attempt: Supervised) -> None:
        """Report its end."""
        del self._living[attempt]
        if attempt.has_space:
            self._crew.remove_space(str(self._state.space(attempt.key)))
        if attempt.group is not None:
            self._groups.remove(attempt.group)
        self.reports.add(attempt.key, reports.ENDED, {"end": to_json(attempt.end)})
        self.reactor.call_after_turn(self._leave_if_done)

    # --- processes

    def _terminated(self) -> None:
        """SIGTERM: the machine goes down, or an operator asks."""
        self.stop_all(None)

    def _start(self, launch: Launch, file: RecordFile) -> AttemptView | Refusal:
        process = launch.process
        copy_fd = open_copy(process.output_file, process.isolation) if process.output_file else None
        if isinstance(copy_fd, Refusal):
            return _unclaimed(file, copy_fd)
        copy = None if copy_fd is None else OutputCopy(process.output_file, copy_fd)
        group = self._grouped(launch)
        spawned = group if isinstance(group, Refusal) else self._spawned(launch, group)
        if isinstance(group, Group) and not isinstance(spawned, Spawned):
            self._groups.remove(group)
        self.reactor.call_after_turn(self._crew.have_one_wait)
        if isinstance(spawned, Refusal):
            if copy is not None:
                copy.close()
            return _unclaimed(file, spawned)
        writer = SpoolWriter(file.directory, launch.spool_bytes, self._buffer, copy)
        attempt = Supervised(self, launch, file, self.keeper_id, writer)
        self._attempts[launch.key] = attempt
        self._living[attempt] = None
        if isinstance(spawned, NotRun):
            attempt.has_space = False
            attempt.not_run(spawned)
            return attempt.view()
        assert not isinstance(group, Refusal), "without its group it was not started"
        attempt.group = group
        attempt.started(spawned)
        attempt.heartbeat_acknowledged(self._newest_heartbeat_us)
        view = attempt.view()
        self.reports.add(launch.key, reports.STARTED, {"pid": view.pid, "started_us": view.started_us})
        return view

    def _refusal_of(self, launch: Launch) -> Refusal | None:
        if self._refusing is not None:
            return Refusal(self._refusing, "this keeper takes no more launches")
        if len(self._attempts) >= ATTEMPTS_MAX:
            return Refusal(RefusalReason.TOO_MANY_ATTEMPTS, f"{ATTEMPTS_MAX} attempts are not forgotten yet")
        process = launch.process
        # Of an isolated one its supervisor looks, in the folders and by the rights that it has.
        lacks_cwd = missing_cwd(process) if process.isolation is None else None
        refusal = refusal_of_launch(launch, boottime_us()) or lacks_cwd or limit_too_high(process)
        return refusal or unusable_copy(process.output_file, process.isolation)

    def _grouped(self, launch: Launch) -> Group | Refusal | None:
        """The control group of an attempt that is to have one."""
        if launch.process.group is None:
            return None
        try:
            return self._groups.make(launch.key, launch.process.group)
        except OSError as error:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"the job's control group cannot be made: {error}")

    def _spawned(self, launch: Launch, group: Group | None) -> Spawned | NotRun | Refusal:
        if launch.process.isolation is None:
            return self._crew.start(self._marked(launch), group=group)
        space = str(self._state.space(launch.key))
        try:
            make_space(space, launch.process.isolation)
        except OSError as error:
            return Refusal(RefusalReason.SPOOL_UNAVAILABLE, f"{space}: {error.strerror}")
        spawned = self._crew.start(self._marked(launch), space, group)
        if not isinstance(spawned, Spawned):
            remove_space(space)  # nobody has put anything there
        return spawned

    def _marked(self, launch: Launch) -> Process:
        """The process with the variable by which it is known when its keeper is gone."""
        env = {**launch.process.env, KEY_VARIABLE: key_value(self.keeper_id, launch.key)}
        return replace(launch.process, env=env)

    def _reap(self) -> None:
        """Take in every child that has ended, and end what it leaves."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._crew.reaped(pid, wait_status)
        self._crew.settle()

    def _room_was_made(self) -> None:
        for attempt in tuple(self._living):
            if attempt.output.full is not None:
                attempt.output.read_on()

    def _leave_if_done(self) -> None:
        if self._refusing is RefusalReason.RETIRED and not self._attempts:
            self.reactor.stop()
        if self._refusing is RefusalReason.SHUTTING_DOWN and not self._living:
            self.reactor.stop()


def _unclaimed(file: RecordFile, refusal: Refusal) -> Refusal:
    """Take back the claim of an attempt that was not started, and answer why."""
    file.close()
    shutil.rmtree(file.directory, ignore_errors=True)
    return refusal
