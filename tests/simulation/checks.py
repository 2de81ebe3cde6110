"""What must be true of the whole simulated fleet, seen from above: processes are counted, bytes compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus
from node_agent.core.outcome import Stream
from scheduler.ports import Commit
from scheduler.state.attempts import Attempt, EndedAttempt, OutputStream
from scheduler.state.commands import Command, ForgetAttempt, LaunchAttempt, PrepareAttempt, StartAttempt
from scheduler.state.durable import Durable, Entity, EntityKey, key_of, load
from scheduler.state.ids import JobId, NodeName, RankKey, UserName
from scheduler.state.invariants import check_all, check_touched, versions_that_do_not_rise
from scheduler.state.jobs import Finished, Items, Job, Tally
from scheduler.state.nodes import Node
from scheduler.state.records import (
    AttemptEnded,
    AttemptFound,
    AttemptPlaced,
    AttemptReady,
    AttemptVoided,
    JobFinished,
    JobWarned,
    ResultsSettled,
    job_of,
)
from scheduler.state.results import ResultsOutcome
from scheduler.state.sessions.commands import SessionCommand
from scheduler.state.shares import WHOLE_MILLI
from scheduler.state.specs import Outcome
from scheduler.state.state import State
from scheduler.state.units import SECOND
from scheduler.state.warnings import JobWarning, WarningKind
from tests.core.fleet import HELD_AND_INDEXED
from tests.simulation.kept_checks import KeptChecks
from tests.simulation.lost_history import LostHistory, attempt_of, named
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.disks import SimulatedOutputs, SimulatedStore
    from tests.simulation.left import SimulatedPlace
    from tests.simulation.machine import Machine, Process
    from tests.simulation.scheduler import SchedulerProcess

FULL_CHECK_COMMITS = 100
"""Everything is checked after so many commits; after each one, what it touched."""

CLOCKS_AGREE = 0.97
"""How fast the slowest clock runs against true time, at least: the scheduler's is slewed by 1 %."""

MAY_OUTLIVE = frozenset({"ABANDONED", "NODE_LOST"})
"""Ends of a job for good whose process may live on for a while: nobody waits for it, and nothing replaces it."""

STREAMS = {Stream.STDOUT: OutputStream.STDOUT, Stream.STDERR: OutputStream.STDERR}


class Checks:
    """The eye of the simulation."""

    def __init__(
        self,
        world: World,
        store: SimulatedStore,
        outputs: SimulatedOutputs,
        machines: Mapping[str, Machine],
        place: SimulatedPlace,
    ) -> None:
        self._world = world
        self._store = store
        self._outputs = outputs
        self._machines = machines
        self._place = place
        self.processes: dict[RankKey, Process] = {}
        self._by_job: dict[int, list[Process]] = {}
        self._prepared: set[RankKey] = set()
        self._placed: dict[JobId, Attempt] = {}
        self._given_up_at_once: dict[JobId, Attempt] = {}
        self._warned: set[tuple[JobId, int, WarningKind, str]] = set()
        self._lost = LostHistory(store)
        self._settled: set[RankKey] = set()
        """Ranks of which a record said what became of what they left."""
        self.kept = KeptChecks(world, place.has, self._settled)

    # --- processes

    def process_begins(self, process: Process) -> None:
        """No attempt twice, no second attempt beside a living one, nothing on a device or CPU that is in use.

        The ranks of a gang live beside each other, each on a machine of its own.
        """
        key = process.key
        machine = process.machine
        self._world.note("{}: process {} begins", machine.name, process.key)
        if key in self.processes:
            raise Broken(f"attempt {key} is started a second time, on {machine.name}", key.job)
        for other in self._by_job.get(key.job, ()):
            is_another_rank = attempt_of(other.key) == attempt_of(key) and other.machine is not machine
            if other.is_alive and not is_another_rank and other.has_fence:
                raise Broken(
                    f"attempt {key} begins on {machine.name} while {other.key} lives on {other.machine.name}", key.job
                )
        beside = [other for other in machine.processes.values() if other.is_alive and other is not process]
        for other in beside:
            both = process.devices.keys() & other.devices.keys()
            if any(not process.devices[uuid] or not other.devices[uuid] for uuid in both):
                raise Broken(f"{key} and {other.key} both run on {sorted(both)} of {machine.name}", key.job)
        for uuid, milli in process.devices.items():
            given = milli + sum(other.devices.get(uuid, 0) for other in beside)
            if given > WHOLE_MILLI:
                raise Broken(f"{key} makes it {given} thousandths of {uuid} of {machine.name}", key.job)
        if process.cpus + sum(other.cpus for other in beside) > machine.info.cpus:
            raise Broken(f"{key} does not fit on the {machine.info.cpus} CPUs of {machine.name}", key.job)
        self.processes[key] = process
        self._by_job.setdefault(key.job, []).append(process)

    def left_is_deleted(self, key: RankKey) -> None:
        """Nothing that a rank left is deleted without a record that permits it."""
        if key in self.processes and key not in self._settled:
            raise Broken(f"what {key} left is deleted, and no record permits that", key.job)

    def prepared(self, key: RankKey) -> None:
        """A node says that it holds a rank ready."""
        self._prepared.add(key)

    # --- the store

    def committed(self, process: SchedulerProcess, before: Mapping[EntityKey, Entity], commit: Commit) -> None:
        """A transaction has become durable, and nothing has been decided since."""
        touched: dict[EntityKey, Entity | None] = {key_of(entity): entity for entity in commit.upserts}
        touched.update(dict.fromkeys(commit.deletes))
        state = process.state
        wrong = check_touched(state, touched, {job.id: job for job in commit.finished})
        versions = {key: entity.version for key, entity in before.items() if isinstance(entity, Job | Node)}
        wrong.extend(versions_that_do_not_rise(versions, touched))
        if self._store.commits % FULL_CHECK_COMMITS == 0:
            wrong.extend(check_all(state))
            wrong.extend(_differences(state.durable, load(iter(self._store.entities.values()))))
        if wrong:
            raise Broken("; ".join(wrong))
        for node in self._lost.follow(commit.records):
            self._lost.check_told(self._machines[node], self._store.finished)
        self._caps_hold(state)
        self._given_up_at_once = {}
        for record in commit.records:
            of = job_of(record)
            self.kept.committed(record, None if of is None else state.durable.jobs.get(of))
            match record:
                case AttemptPlaced(job=job, attempt=attempt):
                    self._placed[job] = attempt
                    self._nodes_take_it(state, job, attempt)
                case AttemptReady(job=job, rendezvous=rendezvous):
                    self._placed[job] = replace(self._placed[job], rendezvous=rendezvous)
                case AttemptFound(job=job, attempt=attempt):
                    self._placed[job] = attempt
                case AttemptEnded(job=job, ended=ended):
                    self._attempt_ended(job, ended, for_good=False)
                case JobFinished(job=job, finished=finished, ended=last):
                    if last is not None:
                        self._given_up_at_once[job] = self._placed[job]
                        self._attempt_ended(job, last, for_good=True)
                        self._is_true(job, finished, last)
                case ResultsSettled(key=key, outcome=outcome):
                    self._settled.add(key)
                    self._world.met.add(f"results {outcome.value}")
                    job_left = state.durable.jobs.get(key.job) or self._store.finished.get(key.job)
                    leaves = job_left is None or job_left.spec.results
                    if outcome is ResultsOutcome.STORED and leaves and key not in self._place.notes:
                        raise Broken(f"what {key} left is called stored, and is not", key.job)
                case JobWarned(job=job, warning=warning):
                    self._is_warned_in_time(state, job, warning)
                case AttemptVoided(job=job, number=number):
                    void = (number, self._placed[job].lineage)
                    has_run = any(attempt_of(process.key) == void for process in self._by_job.get(job, ()))
                    if has_run and (job, *void) not in self._lost.started_unknown:
                        raise Broken(f"attempt {job}/{number} is void and has run", job)

    def _nodes_take_it(self, state: State, job: JobId, attempt: Attempt) -> None:
        """A node that takes one user's jobs alone is given no others."""
        placed = state.durable.jobs.get(job)
        for name in {rank.placement.node for rank in attempt.ranks}:
            node = state.durable.nodes.get(name)
            accounts = None if node is None else node.info.job_accounts
            if accounts is not None and accounts.is_alone and placed is not None:
                self._world.met.add("a node of one user alone")
                if placed.user != accounts.owner:
                    raise Broken(
                        f"{placed.user}'s job is placed on node {name}, which is {accounts.owner}'s alone", job
                    )

    def _is_warned_in_time(self, state: State, job: JobId, warning: JobWarning) -> None:
        """Once an attempt of each kind and device, and never early, whatever starts anew and whatever clock is set."""
        for about in warning.about:
            said = (job, warning.attempt, warning.kind, about)
            if said in self._warned:
                raise Broken(f"job {job} is warned twice: {warning}", job)
            self._warned.add(said)
        warned = RankKey(job, warning.attempt, 0, self._placed[job].lineage)
        process = self.processes.get(warned)
        limit = state.durable.jobs[job].spec.time_limit if job in state.durable.jobs else None
        if warning.kind is WarningKind.TIME_LIMIT_NEAR and process is not None and limit is not None:
            ran = self._world.now - process.began_at
            least = limit / SECOND * int(warning.about[0].rstrip("%")) / 100
            if ran < least * CLOCKS_AGREE:
                raise Broken(f"after {ran:.1f} s job {job} is told: {warning.sentence}", job)

    def _caps_hold(self, state: State) -> None:
        """Nobody holds more than one user may."""
        milli: Counter[UserName] = Counter()
        jobs: Counter[UserName] = Counter()
        for job in state.durable.jobs.values():
            if job.attempt is not None and job.id not in self._lost.taken_up:
                devices = [device for rank in job.attempt.ranks for device in rank.placement.devices]
                milli[job.user] += sum(device.share_milli or WHOLE_MILLI for device in devices)
                jobs[job.user] += 1
        for array, live in state.durable.arrays.items():
            items = state.durable.jobs[array].items
            if items is not None and items.active_max:
                self._world.met.add("an array with a cap")
                taken_up = sum(item in self._lost.taken_up for item in live.apart)
                if live.active > items.active_max + taken_up:
                    raise Broken(f"array {array} runs {live.active} of {items.active_max} at a time", array)
        limits = state.limits
        for user in jobs:
            if limits.user_gpus_max and milli[user] > limits.user_gpus_max * WHOLE_MILLI:
                raise Broken(f"{user} holds {milli[user] / WHOLE_MILLI} of {limits.user_gpus_max} GPUs")
            if limits.user_jobs_max and jobs[user] > limits.user_jobs_max:
                raise Broken(f"{user} has {jobs[user]} of {limits.user_jobs_max} jobs at once")

    def _attempt_ended(self, job: JobId, ended: EndedAttempt, *, for_good: bool) -> None:
        """What is replaced is dead, by whatever way that came to be known; a fence has held. What ran has a start."""
        for key, rank in zip(ended.keys(job), ended.ranks, strict=True):
            is_told = rank.exit is not None and rank.exit.exit is not None
            if is_told and key in self.processes and rank.started_at is None:
                raise Broken(f"{key} has ended by {ended.reason}, ran, and has no start", job)
        for process in self._by_job.get(job, ()):
            if attempt_of(process.key) != (ended.number, ended.lineage):
                continue
            may_outlive = for_good and ended.reason in MAY_OUTLIVE
            if process.is_alive and not may_outlive and not self._is_given_up(process):
                raise Broken(f"{process.key} ended by {ended.reason} and lives on {process.machine.name}", job)
            if ended.output_is_complete and process.key in ended.keys(job):  # of a job that was found one rank is kept
                self._output_is_whole(process)

    def _is_given_up(self, process: Process) -> bool:
        """Whether it is one of those that are replaced as soon as their node is lost."""
        scheduler = self._world.scheduler
        node = scheduler.state.durable.nodes.get(NodeName(process.machine.name)) if scheduler is not None else None
        return not process.has_fence and (node is None or node.is_lost)

    def _is_true(self, job: JobId, finished: Finished, ended: EndedAttempt) -> None:
        """How a job ended is how its process did, of a gang the one of the rank that decides."""
        process = self.processes.get(ended.keys(job)[ended.deciding_rank])
        if finished.exit is not None and process is not None and _status_of(process.status) != finished.exit:
            raise Broken(f"job {job} ended with {finished.exit}, its process with {process.status}", job)

    def _output_is_whole(self, process: Process) -> None:
        key = process.key
        for stream, written in process.written.items():
            stored = self._outputs.synced_bytes(key, STREAMS[stream])
            if stored != written:
                raise Broken(
                    f"{stream.value} of {key}: {len(written)} bytes were written, {len(stored)} are stored, "
                    "and it is called complete",
                    key.job,
                )

    # --- a store that is put back

    def put_back(self) -> None:
        """The store is an older one: what it lacks, nodes may know."""
        self._placed.clear()
        self._warned.clear()
        self.kept.put_back(each for each in self._store.entities.values() if isinstance(each, Job))
        for _, record in self._store.story:
            match record:
                case AttemptPlaced(job=job, attempt=attempt) | AttemptFound(job=job, attempt=attempt):
                    self._placed[job] = attempt
                case AttemptReady(job=job, rendezvous=rendezvous):
                    self._placed[job] = replace(self._placed[job], rendezvous=rendezvous)
                case JobWarned(job=job, warning=warning):
                    self._warned.update((job, warning.attempt, warning.kind, about) for about in warning.about)
        self._lost.put_back(self.processes)

    # --- what leaves the scheduler

    def command_leaves(self, command: Command) -> None:
        """Only what is stored is acted on."""
        match command:
            case LaunchAttempt(key=key) | PrepareAttempt(launch=LaunchAttempt(key=key)):
                job = self._store.job(key.job)
                if job is None or job.attempt_count < key.attempt:
                    raise Broken(f"{key} is launched and its placement is not stored", key.job)
            case StartAttempt(key=key):
                job = self._store.job(key.job)
                # Whoever abandons it in the turn that starts it has a Kill sent behind the Start, on the same stream.
                attempt = (job.attempt if job is not None else None) or self._given_up_at_once.get(key.job)
                if attempt is None or named(attempt) != attempt_of(key) or attempt.rendezvous is None:
                    raise Broken(f"{key} is started and that its gang is ready is not stored", key.job)
                ranks = set(attempt.keys(key.job))
                if not ranks <= self._prepared:
                    raise Broken(f"{key} is started and {ranks - self._prepared} were never prepared", key.job)
            case ForgetAttempt(key=key):
                job = self._store.job(key.job)
                attempt = job.attempt if job is not None else None
                # Of a job that was found one rank is kept; its node's word of others is forgotten.
                if attempt is not None and attempt.has(key) and attempt.ranks[key.rank].exit is None:
                    raise Broken(f"{key} is forgotten and its end is not stored", key.job)
            case _:
                pass

    def session_told(self, process: SchedulerProcess, command: SessionCommand) -> None:
        """What leaves for gateways and workers; see session_checks.py."""

    def outcome(self, job: int) -> Outcome | None:
        """How a job ended, as the API would find it in the store."""
        stored = self._store.job(job)
        return stored.state.outcome if stored is not None and isinstance(stored.state, Finished) else None

    def is_stored(self, job: int) -> bool:
        """Whether the store has a job."""
        return self._store.job(job) is not None

    def acknowledged(self, first: int, count: int) -> None:
        """A person was told that jobs are accepted."""
        for job in range(first, first + count):
            if self._store.job(job) is None:
                raise Broken(f"job {job} was acknowledged and is not stored", job)

    # --- the end

    def unfinished(self) -> Iterator[str]:
        """What is not as it should be once everything works again and time has passed; nothing when all is done.

        Each is described only when it is asked for: who asks every few seconds wants to know no more than if there is
        one.
        """
        scheduler = self._world.scheduler
        if scheduler is None:
            yield "the scheduler is down"
            return
        durable, live = scheduler.state.durable, scheduler.state.live
        yield from (f"job {job.id} has not ended: {job.state}" for job in durable.jobs.values())
        yield from (f"{name} still holds {hold}" for name, hold in durable.holds.items())
        yield from (f"what {due.job}/{due.attempt} left is awaited" for due in durable.results_due.values())
        yield from (f"{name} is still cleaning {node.lingering}" for name, node in live.nodes.items() if node.lingering)
        for machine in self._machines.values():
            alive = (each for each in machine.processes.values() if each.is_alive)
            yield from (f"{each.key} still runs on {machine.name}" for each in alive)
            if not machine.is_gone:
                node, heard = durable.nodes.get(NodeName(machine.name)), live.nodes.get(NodeName(machine.name))
                if node is None or node.is_lost or heard is None or not heard.is_connected:
                    yield f"{machine.name} is there and not heard"
                yield from (f"{machine.name} still keeps {key}" for key in machine.disk.records)
                yield from (f"{machine.name} still has what {key} left" for key in machine.disk.left)
                if machine.agent is not None:
                    known = machine.agent.duties.inventory
                    yield from (f"{machine.name} still knows {entry.key}" for entry in known)

    def at_the_end(self) -> None:
        """All is done: everything once more."""
        scheduler = self._world.scheduler
        assert scheduler is not None
        wrong = check_all(scheduler.state)
        wrong.extend(_differences(scheduler.state.durable, load(iter(self._store.entities.values()))))
        if wrong:
            raise Broken("; ".join(wrong))
        scheduler.accounts.check(self._store)
        for key, process in self.processes.items():
            for stream, written in process.written.items():
                stored = self._outputs.synced_bytes(key, STREAMS[stream])
                if not written.startswith(stored):
                    raise Broken(f"{stream.value} of {key}: what is stored was never written", key.job)
        for job in self._store.finished.values():
            if job.items is not None:
                self._array_is_true(job, job.items)
            elif job.id in self._lost.told:
                pass  # of a job that the store lacks one rank tells
            elif isinstance(job.state, Finished) and job.state.outcome is Outcome.SUCCEEDED:
                self._has_succeeded(job)

    def _has_succeeded(self, job: Job) -> None:
        """Of a gang every rank has."""
        last = (job.past[-1].number, job.past[-1].lineage)
        runs = [process for process in self._by_job.get(job.id, ()) if attempt_of(process.key) == last]
        succeeded = [process for process in runs if process.status == ExitCode(code=0)]
        unsettled = [process.key for process in runs if job.spec.results and process.key not in self._settled]
        if unsettled:
            raise Broken(f"job {job.id} succeeded and nothing says what became of what {unsettled[0]} left", job.id)
        if not runs or len(succeeded) < max(len(runs), job.spec.resources.node_count):
            raise Broken(f"job {job.id} succeeded and {[str(process.key) for process in runs]} did not", job.id)

    def _array_is_true(self, array: Job, items: Items) -> None:
        """An array ended as its items did, each of which ended once, and not more failed to begin with than may."""
        ends = [self._store.job(item) for item in range(array.id + 1, array.id + 1 + items.indices.count)]
        states = [job.state for job in ends if job is not None and isinstance(job.state, Finished)]
        tally = Tally(array=array.id)
        for state in states:
            tally = tally.adding(state)
        told = items.ended
        names = ("succeeded", "failed", "timed_out", "cancelled", "highest_exit")
        if told is None or any(getattr(told, name) != getattr(tally, name) for name in names):
            raise Broken(f"array {array.id} tells {told}, its items make {tally}", array.id)
        self._world.met.add("an array that has ended")
        if any(state.reason == "MAX_FAILS" for state in states):
            self._world.met.add("an array that failed too often")
            if tally.failures < items.failures_max:
                raise Broken(f"array {array.id} was cut short after {tally.failures} failures", array.id)


def _differences(one: Durable, other: Durable) -> list[str]:
    differing = (name for name in HELD_AND_INDEXED if getattr(one, name) != getattr(other, name))
    return [f"{name}: what is stored makes another state" for name in differing]


def _status_of(status: ExitStatus | None) -> ExitCode | ExitSignal | None:
    match status:
        case ExitCode(code=code):
            return ExitCode(code=code)
        case ExitSignal(signal=number):
            return ExitSignal(signal=number)
        case None:
            return None
