"""What is known only while the scheduler runs: never stored, and rebuilt after a start.

`Live` follows the events (`apply_event`) and the records (`before_record`, `after_record`); nothing else changes it.
Deciding reads it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import events, records
from .attempts import (
    TAKEN_BACK,
    Attempt,
    EndedAttempt,
    OutputStream,
    RankExit,
    RefusalKind,
)
from .durable import Durable
from .events import Event
from .ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from .indexes.slots import is_in_backlog
from .jobs import Finished, Job, Running, Starting, is_being_prepared
from .limits import Limits
from .nodes import DeviceSample, HostSample, Reachability
from .programs import program_of
from .records import Record, job_of
from .sessions.events import SessionEvent
from .sessions.records import SessionRecord
from .sessions.turns import Turns
from .sessions.turns import after_record as follow_session
from .sessions.turns import apply_event as observe_session
from .sessions.turns import restart as restart_sessions
from .specs import Outcome
from .time_limits import TimeLimits
from .units import SECOND, Instant, Span, after
from .used import ReportedUse
from .waits import Forecast, Waits
from .warnings import DeviceCourse, JobWarning, WarningKind, follow_readings

RESUME_SPAN = Span(10 * SECOND)
"""How long after a resume a device's old trouble is not held against it; samples still keep work off it."""

ENDED_KEPT = 10_000
"""Ends remembered beside the store: for a submit that names a job which ends at that moment, and for estimates."""

ARRIVALS_KEPT = 1_000
"""Jobs remembered that came to wait in line: a bound that grows names them."""

REFUSED_NODES_KEPT = 100
"""Nodes remembered that were refused, the newest: who has an agents' token can name any."""

SWEEP_SPAN = Span(60 * SECOND)
"""How often, at most, it is seen which remembered requests are old enough to be forgotten."""


BACKLOG_PAUSE = Span(5 * SECOND)
"""A node that handed a job back out of its backlog, and was not asked to, is given nothing in advance for so long."""


@dataclass(slots=True)
class NodeLive:
    """One node as it is heard. `heard_at` is when its span began: its newest word, or a start of the scheduler.

    `trusts_devices_until`: after a resume, reports of old trouble that are still on their way mark nothing.
    `lingering` are ranks that may still live there although the scheduler has ended them; while there are any, the
    node is given nothing. `newest_inventory` is its newest by (agent, incarnation, sequence): one from before it that
    arrives late knows nothing of what was asked of the node since. `usages` is what ranks that run there used by the
    newest beat, as the agent sent it: it is passed on unread. `courses` are those of the devices that are held. What it
    handed back unasked pauses its backlog.
    """

    heard_at: Instant
    reach: Reachability = Reachability.SUSPECT
    is_connected: bool = False
    has_inventory: bool = False
    newest_inventory: tuple[str, int, int] = ("", 0, 0)
    stream: int = 0
    samples: dict[DeviceUuid, DeviceSample] = field(default_factory=dict)
    lingering: set[RankKey] = field(default_factory=set)
    left_out_until: Instant = Instant(0)
    backlog_paused_until: Instant = Instant(0)
    trusts_devices_until: Instant = Instant(0)
    devices_left_out: dict[DeviceUuid, Instant] = field(default_factory=dict)
    host: HostSample = HostSample()
    usages: tuple[tuple[RankKey, ReportedUse], ...] = ()
    courses: dict[DeviceUuid, DeviceCourse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """A rank that its node prepares: when the node said so last, since when nothing has moved, and what it does."""

    told_at: Instant
    moved_at: Instant
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job came to wait in its line: the how-manieth since the start, and whether it had waited there before."""

    number: int
    job: JobId
    is_back: bool = False


RunKey = tuple[UserName, str, str]
"""Whose jobs run for about as long: the user's, of one name and program."""


def run_key(job: Job) -> RunKey:
    """The jobs that this one is like."""
    program = program_of(job.spec.argv)
    return (job.user, job.spec.name, program if job.fell_back is None else f"{program} without GPUs")


@dataclass(slots=True)
class Live:
    """Everything that is rebuilt after a start.

    `exits` are ends of ranks whose output is not stored yet: finished means stored, so they wait for it. `ready` are
    the ranks of gangs that are prepared, each with the port that it found. `blocked` are ranks that are held in their
    write, as their node has no room for more of their output, each with why. `setting_up` are ranks whose environment
    their node makes, each with what it makes. `preparing` are ranks that have not begun, each with what its node said
    last of its work on them. `reads_since` is when the scheduler began
    to read, or went on: nothing is late that could not be heard before. `ended` is how the jobs that ended lately did,
    the latest last; `runs` is how long a user's last success of a name and program took (`run_key`); `waits` is how
    true forecasts of starts were;
    `arrivals` are the jobs that came to wait lately, one for each submit, the latest last, of `arrival_count` in all.
    `refused_nodes` are those that were refused as they registered last and are not connected, each with that event, the
    newest last. `clock_at` is when time alone was looked at last, `swept_at` when remembered requests were looked
    through last, and `sweep_is_due` says that it is time now. `time_limits` says who nears its limit next.
    """

    nodes: dict[NodeName, NodeLive] = field(default_factory=dict)
    refused_nodes: dict[NodeName, events.NodeRefused] = field(default_factory=dict)
    exits: dict[RankKey, RankExit] = field(default_factory=dict)
    synced: dict[RankKey, dict[OutputStream, int]] = field(default_factory=dict)
    ready: dict[RankKey, int] = field(default_factory=dict)
    blocked: dict[RankKey, str] = field(default_factory=dict)
    setting_up: dict[RankKey, str] = field(default_factory=dict)
    preparing: dict[RankKey, Preparing] = field(default_factory=dict)
    reads_since: Instant = Instant(0)
    ended: dict[JobId, Outcome] = field(default_factory=dict)
    runs: dict[RunKey, Span] = field(default_factory=dict)
    waits: Waits = field(default_factory=Waits)
    turns: Turns = field(default_factory=Turns)
    arrivals: deque[Arrival] = field(default_factory=lambda: deque(maxlen=ARRIVALS_KEPT))
    arrival_count: int = 0
    clock_at: Instant = Instant(0)
    swept_at: Instant = Instant(0)
    sweep_is_due: bool = False
    time_limits: TimeLimits = field(default_factory=TimeLimits)

    def node(self, name: NodeName, now: Instant) -> NodeLive:
        """The live side of a node, made when it is first met."""
        return self.nodes.setdefault(name, NodeLive(heard_at=now))

    def of_ranks(self) -> tuple[dict[RankKey, Any], ...]:
        """All that is known of ranks by their keys."""
        return (self.exits, self.synced, self.ready, self.blocked, self.setting_up, self.preparing)

    def output_is_stored(self, key: RankKey, exit_: RankExit) -> bool:
        """Whether every byte that the rank wrote is synced to the store."""
        synced: Mapping[OutputStream, int] = self.synced.get(key, {})
        return all(synced.get(end.stream, 0) >= end.end_offset for end in exit_.output_ends)

    def output_is_its_own(self, key: RankKey, exit_: RankExit) -> bool:
        """Whether what is stored ends where the rank's output does. More than it wrote is not of this rank alone."""
        synced: Mapping[OutputStream, int] = self.synced.get(key, {})
        return all(synced.get(end.stream, 0) <= end.end_offset for end in exit_.output_ends)


def apply_event(live: Live, durable: Durable, limits: Limits, event: Event) -> None:
    """Take note of what an event says about the world."""
    if isinstance(event, SessionEvent):
        observe_session(live.turns, durable.sessions, event)
        return
    if isinstance(event, events.RankReport):
        _hear(live, event.node, event.at)
    match event:
        case events.SchedulerStarted(at=at):
            live.nodes = {name: NodeLive(heard_at=at) for name in durable.nodes}
            live.reads_since = at
            restart_sessions(live.turns, durable.models, durable.sessions, at)
        case events.ReadingResumed(gap=gap, at=at):
            live.reads_since = at
            for node in live.nodes.values():
                node.heard_at = after(node.heard_at, gap)
        case events.ClockAdvanced(at=at):
            live.clock_at = at
            live.time_limits.advance(at)
            _age(live, limits, at)
        case events.InventoryReported() if inventory_is_welcome(durable, event) and not inventory_is_late(live, event):
            _observe_inventory(live, durable, limits, event)
        case events.NodeBeat(node=name, at=at, stream=stream, samples=samples):
            beaten = live.nodes.get(name)
            if beaten is not None and beaten.is_connected and beaten.stream == stream:
                _hear(live, name, at)
                beaten.samples.update({sample.uuid: sample for sample in samples})
                beaten.host = event.host
                beaten.usages = event.usages
                _note_preparations(live, durable, event)
                hold = durable.hold(name)
                follow_readings(beaten.courses, (*hold.devices, *hold.shares), beaten.samples)
        case events.NodeRefused():
            _note_refused(live, event)
        case events.NodeDisconnected(node=name, stream=stream):
            gone = live.nodes.get(name)
            if gone is not None and gone.stream == stream:
                gone.is_connected = False
                _unready(live, durable, name)
        case events.RankReady(node=name, key=key, master_port=port):
            if _is_being_prepared(durable, name, key):
                live.ready[key] = port
                live.preparing.pop(key, None)
        case events.RankStarted(node=name, key=key):
            live.setting_up.pop(key, None)
            live.preparing.pop(key, None)
            if key not in durable.hold(name).ranks and name in live.nodes:
                live.nodes[name].lingering.add(key)
        case events.RankExited(node=name, key=key, exit=exit_):
            _end_lingering(live, name, key)
            if key in durable.hold(name).ranks:
                _note_exit(live, key, exit_)
        case events.RankRefused(node=name, key=key):
            live.setting_up.pop(key, None)
            live.preparing.pop(key, None)
            _end_lingering(live, name, key)
            _leave_out(live, durable, limits, event)
        case events.SpoolFilled(node=name, key=key):
            if key in durable.hold(name).ranks:
                _note_blocked(live, key, (event.message or "no room is left") if event.is_full else "")
        case events.SetupReported(node=name, key=key):
            live.setting_up.pop(key, None)
            if key in durable.hold(name).ranks and not event.is_ready:
                live.setting_up[key] = event.message
        case events.OutputSynced(key=key, ends=ends) if durable.live_rank(key) is not None:
            synced = live.synced.setdefault(key, {})
            for end in ends:
                synced[end.stream] = max(synced.get(end.stream, 0), end.end_offset)
        case _:
            pass


def inventory_is_welcome(durable: Durable, event: events.InventoryReported) -> bool:
    """Whether an inventory comes from the newest start of the agent that owns the node's name."""
    node = durable.nodes.get(event.node)
    told = (event.agent_id, event.incarnation, event.boot_id)
    return node is not None and (node.agent_id, node.incarnation, node.boot_id) == told


def inventory_is_late(live: Live, event: events.InventoryReported) -> bool:
    """Whether an inventory was told before one of the same start of the agent that has been taken up already.

    A stream that the agent gave up may arrive behind the next one, on which it has been asked to do more since.
    """
    node = live.nodes.get(event.node)
    if node is None:
        return False
    agent_id, incarnation, sequence = node.newest_inventory
    return (agent_id, incarnation) == (event.agent_id, event.incarnation) and event.sequence < sequence


def _forget_oldest(kept: dict[Any, Any]) -> None:
    if len(kept) > ENDED_KEPT:
        kept.pop(next(iter(kept)))


def before_record(live: Live, durable: Durable, record: Record) -> None:
    """Before a record is applied: a rank that it ends, and whose end nobody has told, may still live on its node.

    One that was presumed over before is left as it is: its node may have said since that nothing of it lives.
    """
    if isinstance(record, records.AttemptEnded | records.JobFinished) and record.ended is not None:
        for key, rank in zip(record.ended.keys(record.job), record.ended.ranks, strict=True):
            is_told = key in live.exits or (rank.exit is not None and not rank.exit.is_presumed)
            node = live.nodes.get(rank.placement.node)
            if node is not None and not is_told and key in durable.hold(rank.placement.node).ranks:
                node.lingering.add(key)


def after_record(live: Live, durable: Durable, limits: Limits, record: Record) -> None:
    """Take note of what was decided, after it was applied."""
    if isinstance(record, SessionRecord):
        follow_session(live.turns, record)
        return
    if durable.models:
        _mark_model(live, durable, record)
    if isinstance(record, ARRIVALS):
        _note_arrival(live, record)
    match record:
        case records.AttemptEnded(job=job, ended=ended):
            _settle(live, job, ended)
        case records.JobFinished(job=job, finished=finished, ended=last):
            live.waits.forecasts.pop(job, None)
            live.turns.given.pop(job, None)
            live.ended[job] = finished.outcome
            _forget_oldest(live.ended)
            if last is None:
                return
            learn_run(live, durable.finished[job])
            _settle(live, job, last)
        case records.AttemptFound(job=job, attempt=found, exit=exit_, at=at):
            (key,) = found.keys(job)
            live.node(found.ranks[0].placement.node, at).lingering.discard(key)
            if exit_ is not None:
                _note_exit(live, key, exit_)
            else:
                live.time_limits.begin(durable.jobs.get(job), found.placed_at)
        case records.JobFound(job=Job(id=job, state=Finished(outcome=outcome))):
            live.ended[job] = outcome
            _forget_oldest(live.ended)
        case records.AttemptVoided(job=job, number=number, at=at, left_out=left_out):
            for ends in live.of_ranks():
                for key in [key for key in ends if (key.job, key.attempt) == (job, number)]:
                    del ends[key]
            for name in left_out:
                live.node(name, at).left_out_until = after(at, limits.left_out_span)
        case records.AttemptPlaced(job=job, attempt=placed):
            if placed.slot is None:
                _begin_courses(live, placed)
            live.waits.forecasts.pop(job, None)
            live.turns.given.pop(job, None)
            if placed.forecast is not None:
                known = durable.jobs[job]
                live.waits.learn(known.spec, known.band, placed.forecast, placed.placed_at)
        case records.AttemptStarted(key=key, started_at=started_at):
            begun = durable.jobs.get(key.job)
            live.time_limits.begin(begun, started_at)
            if begun is not None and begun.attempt is not None and begun.attempt.slot is not None:
                _begin_courses(live, begun.attempt)
        case records.JobWarned(job=job, warning=JobWarning(kind=WarningKind.TIME_LIMIT_NEAR)):
            live.time_limits.go_on(durable.jobs[job])
        case records.JobUpdated(job=job):
            live.waits.forecasts.pop(job, None)
            live.time_limits.go_on(durable.jobs[job])
        case records.JobFellBack(job=job) | records.FallBackPostponed(job=job):
            live.waits.forecasts.pop(job, None)
        case records.AttemptReady(job=job):
            for key in [key for key in live.ready if key.job == job]:
                del live.ready[key]
        case records.RankEnded(key=key, exit=exit_, at=at):
            for of_ranks in live.of_ranks():
                of_ranks.pop(key, None)
            attempt = durable.jobs[key.job].attempt
            if exit_.is_presumed and attempt is not None:
                live.node(attempt.ranks[key.rank].placement.node, at).lingering.add(key)
        case records.NodeRegistered(node=node, at=at):
            live.node(node.name, at)
        case records.NodeForgotten(node=name):
            live.nodes.pop(name, None)
            live.refused_nodes.pop(name, None)
        case records.NodeResumed(node=name, at=at):
            live.node(name, at).trusts_devices_until = after(at, RESUME_SPAN)
        case _:
            pass


def expect(live: Live, forecasts: Mapping[JobId, Forecast]) -> None:
    """Take note of when waiting jobs are expected to start, each when it is told first."""
    for job, forecast in forecasts.items():
        live.waits.expect(job, forecast)


def learn(live: Live, job: Job) -> None:
    """Learn from a job that ended before the present start what a record of its end would have told."""
    learn_run(live, job)
    for ended in job.past:
        if ended.forecast is not None:
            live.waits.learn(job.spec, job.band, ended.forecast, ended.placed_at)


def learn_run(live: Live, job: Job) -> None:
    """Take note of how long a job ran that has ended, where it succeeded; the others say nothing of their like."""
    if not isinstance(job.state, Finished) or job.state.outcome is not Outcome.SUCCEEDED or not job.past:
        return
    last = job.past[-1]
    if last.ranks[0].started_at is not None:
        key = run_key(job)
        live.runs.pop(key, None)  # what was learned lately is forgotten last
        live.runs[key] = Span(last.ended_at - last.ranks[0].started_at)
        _forget_oldest(live.runs)


def _mark_model(live: Live, durable: Durable, record: Record) -> None:
    """What befalls a worker's job is seen to together with its model's line."""
    job_id = job_of(record)
    job = None if job_id is None else durable.jobs.get(job_id) or durable.finished.get(job_id)
    if job is not None and job.spec.serves in durable.models:
        live.turns.dirty[job.spec.serves] = None


ARRIVALS = (
    records.JobQueued,
    records.JobReleased,
    records.BeginReached,
    records.KeptWaitEnded,
    records.DependencyMet,
    records.JobBandChanged,
    records.JobUpdated,
    records.ItemsReleased,
    records.ItemsMoved,
    records.ItemsUpdated,
    records.JobFellBack,
    records.ItemsFellBack,
    records.AttemptEnded,
    records.AttemptVoided,
)
"""Records after which a job may stand in line that did not before, or that now stands before others."""


def _note_arrival(live: Live, record: Record) -> None:
    job = record.job.id if isinstance(record, records.JobQueued) else job_of(record)
    assert job is not None
    live.arrival_count += 1
    is_back = isinstance(record, records.AttemptEnded | records.AttemptVoided)
    live.arrivals.append(Arrival(number=live.arrival_count, job=job, is_back=is_back))


def silent_from(limits: Limits, node: NodeLive) -> Instant:
    """When a node that says nothing more is given no new work: after the named number of missed heartbeats."""
    return after(node.heard_at, limits.heartbeat_interval * limits.missed_heartbeats)


def _hear(live: Live, name: NodeName, at: Instant) -> None:
    """Every word counts: the node knows, by the answer, that it was heard then, and its fence begins anew."""
    node = live.nodes.get(name)
    if node is not None and node.is_connected:
        node.heard_at = max(node.heard_at, at)
        node.reach = Reachability.READY


def _age(live: Live, limits: Limits, at: Instant) -> None:
    """A silent node becomes SUSPECT; what was left out for a moment is left in again."""
    live.sweep_is_due = live.swept_at + SWEEP_SPAN <= at
    if live.sweep_is_due:
        live.swept_at = at
    for node in live.nodes.values():
        if silent_from(limits, node) <= at:
            node.reach = Reachability.SUSPECT
        if node.left_out_until <= at:
            node.left_out_until = Instant(0)
        node.devices_left_out = {uuid: until for uuid, until in node.devices_left_out.items() if until > at}


def _note_refused(live: Live, event: events.NodeRefused) -> None:
    """A node that is connected was not refused: somebody else has used its name."""
    known = live.nodes.get(event.node)
    if known is not None and known.is_connected:
        return
    live.refused_nodes.pop(event.node, None)
    live.refused_nodes[event.node] = event
    if len(live.refused_nodes) > REFUSED_NODES_KEPT:
        live.refused_nodes.pop(next(iter(live.refused_nodes)))


def _observe_inventory(live: Live, durable: Durable, limits: Limits, event: events.InventoryReported) -> None:
    node = live.node(event.node, event.at)
    node.heard_at = max(node.heard_at, event.at)
    node.reach = Reachability.READY
    node.is_connected = True
    node.has_inventory = True
    node.newest_inventory = (event.agent_id, event.incarnation, event.sequence)
    node.stream = event.stream
    node.samples = {}
    live.refused_nodes.pop(event.node, None)
    _unready(live, durable, event.node)
    known = durable.hold(event.node).ranks
    for key in known:
        # It is asked for again, and may have forgotten what it did so far.
        if _is_being_prepared(durable, event.node, key):
            before = live.preparing.get(key)
            moved_at = event.at if before is None else before.moved_at
            live.preparing[key] = Preparing(told_at=event.at, moved_at=moved_at)
    node.lingering = {
        key
        for key, seen in event.entries
        if isinstance(seen, events.ReportedRunning | events.ReportedStarting) and key not in known
    }
    for key, seen in (*event.forgotten, *event.entries):
        if key not in known:
            continue
        if isinstance(seen, events.ReportedExited):
            _note_exit(live, key, seen.exit)
        elif isinstance(seen, events.ReportedRunning) and durable.live_rank(key) is not None:
            job, began_at = durable.jobs.get(key.job), Instant(event.at - seen.run_span)
            if job is not None and isinstance(job.state, Running) and job.state.attempt.is_gang:
                # Of a gang the last rank to start counts, and its node may not have been heard again.
                began_at = max(began_at, job.state.started_at)
            live.time_limits.begin(job, began_at)
            _note_blocked(live, key, seen.output_blocked)
        elif isinstance(seen, events.ReportedRefused):
            refusal = events.RankRefused(at=event.at, node=event.node, key=key, reason=seen.reason, kind=seen.kind)
            _leave_out(live, durable, limits, refusal)


def _note_exit(live: Live, key: RankKey, exit_: RankExit) -> None:
    """Keep a rank's end until it is decided. An end that was known is not forgotten for one that nobody saw."""
    if exit_.exit is not None or key not in live.exits:
        live.exits[key] = exit_
    live.blocked.pop(key, None)


def _note_blocked(live: Live, key: RankKey, why: str) -> None:
    live.blocked.pop(key, None)
    if why:
        live.blocked[key] = why


def _leave_out(live: Live, durable: Durable, limits: Limits, event: events.RankRefused) -> None:
    node = live.nodes.get(event.node)
    rank = durable.live_rank(event.key)
    if node is None or rank is None or rank.placement.node != event.node:
        return
    job = durable.jobs[event.key.job]
    if event.reason == TAKEN_BACK and is_in_backlog(job):
        node.backlog_paused_until = after(event.at, BACKLOG_PAUSE)
    never_waited = event.reason == TAKEN_BACK and (job.attempt is None or job.attempt.slot is None)
    blames = event.blames
    if blames not in (RefusalKind.NODE, RefusalKind.DEVICES) and not never_waited:
        return
    until = after(event.at, limits.left_out_span)
    placed = {device.uuid for device in rank.placement.devices}
    if blames is RefusalKind.DEVICES and placed:
        blamed = placed & {sample.uuid for sample in event.samples} or placed
        node.devices_left_out.update(dict.fromkeys(blamed, until))
        node.samples.update({sample.uuid: sample for sample in event.samples})
    else:
        node.left_out_until = until


def _note_preparations(live: Live, durable: Durable, event: events.NodeBeat) -> None:
    """Keep what a node says of ranks that have not begun; of one that is ready, or that is not its own, nothing."""
    for told in event.preparations:
        key = told.key
        rank, job = durable.live_rank(key), durable.jobs.get(key.job)
        is_there = rank is not None and rank.placement.node == event.node and rank.started_at is None
        if is_there and job is not None and isinstance(job.state, Starting) and key not in live.ready:
            moved_at = Instant(event.at - told.still)
            live.preparing[key] = Preparing(told_at=event.at, moved_at=moved_at, message=told.message)


def _begin_courses(live: Live, attempt: Attempt) -> None:
    """What its devices did for others before is none of its own."""
    for rank in attempt.ranks:
        node = live.nodes.get(rank.placement.node)
        if node is not None:
            for device in rank.placement.devices:
                node.courses.pop(device.uuid, None)


def _is_being_prepared(durable: Durable, name: NodeName, key: RankKey) -> bool:
    """Whether a rank is one that the node was asked to prepare, and its gang is not started yet."""
    job = durable.jobs.get(key.job)
    rank = durable.live_rank(key)
    if job is None or rank is None or rank.placement.node != name:
        return False
    return is_being_prepared(job)


def _unready(live: Live, durable: Durable, name: NodeName) -> None:
    """A node's stream is another one, or none: what it had prepared it is asked for again."""
    for key in durable.hold(name).ranks:
        live.ready.pop(key, None)


def _end_lingering(live: Live, name: NodeName, key: RankKey) -> None:
    node = live.nodes.get(name)
    if node is not None:
        node.lingering.discard(key)


def _settle(live: Live, job: JobId, ended: EndedAttempt) -> None:
    """An attempt is over: nothing of it is waited for any more."""
    live.time_limits.end(job)
    for key in ended.keys(job):
        for known in live.of_ranks():
            known.pop(key, None)
