"""One attempt in the keeper's hands, from its first process to its recorded end.

Everything it decides it asks of the core (`next_action`, `next_step_of_ending`); here are only the
descriptors, signals and files that carry the decisions out.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import Protocol

from gpufleet.jobs.runs import Cause, ExitCode, ExitSignal, NodeCause, RankKey

from ..control_groups.group import Group
from ..core.attempt import (
    Action,
    Ending,
    Phase,
    Running,
    SendKill,
    SendSignal,
    SendTerm,
    Wait,
    heartbeat_acknowledged,
    next_action,
    next_step_of_ending,
    observe,
    stop,
    stop_cause,
    time_limit_us_of,
    with_time_limit,
)
from ..core.attempt import after as phase_after
from ..core.launch import Launch, NotRun, Refusal, RefusalReason
from ..core.outcome import AttemptEnd, AttemptPhase, AttemptView, Offsets
from ..spool import SpoolWriter
from . import records
from .containers.ending import end_in_container, send_signal
from .containers.ending import kill as kill_container
from .crew import LeaderExit, Spawned, Watch
from .input import Input
from .linux import boottime_us
from .output import Output
from .reactor import Reactor
from .records import RecordFile
from .values import Json

RETRY_US = 1_000_000
"""How often a record that the disk had no room for is tried again."""


RUNNER_US = 5_000_000
"""How long a runner may take, once its container was killed, to carry its last output and to have it removed."""


class Household(Protocol):
    """What an attempt needs of the keeper it lives in."""

    reactor: Reactor

    def fullness_changed(self, attempt: "Supervised") -> None:
        """Take in that its output waits for room, or goes on."""
        ...

    def has_ended(self, attempt: "Supervised") -> None:
        """Take in that it is over; called once."""
        ...


@dataclass(frozen=True, slots=True)
class _LeaderExit:
    status: ExitCode | ExitSignal
    cpu_us: int
    max_rss_bytes: int
    at_us: int


class Supervised:
    """An attempt that was launched by this keeper and is not forgotten yet."""

    def __init__(self, house: Household, launch: Launch, file: RecordFile, keeper_id: str, writer: SpoolWriter) -> None:
        self.key: RankKey = launch.key
        self.directory = file.directory
        self.pid = 0
        self.has_space = launch.process.isolation is not None
        self.group: Group | None = None
        self.container = launch.process.container
        self.end: AttemptEnd | None = None
        self.output = Output(house.reactor, writer, self._output_changed)
        self.input: Input | None = None
        self._house = house
        self._note = launch.note
        self._input_mode = launch.process.input
        self._keeper_id = keeper_id
        self._started_us = boottime_us()
        self._phase: Phase = Running(
            limits=launch.process.limits, started_us=self._started_us, heartbeat_sent_us=launch.heartbeat_sent_us
        )
        self._said_full = False
        self._is_leaving = False
        self._watch: Watch | None = None
        self._exit: _LeaderExit | None = None
        self._ending: Ending | None = None
        self._record_file = file
        self._unrecorded: list[Json] = []

    # --- its beginning

    def started(self, spawned: Spawned) -> None:
        """Take over a process that was just started."""
        self.pid = spawned.pid
        self._watch = spawned.watch
        self._watch.changed = self._watch_changed
        self.output.open(spawned.pipes)
        if spawned.input_fd is not None:
            self.input = Input(self._house.reactor, spawned.input_fd, self._input_mode)
        self._record(
            records.started_line(
                pid=self.pid, start_ticks=spawned.start_ticks, started_us=self._started_us, pipe_ids=self.pipe_ids
            )
        )
        self._wait_for_next_action()

    def not_run(self, failed: NotRun) -> None:
        """End as a shell would: the command was not found or cannot be executed."""
        self.output.end()
        self._finish(
            AttemptEnd(
                status=ExitCode(code=failed.code),
                output_ends=Offsets(),
                started_us=self._started_us,
                ended_us=boottime_us(),
                failure=failed.failure,
                detail=failed.detail,
            )
        )

    # --- what others ask of it

    def view(self) -> AttemptView:
        """Answer all that is known of it."""
        return AttemptView(
            key=self.key,
            phase=self._view_phase(),
            keeper_id=self._keeper_id,
            directory=str(self.directory),
            pid=self.pid or None,
            started_us=self._started_us,
            stop_cause=stop_cause(self._phase),
            output_starts=self.output.starts,
            output_ends=self.output.ends,
            full=self.output.full,
            note=self._note,
            end=self.end,
            time_limit_us=time_limit_us_of(self._phase) if self.end is None else None,
        )

    @property
    def pipe_ids(self) -> frozenset[str]:
        """Answer the pipes its output comes by."""
        return self.output.pipe_ids

    @property
    def is_leader_alive(self) -> bool:
        """Say whether its leader runs. One that ended a moment ago and is not reaped yet does not.

        So whatever is due at the same time (a stop, the time limit, the fence) finds it ended by itself, also by a
        keeper that was suspended meanwhile.
        """
        is_watched = self._exit is None and self.end is None and self._watch is not None
        return is_watched and self._watch is not None and not self._watch.has_leader_exited

    def stop(self, cause: Cause, grace_us: int | None) -> None:
        """Stop it by the grace rule; None takes its own grace, 0 kills at once."""
        if self.is_leader_alive:
            self._phase, action = stop(self._phase, cause, grace_us, boottime_us())
            self._carry_out(action)

    def set_time_limit(self, time_limit_us: int | None) -> None:
        """Give it another time limit, None for none; one that has passed stops it now. Again: changes nothing."""
        if self.is_leader_alive:
            self._phase = with_time_limit(self._phase, time_limit_us)
            self._act()

    def signal(self, number: int) -> bool:
        """Send a signal to the whole group, and to what runs in the foreground of its terminal.

        A shell gives each command a group of its own. False when the leader has exited.
        """
        if not self.is_leader_alive:
            return False
        self._signal_group(number)
        return True

    def enter(self, channel_fd: int) -> Refusal | None:
        """Let another command into its world, which is told and ended by this channel from now on."""
        if self._watch is None or not self.is_leader_alive:
            return Refusal(RefusalReason.NOT_RUNNING, f"{self.key} does not run any more")
        entrances: list[int] = []
        try:
            entrances = [] if self.group is None else self.group.entrances()
        except OSError as error:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"the job's control group cannot be entered: {error}")
        try:
            is_in = self._watch.enter(channel_fd, entrances)
        finally:
            for fd in entrances:
                os.close(fd)
        return (
            None if is_in else Refusal(RefusalReason.SPAWN_FAILED, "the job's supervisor takes no command at present")
        )

    def _signal_group(self, number: int) -> None:
        if self.container is not None and self._signal_container(number):
            return
        foreground = self.input.foreground_group(self.pid) if self.input is not None else None
        for group in {self.pid, foreground or self.pid}:
            with contextlib.suppress(PermissionError, ProcessLookupError):  # a setuid program; one that just ended
                os.killpg(group, number)

    def _signal_container(self, number: int, *, is_for_leader: bool = False) -> bool:
        """Signal what it runs in its place, which is no process below it; False where that is not seen here.

        Its runner, which is its own process, then passes the signal on; a worker is what the signal is for, and ends
        its program itself. One that is killed has no time to carry what the container wrote last: so the container is,
        and the runner a while later, if it is still there.
        """
        assert self.container is not None, "only what has one is asked"
        if number != signal.SIGKILL:
            if self.container.has_worker:
                return False
            return send_signal(self.container, number, is_for_leader=is_for_leader)
        if not kill_container(self.container):
            return False
        self._house.reactor.call_at(self._kill_runner, boottime_us() + RUNNER_US)
        return True

    def _kill_runner(self) -> None:
        """End its own process: the container that it ran was killed."""
        if self.is_leader_alive:
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if self._watch is not None:
                self._watch.kill_all()

    def heartbeat_acknowledged(self, sent_us: int) -> None:
        """Move its fence. The timer is left as it is: when it fires, it finds that there is more time."""
        self._phase = heartbeat_acknowledged(self._phase, sent_us)

    def forgotten(self) -> None:
        """Leave nothing behind in the loop."""
        self._house.reactor.call_at(self._record, None)
        self._record_file.close()

    def leave(self, grace_us: int | None) -> None:
        """Stop it because the keeper leaves; output that nobody makes room for is cut after the drain."""
        self._is_leaving = True
        self.stop(NodeCause.SHUTDOWN, grace_us)
        self.reconsider()

    # --- what happens to it

    def _watch_changed(self) -> None:
        """Begin the ending, or end: the leader's group was killed as it exited, and the rest is being killed."""
        assert self._watch is not None, "only an attempt that runs is watched"
        if self._exit is None and self._watch.exit is not None:
            self._begin_ending(self._watch.exit)
        if self._watch.is_done:
            self._watch = None  # it may be another attempt's from now on
        self.reconsider()

    def _begin_ending(self, told: LeaderExit) -> None:
        code = os.waitstatus_to_exitcode(told.wait_status)
        status = ExitSignal(signal=-code) if code < 0 else ExitCode(code=code)
        if self.group is not None:
            self.group.end()
        self._exit = _LeaderExit(status, told.cpu_us, told.max_rss_bytes, boottime_us())
        self._ending = Ending(
            drain_since_us=self._exit.at_us,
            output_is_open=True,
            spool_is_full=self.output.full is not None,
            processes_remain=True,
        )

    def reconsider(self) -> None:
        """In the ending: see whether it is over."""
        if self._ending is None or self._exit is None or self.end is not None:
            return
        left = 0 if self._watch is None else self._watch.left_count
        now_us = boottime_us()
        self._ending = observe(
            self._ending,
            output_is_open=self.output.is_open,
            spool_is_full=self.output.full is not None and not self._is_leaving,
            processes_remain=left > 0,
            now_us=now_us,
        )
        step = next_step_of_ending(self._ending, now_us)
        if isinstance(step, Wait):
            self._house.reactor.call_at(self._act, step.until_us)
        else:
            self._finish(self._end_of(self._exit, left))

    # --- decisions carried out

    def _act(self) -> None:
        """Do what is due now, and come back when the next thing is."""
        if self._exit is not None:
            self.reconsider()
            return
        if not self.is_leader_alive:
            return  # it is about to be reaped, and then its ending begins
        action = next_action(self._phase, boottime_us())
        self._phase = phase_after(self._phase, action)
        self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, SendSignal) and action.is_for_leader:
            if self.container is None or not self._signal_container(action.signal, is_for_leader=True):
                os.kill(self.pid, action.signal)
        elif isinstance(action, SendSignal):
            self._signal_group(action.signal)
        elif isinstance(action, SendTerm):
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)
        elif isinstance(action, SendKill) and (self.container is None or not self._signal_container(signal.SIGKILL)):
            self._signal_group(signal.SIGKILL)
            if self.group is not None:
                self.group.end()
            if self._watch is not None:
                self._watch.kill_all()
        self._wait_for_next_action()

    def _wait_for_next_action(self) -> None:
        following = next_action(self._phase, boottime_us())
        self._house.reactor.call_at(self._act, following.until_us if isinstance(following, Wait) else boottime_us())

    def _output_changed(self) -> None:
        is_full = self.output.full is not None
        if is_full != self._said_full:
            self._said_full = is_full
            self._house.fullness_changed(self)
        self.reconsider()

    # --- its end

    def _end_of(self, leader: _LeaderExit, processes_left: int) -> AttemptEnd:
        cut = self.output.end()
        end = AttemptEnd(
            status=leader.status,
            output_ends=self.output.ends,
            started_us=self._started_us,
            ended_us=leader.at_us,
            stop_cause=stop_cause(self._phase),
            cpu_us=leader.cpu_us,
            max_rss_bytes=leader.max_rss_bytes,
            streams_cut=cut,
            processes_left=processes_left,
            shortage=None if self.group is None else self.group.shortage(),
        )
        return end if self.container is None else end_in_container(end, self.container)

    def _finish(self, end: AttemptEnd) -> None:
        self._house.reactor.call_at(self._act, None)
        if self.container is not None:
            self._house.reactor.call_at(self._kill_runner, None)
        if self.input is not None:
            self.input.close()
        self.end = end
        self._record(records.ended_line(end))
        self.output.tell_final()
        self._house.has_ended(self)

    def _record(self, line: Json | None = None) -> None:
        """Write down in order; what the disk has no room for is tried again."""
        if line is not None:
            self._unrecorded.append(line)
        try:
            while self._unrecorded:
                self._record_file.append(self._unrecorded[0])
                del self._unrecorded[0]
        except OSError:
            self._house.reactor.call_at(self._record, boottime_us() + RETRY_US)
            return
        if self.end is not None:
            self._record_file.close()

    def _view_phase(self) -> AttemptPhase:
        if self.end is not None:
            return AttemptPhase.ENDED
        if self._ending is not None:
            return AttemptPhase.ENDING
        return AttemptPhase.RUNNING if isinstance(self._phase, Running) else AttemptPhase.STOPPING
