"""What an agent does about attempts whose keeper is gone: kill what is left of them, then say what is known.

That a keeper is gone, its lock tells. A child that was being started holds that lock too until it runs its
command; so whoever has the lock sees every process the keeper started, with its key in its environment.
"""

import contextlib
import os
import select
import shutil
import signal
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from ..control_groups import kept
from ..core.adoption import RecordFate, fate_of_record, is_blameless, loss_of
from ..core.outcome import AttemptEnd, AttemptView, Offsets
from ..spool.layout import ends_on_disk
from . import records
from .containers.ending import end as end_container
from .linux import boot_id
from .processes import ProcessStat, all_processes, environment_of, holds_pipe, look_at
from .records import Record
from .spawn import KEY_VARIABLE, key_value
from .state_dir import StateDir, try_lock

KILL_ROUND_S = 1.0
"""How long a round waits for what it killed before it looks again."""

CLEAN_LOOKS = 2
"""A process may fork while it is looked for; only this many looks in a row that find nobody count."""


class StillAlive(Exception):
    """Processes outlive SIGKILL (a stuck driver, another account's); ask again later."""

    def __init__(self, pids: Collection[int]) -> None:
        super().__init__(f"processes {sorted(pids)} of attempts without a keeper do not die")
        self.pids = frozenset(pids)


def settle(state: StateDir, timeout_s: float) -> tuple[AttemptView, ...]:
    """Kill and wait for all that belongs to dead keepers; answer their attempts, as ended or lost.

    Blocks up to `timeout_s`. Raises StillAlive when some process does not die; nothing is answered or
    written then.
    """
    found = records.all_records(state)
    # A keeper is there before its records are, so a lock that is free after they were read means death.
    locks = _locks_of_the_dead(state, {record.keeper_id for record in found} | set(state.keeper_ids()))
    groups = tuple(each for keeper_id in locks for each in kept.left_by(state.keeper(keeper_id)))
    is_over = False
    try:
        kept.let_nothing_begin(groups)
        settled = _settle_all(state, [record for record in found if record.keeper_id in locks], groups, timeout_s)
        kept.remove_left(groups)
        is_over = True
        return settled
    finally:
        for keeper_id, lock_fd in locks.items():
            if lock_fd is not None:
                if is_over or not groups:  # which groups they are, the folder alone tells
                    shutil.rmtree(state.keeper(keeper_id), ignore_errors=True)
                os.close(lock_fd)


def _locks_of_the_dead(state: StateDir, keeper_ids: Collection[str]) -> dict[str, int | None]:
    """Take the locks of all keepers that are dead; None where one left, and took its lock with it."""
    locks: dict[str, int | None] = {}
    for keeper_id in keeper_ids:
        try:
            lock_fd = try_lock(state.keeper_lock(keeper_id))
        except FileNotFoundError:
            locks[keeper_id] = None
        else:
            if lock_fd is not None:
                locks[keeper_id] = lock_fd
    return locks


def _settle_all(
    state: StateDir, orphans: list[Record], groups: tuple[str, ...], timeout_s: float
) -> tuple[AttemptView, ...]:
    this_boot = boot_id()
    fates = {
        record.key: fate_of_record(
            keeper_is_alive=False, is_this_boot=record.boot_id == this_boot, has_end=record.end is not None
        )
        for record in orphans
    }
    victims = [record for record in orphans if fates[record.key] is RecordFate.KILL]
    _end_processes(victims, groups, timeout_s)
    _end_containers(victims, timeout_s)
    for record in orphans:
        shutil.rmtree(state.space(record.key), ignore_errors=True)
    lost = Counter(record.keeper_id for record in orphans if fates[record.key] is RecordFate.KILL)
    settled = [_settled(state, record, fates[record.key], lost[record.keeper_id]) for record in orphans]
    return tuple(records.view_of(record, records.phase_of(record), state) for record in settled)


def _settled(state: StateDir, record: Record, fate: RecordFate, lost_count: int) -> Record:
    """Write the unknown end of an attempt down, so that it is found out once. So many were lost with its keeper."""
    loss = loss_of(fate)
    if loss is None or (record.end is not None and record.end.loss is not None):
        return record
    # After a reboot nobody knows which of the spooled bytes had reached the disk.
    ends = ends_on_disk(state.attempt(record.key)) if fate is RecordFate.KILL else Offsets()
    end = AttemptEnd(
        status=None,
        output_ends=ends,
        started_us=record.started_us,
        loss=loss,
        is_blameless=fate is RecordFate.KILL and is_blameless(is_isolated=record.is_isolated, lost_count=lost_count),
    )
    with contextlib.suppress(OSError):  # a full disk: it will be found out again
        records.append(state.attempt(record.key), records.ended_line(end))
    return replace(record, end=end)


def _end_processes(victims: list[Record], groups: tuple[str, ...], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    clean_looks = 0
    while (victims or groups) and clean_looks < CLEAN_LOOKS:
        found = _processes_of(victims, groups)
        clean_looks = 0 if found else clean_looks + 1
        if not found:
            continue
        _kill_and_wait(found, min(KILL_ROUND_S, max(0.0, deadline - time.monotonic())))
        if time.monotonic() >= deadline and (left := _processes_of(victims, groups)):
            raise StillAlive([process.pid for process in left])


def _end_containers(victims: list[Record], timeout_s: float) -> None:
    """End what runners of dead keepers ran; those, and their supervisors, may have been killed before they could."""
    deadline = time.monotonic() + timeout_s
    for record in victims:
        if record.container is not None and not end_container(record.container, max(1.0, deadline - time.monotonic())):
            raise StillAlive([record.pid or 0])


def _processes_of(victims: list[Record], groups: tuple[str, ...]) -> list[ProcessStat]:
    """Find every process of these attempts: by its control group, by session and group of a recorded leader, its key,
    or a pipe it holds.
    """
    leaders = {r.pid: r.start_ticks for r in victims if r.pid is not None and r.start_ticks is not None}
    for pid, start_ticks in tuple(leaders.items()):
        now = look_at(pid)
        if now is not None and now.start_ticks != start_ticks:
            del leaders[pid]  # the pid names another process by now, so the group is long empty
    marks = _Marks(
        leaders=leaders,
        keys=frozenset(os.fsencode(key_value(record.keeper_id, record.key)) for record in victims),
        pipe_ids=frozenset(pipe_id for record in victims for pipe_id in record.pipe_ids),
        members=frozenset(kept.members_left(groups)),
    )
    return [process for process in all_processes() if not process.is_dead and _belongs(process, marks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """What tells a process of a dead keeper's attempts. `leaders`: start ticks by pid; `members`: of its groups."""

    leaders: dict[int, int]
    keys: frozenset[bytes]
    pipe_ids: frozenset[str]
    members: frozenset[int] = frozenset()


def _belongs(process: ProcessStat, marks: _Marks) -> bool:
    if process.pid in marks.members:
        return True
    since_ticks = marks.leaders.get(process.session_id) or marks.leaders.get(process.group_id)
    if since_ticks is not None and process.start_ticks >= since_ticks:
        return True
    if environment_of(process.pid).get(os.fsencode(KEY_VARIABLE)) in marks.keys:
        return True
    return holds_pipe(process.pid, marks.pipe_ids)


def _kill_and_wait(found: list[ProcessStat], timeout_s: float) -> None:
    poll = select.poll()
    pidfds: list[int] = []
    for process in found:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        pidfds.append(pidfd)
        # The descriptor is of whoever has the pid now: make sure that this is still the one that was found.
        now = look_at(process.pid)
        if now is not None and now.start_ticks == process.start_ticks:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
            poll.register(pidfd, select.POLLIN)
    _wait_for(poll, len(pidfds), timeout_s)
    for pidfd in pidfds:
        os.close(pidfd)


def _wait_for(poll: select.poll, count: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while count > 0 and (left_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(left_s * 1000):
            poll.unregister(pidfd)
            count -= 1
