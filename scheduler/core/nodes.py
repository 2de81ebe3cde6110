"""What happens to nodes: they register, say what they know, are drained, forgotten, lost and heard again."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from ..policy.gap import gap_hold
from ..state.attempts import Attempt
from ..state.commands import ClearTroubles, Command, ForgetAttempt, KeepAttempt, KillAttempt, StopAttempt
from ..state.events import (
    DrainRequested,
    ForgetRequested,
    InventoryReported,
    NodeAnnounced,
    NodeBeat,
    RankRefused,
    RankStarted,
    ReportedExited,
    ReportedRefused,
    ReportedRunning,
    ReportedStarting,
    ReportedState,
    SharedRootChecked,
)
from ..state.ids import DeviceUuid, NodeName, RankKey
from ..state.jobs import Job, Starting, Stopping, is_being_prepared
from ..state.live import inventory_is_late, inventory_is_welcome
from ..state.nodes import Device, Node, UnhealthyDevice, resumed
from ..state.records import (
    AttemptEnded,
    AttemptUnreachable,
    DeviceMarked,
    JobFinished,
    JobWarned,
    NodeDrained,
    NodeForgotten,
    NodeRegistered,
    NodeResumed,
    NodeReturned,
    NodeRootChecked,
    Record,
)
from ..state.replies import NodeChanged, NodeGone
from ..state.state import State
from ..state.units import Instant
from . import gangs
from .attempts import end_of_rank, on_rank_started, ran_unasked, rank_refused, start_by_end, without_its_node
from .backlog import ask_back_command, asked_back_of
from .decision import NOTHING, Decision, refused, together
from .found import found_by, superseded_by
from .live_ranks import jobs_on
from .membership import admitted, no_such_node, owner_of, refusal_to_join, use_of_token, with_owner
from .results import lost_with, missing_from
from .updating import limit_again
from .warnings import bounded, of_beat, of_trouble, tell_again, tell_commands


def on_node_announced(state: State, event: NodeAnnounced) -> Decision:
    """Take a node in, or take it in again. One agent owns a name as long as it is heard."""
    known = state.durable.nodes.get(event.name)
    shut_out = refusal_to_join(state, event, known)
    if shut_out is not None:
        return shut_out
    if known is not None and known.agent_id != event.agent_id:
        taken = _refusal_to_another_agent(state, known)
        if taken is not None:
            return taken
    if known is not None and known.agent_id == event.agent_id and event.incarnation < known.incarnation:
        return refused(
            "CONFLICT",
            f"a newer start of this agent has registered node {event.name!r}",
            field="incarnation",
            next_step="stop the older process of this agent",
        )
    owner = owner_of(state, event, known)
    node = Node(
        name=event.name,
        agent_id=event.agent_id,
        incarnation=event.incarnation,
        boot_id=event.boot_id,
        info=with_owner(state, event.info, owner),
        registered_at=event.at if known is None else known.registered_at,
        address=event.address,
        is_draining=known.is_draining if known else False,
        drain_reason=known.drain_reason if known else "",
        is_lost=known.is_lost if known else False,
        unhealthy=known.unhealthy if known else (),
        knows_lineages=event.knows_lineages,
        keeps_backlog=event.keeps_backlog,
        checked_root=known.checked_root if known is not None and known.agent_id == event.agent_id else "",
        owner=owner,
    )
    node = admitted(state, event, known, node)
    registered = _registered(state, event.at, known, node)
    records = (*use_of_token(event, known), *registered.records)
    return replace(registered, records=records, reply=NodeChanged(node=node, changed=bool(records)))


def _refusal_to_another_agent(state: State, known: Node) -> Decision | None:
    """Two machines may answer to one name: the second gets it only when nothing of the first can still run."""
    holder = (
        f"node {known.name!r} is held by another agent "
        f"({known.info.hostname or 'unknown host'}, {known.address or 'unknown address'})"
    )
    live = state.live.nodes.get(known.name)
    if live is not None and live.is_connected and not known.is_lost:
        return refused(
            "NODE_ID_TAKEN",
            f"{holder} that is connected",
            field="node",
            next_step="start this agent with another --node-id, or stop the other one",
        )
    jobs = jobs_on(state, known.name)
    if jobs:
        return refused(
            "NODE_ID_TAKEN",
            f"{holder} on which job {jobs[0].id} may still run",
            field="node",
            next_step=f"start this agent with another --node-id, or, when the other machine is gone for good: "
            f"gpuctl nodes forget {known.name}",
        )
    return None


def on_node_beat(state: State, event: NodeBeat) -> Decision:
    """A sign of life: a lost node is back, a device in trouble is marked; mostly nothing durable changes."""
    node = state.durable.nodes.get(event.node)
    live = state.live.nodes.get(event.node)
    if node is None or live is None or live.stream != event.stream or not live.is_connected:
        return NOTHING
    records: list[Record] = []
    if node.is_lost:
        # The same stream goes on, so that no report was lost; only the word was late.
        records.append(NodeReturned(at=event.at, node=node.name))
        records.extend(
            AttemptUnreachable(at=event.at, job=job.id, is_unreachable=False)
            for job in jobs_on(state, node.name)
            if job.attempt is not None and _is_reached_again(state, job.attempt, node.name)
        )
    known = {device.uuid for device in node.unhealthy}
    warnings: list[JobWarned] = []
    asked_back: list[Decision] = []
    for sample in event.samples:
        if not sample.is_healthy and sample.uuid not in known and event.at >= live.trusts_devices_until:
            trouble = UnhealthyDevice(uuid=sample.uuid, reason=sample.unhealthy_reason)
            records.append(DeviceMarked(at=event.at, node=node.name, device=trouble))
            warnings.extend(of_trouble(state, event.at, event.node, trouble))
            asked_back.append(
                asked_back_of(state, node.name, event.at, f"device {sample.uuid} is in trouble", sample.uuid)
            )
    warnings.extend(of_beat(state, event))
    if warnings:
        warnings = list(bounded(state, warnings))
        records.extend(warnings)
    beat = Decision(records=tuple(records), commands=tuple(tell_commands(state, warnings))) if records else NOTHING
    return together(beat, *asked_back) if asked_back else beat


def on_inventory_reported(state: State, event: InventoryReported) -> Decision:
    """Compare what a node knows with what is decided, rank by rank, and bring the two together."""
    node = state.durable.nodes.get(event.node)
    if node is None or node.agent_id != event.agent_id:
        return refused("NODE_NOT_FOUND", f"node {event.node!r} is not registered by this agent", field="node")
    if not inventory_is_welcome(state.durable, event):
        return refused(
            "CONFLICT", f"another start of this agent has registered node {event.node!r}", field="incarnation"
        )
    if inventory_is_late(state.live, event):
        return refused(
            "CONFLICT", f"a newer stream of this agent has told what node {event.node!r} knows", field="inventory"
        )
    seen, forgotten = dict(event.entries), dict(event.forgotten)
    decisions: list[Decision] = []
    if node.is_lost:
        decisions.append(Decision(records=(NodeReturned(at=event.at, node=node.name),)))
    over = superseded_by(state, event)
    for key in sorted(state.durable.hold(event.node).ranks):
        if key.job in over:
            continue
        job = state.durable.jobs[key.job]
        assert job.attempt is not None
        told = seen.pop(key, None) or forgotten.pop(key, None)
        decisions.append(_bring_together(state, event, job, job.attempt, key, told))
    decisions.append(Decision(records=tuple(_without_those_of_an_old_boot(state, node, event))))
    found = found_by(state, event, seen, forgotten)
    unexpected = (_unexpected(event.node, key, what) for key, what in seen.items() if key not in found.kept)
    decisions.extend((found.decision, Decision(commands=tuple(unexpected))))
    followed = together(*decisions)
    gone = tuple(missing_from(state, event, followed.records))
    return replace(followed, records=(*followed.records, *gone))


def _unexpected(node: NodeName, key: RankKey, seen: ReportedState) -> Command:
    """A rank that is not, or no longer, decided to be there: end what lives, forget what has ended."""
    if isinstance(seen, ReportedRunning | ReportedStarting):
        return KillAttempt(node=node, key=key)
    return ForgetAttempt(node=node, key=key)


def _bring_together(
    state: State, event: InventoryReported, job: Job, attempt: Attempt, key: RankKey, seen: ReportedState | None
) -> Decision:
    rank = attempt.ranks[key.rank]
    if rank.placement.boot_id != event.boot_id:
        starts: tuple[Record, ...] = ()
        if isinstance(seen, ReportedExited) and not is_being_prepared(job):
            job, starts = start_by_end(event.at, job, key, seen.started_ago)
            assert job.attempt is not None
            attempt = job.attempt
        lost = _lost(state, event, job, attempt, "the machine was started again")
        # What is decided may settle it already; of a gang it also holds commands for the ranks on other nodes.
        is_settled = any(isinstance(each, ForgetAttempt | KillAttempt) and each.key == key for each in lost.commands)
        settles = () if seen is None or is_settled else (_unexpected(event.node, key, seen),)
        return replace(lost, records=(*starts, *lost.records), commands=(*lost.commands, *settles))
    if is_being_prepared(job):
        return _prepare_again(state, event, job, attempt, key, seen)
    heard: tuple[Record, ...] = ()
    if _is_reached_again(state, attempt, event.node):
        heard = (AttemptUnreachable(at=event.at, job=job.id, is_unreachable=False),)
    match seen:
        case ReportedExited(exit=exit_, started_ago=started_ago):
            return together(Decision(records=heard), end_of_rank(state, event.at, job, key, exit_, started_ago))
        case ReportedRefused(reason=reason, message=message, kind=kind):
            refusal = RankRefused(at=event.at, node=event.node, key=key, reason=reason, message=message, kind=kind)
            forget = Decision(commands=(ForgetAttempt(node=event.node, key=key),))
            return together(Decision(records=heard), rank_refused(state, refusal, job, attempt), forget)
        case ReportedRunning(run_span=run_span, file_runs=runs):
            runs_now = RankStarted(at=event.at, node=event.node, key=key, run_span=run_span, file_runs=runs)
            started = on_rank_started(state, runs_now)
            told = tuple(tell_again(job)) if key.rank == 0 else ()
            limit = limit_again(job, event.node, key, seen.time_limit)
            go_on = Decision(commands=(*_go_on(job, event.node, key), *limit, *told))
            return together(Decision(records=heard), started, go_on)
        case ReportedStarting() if attempt.rendezvous is not None and isinstance(job.state, Starting):
            # It is prepared, and its Start was lost.
            limit = limit_again(job, event.node, key, seen.time_limit)
            start = gangs.start_command(attempt, attempt.rendezvous, key)
            return Decision(records=heard, commands=(*limit, start))
        case ReportedStarting():
            limit = limit_again(job, event.node, key, seen.time_limit)
            again = (ask_back_command(job.id, attempt),) if attempt.is_asked_back else ()
            return Decision(records=heard, commands=(*_go_on(job, event.node, key), *limit, *again))
        case None:
            return together(Decision(records=heard), _never_seen(state, event, job, attempt, key))


def _is_reached_again(state: State, attempt: Attempt, node: NodeName) -> bool:
    """Whether an attempt that was out of reach is heard of again on all its nodes, now that this one is."""
    others = {rank.placement.node for rank in attempt.ranks if rank.exit is None} - {node}
    return attempt.is_unreachable and not any(state.durable.nodes[each].is_lost for each in others)


def _prepare_again(
    state: State, event: InventoryReported, job: Job, attempt: Attempt, key: RankKey, seen: ReportedState | None
) -> Decision:
    """A rank of a gang that is not started yet: whatever its node prepared, it is asked again and says so again."""
    match seen:
        case None if _may_run_elsewhere(state, event.at, job):
            return _never_seen(state, event, job, attempt, key)
        case ReportedStarting() | None:
            return Decision(commands=(gangs.launch_command(state, job, attempt, key),))
        case ReportedRefused(reason=reason, message=message, kind=kind):
            refusal = RankRefused(at=event.at, node=event.node, key=key, reason=reason, message=message, kind=kind)
            forget = Decision(commands=(ForgetAttempt(node=event.node, key=key),))
            return together(rank_refused(state, refusal, job, attempt), forget)
        case _:
            return ran_unasked(event.at, job, attempt, event.node, _unexpected(event.node, key, seen))


def _go_on(job: Job, node: NodeName, key: RankKey) -> tuple[Command, ...]:
    keep = KeepAttempt(node=node, key=key)
    if isinstance(job.state, Stopping):
        stop = StopAttempt(node=node, key=key, cause=job.state.cause, grace=job.spec.grace)
        return (keep, stop)
    return (keep,)


def _never_seen(state: State, event: InventoryReported, job: Job, attempt: Attempt, key: RankKey) -> Decision:
    """The node knows nothing of a rank that was placed on it: it never started, or what started left no trace."""
    rank = attempt.ranks[key.rank]
    if rank.started_at is not None:
        return _lost(state, event, job, attempt, "its node no longer knows of it")
    # An agent without a backlog would begin it beside what is before it.
    is_over = attempt.slot is not None and not state.durable.nodes[event.node].keeps_backlog
    match job.state:
        case Starting() if not attempt.is_asked_back and not is_over and not _may_run_elsewhere(state, event.at, job):
            return Decision(commands=(gangs.launch_command(state, job, attempt, key),))
        case _:
            refusal = RankRefused(at=event.at, node=event.node, key=key, reason="NEVER_STARTED")
            return rank_refused(state, refusal, job, attempt)


def _may_run_elsewhere(state: State, at: Instant, job: Job) -> bool:
    """Whether history that the store lacks may have given this attempt up, and placed another one."""
    hold = gap_hold(state, at)
    return hold is not None and hold.holds(job)


def _lost(state: State, event: InventoryReported, job: Job, attempt: Attempt, message: str) -> Decision:
    """End what an attempt has on a node where, by its own word, nothing of it lives."""
    return without_its_node(state, event.at, job, attempt, event.node, message, nothing_lives=True)


def on_shared_root_checked(state: State, event: SharedRootChecked) -> Decision:
    """Keep what a probe has shown of a node: whether files of jobs may be read in its shared folder."""
    node = state.durable.nodes.get(event.node)
    if node is None:
        return no_such_node(event.node)
    if event.root == node.checked_root:
        return Decision(reply=NodeChanged(node=node, changed=False))
    record = NodeRootChecked(at=event.at, node=node.name, root=event.root)
    return Decision(records=(record,), reply=NodeChanged(node=replace(node, checked_root=event.root), changed=True))


def on_drain_requested(state: State, event: DrainRequested) -> Decision:
    """Drain a node, or resume it."""
    node = state.durable.nodes.get(event.node)
    if node is None:
        return no_such_node(event.node)
    if event.is_draining:
        if node.is_draining:
            return Decision(reply=NodeChanged(node=node, changed=False))
        drained = replace(node, is_draining=True, drain_reason=event.reason)
        record: Record = NodeDrained(at=event.at, node=node.name, by=event.by, reason=event.reason)
        asked_back = asked_back_of(state, node.name, event.at, f"node {node.name} drains")
        drain = together(Decision(records=(record,)), asked_back)
        return replace(drain, reply=NodeChanged(node=drained, changed=True))
    if node.awaits_approval or node.is_revoked:
        return refused(
            "CONFLICT",
            f"node {event.node!r} {'was revoked' if node.is_revoked else 'waits for approval'}",
            field="node",
            next_step=f"let it take part with: gpuctl nodes approve {event.node}",
        )
    after = resumed(node, state.durable.hold(node.name).device_uuids())
    if after == node:
        return Decision(reply=NodeChanged(node=node, changed=False))
    record = NodeResumed(at=event.at, node=node.name, by=event.by)
    clear = (ClearTroubles(node=node.name),) if node.unhealthy else ()
    return Decision(records=(record,), commands=clear, reply=NodeChanged(node=after, changed=True))


def on_forget_requested(state: State, event: ForgetRequested) -> Decision:
    """Drop a node that will not come back; what ran there has ended as far as anybody will ever know."""
    if event.node not in state.durable.nodes:
        return no_such_node(event.node)
    live = state.live.nodes.get(event.node)
    if live is not None and live.is_connected and not state.durable.nodes[event.node].is_lost:
        return refused(
            "NODE_NOT_LOST",
            f"node {event.node!r} is connected",
            field="node",
            next_step=f"stop its agent first, or take it out of use with: gpuctl drain {event.node}",
        )
    message = f"node {event.node} was forgotten"
    ends = [
        without_its_node(state, event.at, job, job.attempt, event.node, message)
        for job in jobs_on(state, event.node)
        if job.attempt is not None
    ]
    ended = together(*ends)
    left = lost_with(state, event.at, event.node, message, ended.records)
    records = (*ended.records, *left, NodeForgotten(at=event.at, node=event.node, by=event.by))
    finished = tuple(record.job for record in records if isinstance(record, JobFinished))
    requeued = tuple(record.job for record in records if isinstance(record, AttemptEnded))
    return Decision(records=records, commands=ended.commands, reply=NodeGone(ended=finished, requeued=requeued))


VANISHED = "VANISHED: the agent of its node no longer finds it"
"""The trouble of a device that a job holds and that the node's agent, started anew, does not find: it fell off the bus.

While somebody holds such a device it stays in its node's list, marked as unhealthy, so that the job is told, people see
it, and nobody else is given it. It leaves the list when its node is resumed, or registers, and nobody holds it any more
(docs/rules/jobs.md 4.16).
"""


def _registered(state: State, at: Instant, known: Node | None, told: Node) -> Decision:
    """What follows when a node registers as it tells: the node with what is held and gone, and who is told of that."""
    gone = () if known is None else tuple(_gone(known, told, state.durable.hold(known.name).device_uuids()))
    uuids = {device.uuid for device in gone}
    node = replace(
        told,
        info=replace(told.info, devices=(*told.info.devices, *gone)),
        unhealthy=tuple(replace(mark, is_gone=mark.uuid in uuids) for mark in told.unhealthy),
    )
    records: list[Record] = []
    if known is None or replace(node, version=known.version) != known:
        records.append(NodeRegistered(at=at, node=node))
    warned: list[JobWarned] = []
    for device in gone:
        if all(mark.uuid != device.uuid for mark in node.unhealthy):
            mark = UnhealthyDevice(uuid=device.uuid, reason=VANISHED, is_gone=True)
            records.append(DeviceMarked(at=at, node=node.name, device=mark))
            if known is not None and known.boot_id == node.boot_id:  # else what held it has ended with the old boot
                warned.extend(of_trouble(state, at, node.name, mark))
    warnings = tuple(bounded(state, warned))
    return Decision(records=(*records, *warnings), commands=tuple(tell_commands(state, warnings)))


def _gone(known: Node, told: Node, held: Collection[DeviceUuid]) -> Iterator[Device]:
    """What is held and was not told, each under its index, or behind all others where that is another device's now."""
    there = {device.uuid for device in told.info.devices}
    taken = {device.index for device in told.info.devices}
    for device in known.info.devices:
        if device.uuid not in there and device.uuid in held:
            index = device.index if device.index not in taken else max(taken) + 1
            taken.add(index)
            yield replace(device, index=index)


def _without_those_of_an_old_boot(state: State, node: Node, event: InventoryReported) -> Iterator[NodeRegistered]:
    """The node without gone devices that attempts of its old boot held: these end with this inventory."""
    hold = state.durable.hold(node.name)
    kept: set[DeviceUuid] = set()
    for key in hold.ranks:
        attempt = state.durable.jobs[key.job].attempt
        assert attempt is not None
        placement = attempt.ranks[key.rank].placement
        if placement.boot_id == event.boot_id:
            kept |= {device.uuid for device in placement.devices}
    over = {mark.uuid for mark in node.unhealthy if mark.is_gone} & (hold.device_uuids() - kept)
    if over:
        devices = tuple(device for device in node.info.devices if device.uuid not in over)
        unhealthy = tuple(mark for mark in node.unhealthy if mark.uuid not in over)
        without = replace(node, info=replace(node.info, devices=devices), unhealthy=unhealthy, is_lost=False)
        yield NodeRegistered(at=event.at, node=without)
