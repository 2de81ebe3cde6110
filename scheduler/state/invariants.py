"""What must always be true of the state, as checks that answer what is wrong.

`check_all` looks at everything and builds the indexes anew; its cost is that of a start. `check_touched` looks only at
what one decision touched, so that a simulation can ask after every step. Neither changes anything.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import pairwise

from .attempts import Attempt
from .durable import Durable, Entity, EntityKey, load
from .ids import DeviceUuid, JobId, NodeName, RankKey
from .indexes.equal_jobs import EqualJobs
from .indexes.indexes import Indexes, ItemsLive, NodeHold
from .indexes.slots import slot_of
from .jobs import ATTEMPTS_KEPT, Deferred, Divided, Finished, Held, Job, Queued, Running, Starting, keyed_ranks
from .live import Live
from .nodes import Node
from .results import ResultsDue
from .shares import WHOLE_MILLI
from .specs import GpuMode
from .state import State
from .warnings import DAMAGES_KEPT, WARNINGS_KEPT, WarningKind, is_told


def check_all(state: State) -> list[str]:
    """Everything that is wrong with a state; empty when nothing is."""
    durable = state.durable
    return [
        *(wrong for job in durable.jobs.values() for wrong in _of_job(durable, job)),
        *(wrong for each in durable.jobs.entities() if isinstance(each, EqualJobs) for wrong in _of_equals(each)),
        *(wrong for node in durable.nodes.values() for wrong in _of_node(durable, node)),
        *(wrong for due in durable.results_due.values() for wrong in _of_results(durable, due)),
        *_of_indexes(durable),
        *_of_live(durable, state.live),
    ]


def check_touched(state: State, touched: Mapping[EntityKey, Entity | None], finished: Mapping[JobId, Job]) -> list[str]:
    """What is wrong with what decisions touched: `Durable.touched` and `Durable.finished`, or a commit made of them."""
    durable = state.durable
    wrong: list[str] = []
    nodes: dict[NodeName, None] = {}
    for (kind, name), entity in touched.items():
        match entity:
            case Job():
                wrong.extend(_of_job(durable, entity))
                wrong.extend(_of_place_in_queue(durable, entity))
                nodes.update(dict.fromkeys(_nodes_of(entity)))
            case Node():
                nodes[entity.name] = None
            case ResultsDue():
                wrong.extend(_of_results(durable, entity))
            case EqualJobs():
                wrong.extend(_of_equals(entity))
                if durable.jobs.equals_from(entity.first.id) != entity:
                    wrong.append(f"equal jobs {name}: what was touched is not what is kept")
            case None if kind == "job":
                wrong.extend(_of_gone_job(durable, JobId(int(name)), finished))
            case _:
                pass
    for node_name in nodes:
        node = durable.nodes.get(node_name)
        wrong.extend(_of_hold(durable, node_name) if node is None else _of_node(durable, node))
    return wrong


def versions_that_do_not_rise(
    before: Mapping[EntityKey, int], touched: Mapping[EntityKey, Entity | None]
) -> Iterator[str]:
    """Touched entities whose version is not above the one stored before."""
    for key, entity in touched.items():
        if isinstance(entity, Job | Node) and key in before and entity.version <= before[key]:
            yield f"{key[0]} {key[1]}: version {entity.version} follows {before[key]}"


def _of_job(durable: Durable, job: Job) -> Iterator[str]:
    name = f"job {job.id}"
    if durable.jobs.get(job.id) != job:
        yield f"{name}: what was touched is not what is kept"
    if job.id >= durable.counters.next_job:
        yield f"{name}: its id is to be given again (next is {durable.counters.next_job})"
    if isinstance(job.state, Finished):
        yield f"{name}: has ended and is kept as live"
    numbers = [ended.number for ended in job.past]
    if any(later <= earlier for earlier, later in pairwise(numbers)) or len(numbers) > ATTEMPTS_KEPT:
        yield f"{name}: its ended attempts are {numbers}"
    if numbers and numbers[-1] > job.attempt_count:
        yield f"{name}: attempt {numbers[-1]} has ended and {job.attempt_count} were made"
    if isinstance(job.state, Divided):
        yield from _of_array(durable, job, job.state)
        return
    yield from _of_gpu_choice(job)
    waits = bool(job.unmet) or job.begins_at is not None
    if waits != isinstance(job.state, Deferred) and not isinstance(job.state, Held):
        yield f"{name}: is {job.state} and waits for {job.unmet} and {job.begins_at}"
    if job.attempt is not None:
        yield from _of_attempt(durable, job, job.attempt)
    yield from _of_warnings(job)


def _of_warnings(job: Job) -> Iterator[str]:
    """They are of the newest attempt, in the order of time, few, and none says again what others have said."""
    warnings = job.warnings
    damages = sum(each.kind is WarningKind.OUTPUT_DAMAGED for each in warnings)
    is_many = damages > DAMAGES_KEPT or len(warnings) - damages > WARNINGS_KEPT
    if is_many or any(each.attempt != job.attempt_count for each in warnings):
        yield f"job {job.id}: at attempt {job.attempt_count} its warnings are {warnings}"
    if any(later.at < earlier.at for earlier, later in pairwise(warnings)):
        yield f"job {job.id}: its warnings are out of order: {warnings}"
    for number, each in enumerate(warnings):
        if each.about and all(is_told(warnings[:number], each.kind, about) for about in each.about):
            yield f"job {job.id}: was warned twice: {each}"


def _of_gpu_choice(job: Job) -> Iterator[str]:
    """What it does without it prefers, and has fallen back from; AUTO is decided before a job is kept."""
    choice = job.spec.gpu_choice
    if choice is not None and choice.mode is GpuMode.AUTO:
        yield f"job {job.id}: nobody decided whether it runs on a GPU"
    does_without = choice is not None and choice.mode is GpuMode.PREFERRED and not job.spec.resources.gpus
    if does_without != (job.fell_back is not None):
        yield f"job {job.id}: {job.fell_back}, and it asks for {job.spec.resources.gpus} GPUs as {choice}"


def _of_array(durable: Durable, array: Job, state: Divided) -> Iterator[str]:
    """An array accounts for each of its items once, and those that never differed wait as it says."""
    name, items = f"array {array.id}", array.items
    if items is None or items.ended is not None:
        yield f"{name}: has no items, or they have ended, and it has not"
        return
    count, tally = items.indices.count, durable.tally(array.id)
    live, alike = durable.arrays.get(array.id, ItemsLive()), durable.items_alike(array.id)
    if sum(live.counts.values()) + tally.ended != count or tally.ended == count:
        yield f"{name}: of {count} items {live.counts} live and {tally} have ended"
    if len(live.apart) + (0 if alike is None else len(alike)) != sum(live.counts.values()):
        yield f"{name}: {live} are noted, {alike} are alike"
    if any(not array.id < item <= array.id + count or durable.jobs[item].array != array.id for item in live.apart):
        yield f"{name}: {sorted(live.apart)} are not its items"
    if (None if alike is None else alike.first.state) != state.rest:
        yield f"{name}: its rest is {state.rest}, its items are {alike}"
    if alike is not None and any(getattr(array, field) != getattr(alike.first, field) for field in _SHARED):
        yield f"{name}: differs from its items, {alike.first}"
    # What nodes told of since a gap goes on, whatever else the store knows to be active.
    may_exceed = durable.gap is not None and array.id < durable.gap.jobs_below
    if items.active_max and live.active > items.active_max and not may_exceed:
        yield f"{name}: {live.active} of its items are active, at most {items.active_max} may be"
    if items.failures_max and tally.failures >= items.failures_max and alike is not None:
        yield f"{name}: {tally.failures} items have failed, and others still wait"


_SHARED = ("user", "spec", "band", "submitted_at", "eligible_at", "unmet", "begins_at", "fell_back")
"""What an array and those of its items have in common that never differed."""


def _of_equals(equal: EqualJobs) -> Iterator[str]:
    name = f"equal jobs {equal.first.id}"
    if not isinstance(equal.first.state, Queued | Deferred | Held) or equal.first.past or equal.first.items:
        yield f"{name}: they are {equal.first.state}"
    if not equal.spans or any(end <= begin for begin, end in equal.spans):
        yield f"{name}: their spans are {equal.spans}"
    if any(later[0] <= earlier[1] for earlier, later in pairwise(equal.spans)):
        yield f"{name}: their spans touch or are not in order: {equal.spans}"


def _of_attempt(durable: Durable, job: Job, attempt: Attempt) -> Iterator[str]:
    name = f"attempt {job.id}/{attempt.number}"
    if attempt.number != job.attempt_count:
        yield f"{name}: is live and {job.attempt_count} attempts were made"
    if any(ended.number >= attempt.number for ended in job.past):
        yield f"{name}: is live and has ended"
    if all(rank.exit is not None for rank in attempt.ranks):
        yield f"{name}: is live and every rank of it has ended"
    all_started = all(rank.started_at is not None for rank in attempt.ranks)
    if isinstance(job.state, Running) and not all_started:
        yield f"{name}: runs and not every rank has started"
    if isinstance(job.state, Starting) and all_started:
        yield f"{name}: is starting and every rank has started"
    yield from _of_gang(job, attempt, name)
    for key, rank in keyed_ranks(job, attempt):
        node = durable.nodes.get(rank.placement.node)
        if rank.exit is not None:
            continue
        if node is None:
            yield f"rank {key}: is live on node {rank.placement.node}, which is unknown"
        elif node.agent_id != rank.placement.agent_id:
            yield f"rank {key}: is live under agent {rank.placement.agent_id}, the node is {node.agent_id}'s"
        if key not in durable.hold(rank.placement.node).ranks:
            yield f"rank {key}: is live and holds nothing"


def _of_gang(job: Job, attempt: Attempt, name: str) -> Iterator[str]:
    """A gang runs on as many nodes as it has ranks, and nothing of it runs before all were prepared."""
    if attempt.rendezvous is not None and not attempt.is_gang:
        yield f"{name}: has a single rank and a rendezvous"
    if not attempt.is_gang:
        return
    nodes = {rank.placement.node for rank in attempt.ranks}
    if len(nodes) != len(attempt.ranks):
        yield f"{name}: has {len(attempt.ranks)} ranks on {len(nodes)} nodes"
    wanted = job.spec.resources.node_count
    if wanted and len(nodes) != wanted:
        yield f"{name}: is on {len(nodes)} nodes and asks for {wanted}"
    if sum(len(rank.placement.devices) for rank in attempt.ranks) != job.spec.resources.gpus:
        yield f"{name}: does not have the {job.spec.resources.gpus} devices that it asks for"
    if attempt.rendezvous is None:
        if not isinstance(job.state, Starting):
            yield f"{name}: is {type(job.state).__name__} and was never ready"
        if any(rank.started_at is not None or rank.exit is not None for rank in attempt.ranks):
            yield f"{name}: a rank of it has run, and not all were ready"


def _of_results(durable: Durable, due: ResultsDue) -> Iterator[str]:
    """What is awaited was left by ranks that ran and have ended, each on its node."""
    name = f"results of {due.job}/{due.attempt}"
    if not due.ranks or list(due.ranks) != sorted(set(due.ranks)) or not 0 <= due.ranks[-1] < len(due.nodes):
        yield f"{name}: of {len(due.nodes)} ranks {due.ranks} are awaited"
        return
    attempt = durable.jobs[due.job].attempt if due.job in durable.jobs else None
    if attempt is None or (attempt.number, attempt.lineage) != (due.attempt, due.lineage):
        return
    for number in due.ranks:
        rank = attempt.ranks[number]
        if rank.exit is None or rank.started_at is None or rank.placement.node != due.nodes[number]:
            yield f"{name}: rank {number} is awaited of node {due.nodes[number]}, and it is {rank}"


def _of_place_in_queue(durable: Durable, job: Job) -> Iterator[str]:
    for band in durable.lines.of_band:
        is_there = durable.lines.holds(job, band)
        if is_there != (isinstance(job.state, Queued) and band == job.band):
            yield f"job {job.id}: is {'' if is_there else 'not '}in the line of band {band.name.lower()}"


def _of_gone_job(durable: Durable, job_id: JobId, finished: Mapping[JobId, Job]) -> Iterator[str]:
    if job_id in durable.jobs:
        yield f"job {job_id}: was dropped and is kept"
    job = finished.get(job_id)
    if job is None:
        yield f"job {job_id}: was dropped and has not ended"
        return
    if not isinstance(job.state, Finished):
        yield f"job {job_id}: is among those that ended and is {job.state}"
    yield from _of_place_in_queue(durable, job)
    for node in _nodes_of(job):
        if any(key.job == job_id for key in durable.hold(node).ranks):
            yield f"job {job_id}: has ended and holds something on node {node}"


def _nodes_of(job: Job) -> Iterator[NodeName]:
    """Nodes that a job holds, or held last."""
    ranks = job.attempt.ranks if job.attempt is not None else job.past[-1].ranks if job.past else ()
    for rank in ranks:
        yield rank.placement.node


def _of_node(durable: Durable, node: Node) -> Iterator[str]:
    hold = durable.hold(node.name)
    # What a node tells to run since a gap goes on, beside what has ended there and holds its part until its output is
    # looked for.
    may_exceed = durable.gap is not None and any(key.job < durable.gap.jobs_below for key in hold.ranks)
    if hold.cpus > node.info.cpus and not may_exceed:
        yield f"node {node.name}: {hold.cpus} of {node.info.cpus} CPUs are given"
    if hold.memory_bytes > node.info.memory_bytes and not may_exceed:
        yield f"node {node.name}: {hold.memory_bytes} of {node.info.memory_bytes} bytes of memory are given"
    devices = {device.uuid: device for device in node.info.devices}
    unknown = (hold.devices.keys() | hold.shares.keys()) - devices.keys()
    if unknown:
        yield f"node {node.name}: devices are given that it does not have: {sorted(unknown)}"
    for uuid in hold.shares.keys() & devices.keys():
        given_bytes = sum(share.memory_bytes for share in hold.shares[uuid].values())
        if given_bytes > devices[uuid].memory_bytes:
            yield f"device {uuid}: shares of {given_bytes} of its {devices[uuid].memory_bytes} bytes are given"
    yield from _of_hold(durable, node.name)


def _of_hold(durable: Durable, name: NodeName) -> Iterator[str]:
    """What is noted as held on a node is what its ranks were given, each device once."""
    hold = durable.hold(name)
    again = NodeHold()
    for key in hold.ranks:
        job = durable.jobs.get(key.job)
        if job is None or job.attempt is None or not job.attempt.has(key):
            yield f"node {name}: {key} holds something and is not live"
            continue
        yield from _take(again, key, job.attempt)
    if again != hold:
        yield f"node {name}: {hold} is noted as held, {again} is"
    for slot, keys in hold.slots.items():
        attempts = [job.attempt for key in keys if (job := durable.jobs.get(key.job)) is not None]
        if len({attempt.ranks[0].placement for attempt in attempts if attempt is not None}) > 1 and len(keys) > 1:
            yield f"node {name}: the attempts of slot {slot} have unlike placements: {attempts}"


def _take(hold: NodeHold, key: RankKey, attempt: Attempt) -> Iterator[str]:
    placement = attempt.ranks[key.rank].placement
    hold.ranks[key] = None
    of_slot = hold.slots.setdefault(slot_of(key, attempt), {})
    of_slot[key] = None
    if len(of_slot) > 1:
        hold.devices.update((device.uuid, min(of_slot).job) for device in placement.devices)
        return
    hold.cpus += placement.cpus
    hold.memory_bytes += placement.memory_bytes
    for device in placement.devices:
        if device.uuid in hold.devices:
            yield f"device {device.uuid}: is given to job {hold.devices[device.uuid]} and to job {key.job}"
        beside = hold.shares.get(device.uuid, {})
        if device.share is None:
            if beside:
                yield f"device {device.uuid}: is given whole to job {key.job} and in shares to jobs {sorted(beside)}"
            hold.devices[device.uuid] = key.job
            continue
        if key.job in beside:
            yield f"device {device.uuid}: is shared twice by job {key.job}"
        shares = hold.shares.setdefault(device.uuid, {})
        shares[key.job] = device.share
        given = sum(share.milli for share in shares.values())
        if given > WHOLE_MILLI:
            yield f"device {device.uuid}: {given} thousandths of it are given, to jobs {sorted(shares)}"


def _of_indexes(durable: Durable) -> Iterator[str]:
    """Every index is what a start would build from the entities."""
    try:
        again = load(durable.entities())
    except AssertionError as problem:
        yield f"the entities do not load: {problem}"
        return
    if again.lines != durable.lines:
        yield f"the lines are {durable.lines}, the jobs make {again.lines}"
    for lines in (of_user for users in durable.lines.of_band.values() for of_user in users.values()):
        if lines.heads() != sorted((line[0], 0, number) for number, line in enumerate(lines.values())):
            yield f"the first of the lines are {lines.heads()}, the lines are {lines}"
    for index in ("tallies", *(each.name for each in fields(Indexes) if each.name not in _LOOKED_AT_APART)):
        if getattr(again, index) != getattr(durable, index):
            yield f"{index}: is {getattr(durable, index)}, the jobs make {getattr(again, index)}"
    if again.holds != durable.holds:
        yield f"the holds are {durable.holds}, the jobs make {again.holds}"
    owners: dict[DeviceUuid, NodeName] = {}
    for name, hold in durable.holds.items():
        for uuid in (*hold.devices, *hold.shares):
            if uuid in owners:
                yield f"device {uuid}: is given on node {owners[uuid]} and on node {name}"
            owners[uuid] = name


_LOOKED_AT_APART = ("lines", "holds", "hold_changes")
"""Of the indexes; how often holds have changed since a start is no index."""


def _of_live(durable: Durable, live: Live) -> Iterator[str]:
    ranks = {key for hold in durable.holds.values() for key in hold.ranks}
    for key in live.exits.keys() - ranks:
        yield f"rank {key}: its end is waited for and it is not live"
    for key in live.ready:
        job = durable.jobs.get(key.job)
        attempt = job.attempt if job is not None and isinstance(job.state, Starting) else None
        if key not in ranks or attempt is None or attempt.rendezvous is not None:
            yield f"rank {key}: is ready, and nobody waits for it"
    for key in live.synced.keys() - ranks:
        yield f"rank {key}: its output is followed and it is not live"
    for name in live.nodes.keys() - durable.nodes.keys():
        yield f"node {name}: is heard and unknown"
    for name, node in live.nodes.items():
        for key in sorted(node.lingering & durable.hold(name).ranks.keys()):
            yield f"rank {key}: is live on node {name} and is to be ended there"
