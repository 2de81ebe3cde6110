"""A gang, a job over several nodes: all its ranks are prepared, then all are started; one that fails stops the others.

    AttemptPlaced ─▶ Prepare to all ─▶ ready from all ─▶ AttemptReady ─▶ Start to all, with where they meet

A node may take long to prepare its rank, as files or an image come, or an environment is made; it says so with each
beat. One that says nothing of its rank for 15 s, or that nothing moves for 10 min, ends the placement.

Until AttemptReady is stored no Start leaves, so that nothing can run, and a placement that comes to nothing is handed
back by Abort. From then on its number is used up: a rank that fails brings down the others by the grace rule, and how
it ended is how the job did.
"""

from gpufleet.jobs.runs import ExitCode, StopCause

from ..policy.admission import minimum_memory
from ..policy.shares import memory_to_find_bytes, shares_in
from ..state.attempts import Attempt, EndedAttempt, Placement, RankExit, Rendezvous
from ..state.commands import AbortAttempt, Command, LaunchAttempt, PrepareAttempt, StartAttempt, StopAttempt
from ..state.events import RankReady
from ..state.ids import NodeName, RankKey
from ..state.jobs import Job, Running, Starting, index_of, keyed_ranks, live_ranks, rank_keys
from ..state.kept import kept_by
from ..state.records import AttemptReady, AttemptStopping, AttemptVoided
from ..state.specs import InputFolder, KeptAway
from ..state.state import State
from ..state.units import MINUTE, NEVER, SECOND, Instant, Span, after
from .decision import NOTHING, Decision
from .live_ranks import live_attempt

AVOIDED_SPAN, AVOIDED_SPAN_MAX = Span(30 * SECOND), Span(10 * MINUTE)
"""A job is kept from a node that did not start it for so long at first, and at most."""
WHY_CHARS_MAX = 500
"""Of why it did not; the story has all of it."""


def launch_command(state: State, job: Job, attempt: Attempt, key: RankKey) -> Command:
    """The command that starts a rank of a placed attempt, or prepares it."""
    placement = attempt.ranks[key.rank].placement
    # Turns go on while the scheduler is away: a worker is fenced by its sessions' epochs, and not by its keeper.
    is_fenced = job.spec.is_requeueable and not job.spec.serves
    fence = (job.spec.requeue_fence or state.limits.requeue_fence) if is_fenced else None
    launch = LaunchAttempt(
        node=placement.node,
        key=key,
        spec=job.spec,
        user=job.user,
        placement=placement,
        fence=fence,
        min_memory_bytes=_memory_to_find(state, job, placement),
        node_count=len(attempt.ranks),
        nodes=tuple(rank.placement.node for rank in attempt.ranks),
        array=job.array,
        index=None if job.array is None else index_of(state.durable.jobs[job.array], job),
        shared_root=_root_of(state, placement.node) if job.spec.files else "",
        submitted_at=job.submitted_at,
        placed_at=attempt.placed_at,
        slot=attempt.slot,
        # A worker names itself by the number of its attempt.
        run_number=0 if job.spec.serves else attempt.number - job.void_count,
        kept=_kept_for(attempt, key.rank),
    )
    return PrepareAttempt(launch=launch) if attempt.is_gang else launch


def _kept_for(attempt: Attempt, rank: int) -> InputFolder | None:
    """What a rank finds of earlier attempts; None for nothing."""
    copy = kept_by(attempt.kept, rank)
    return None if copy is None or not copy.folder.entry_count else copy.folder


def _root_of(state: State, name: NodeName) -> str:
    node = state.durable.nodes.get(name)
    return "" if node is None else node.shared_root


def _memory_to_find(state: State, job: Job, placement: Placement) -> int:
    """Free memory that the launch expects on each of its devices, in bytes."""
    resources = job.spec.resources
    shares = shares_in(placement).values()
    if shares:
        return min(memory_to_find_bytes(share, resources) for share in shares)
    return minimum_memory(state, resources)


def late_at(state: State, attempt: Attempt, key: RankKey) -> Instant:
    """When a rank that is not ready is given up: its node says nothing of it, or that nothing of it moves."""
    asked_at, limits = max(attempt.placed_at, state.live.reads_since), state.limits
    told = state.live.preparing.get(key)
    if told is None:
        return after(asked_at, limits.prepare_span)
    silent_at = after(max(asked_at, told.told_at), limits.prepare_span)
    return min(silent_at, after(max(attempt.placed_at, told.moved_at), limits.prepare_still_span))


def prepared_by(state: State, job: Job, attempt: Attempt) -> Instant:
    """Until when something must be heard of the ranks of a gang that are not ready."""
    unready = (key for key in rank_keys(job, attempt) if key not in state.live.ready)
    return min((late_at(state, attempt, key) for key in unready), default=NEVER)


def started_by(state: State, rendezvous: Rendezvous) -> Instant:
    """Until when every rank of a gang that was ready must have started."""
    return after(max(rendezvous.at, state.live.reads_since), state.limits.gang_start_span)


def on_rank_ready(state: State, event: RankReady) -> Decision:
    """A rank is prepared; with the last one the gang is started. What nobody waits for is taken back."""
    found = live_attempt(state, event.node, event.key)
    if found is None:
        return Decision(commands=(AbortAttempt(node=event.node, key=event.key),))
    job, attempt = found
    if not isinstance(job.state, Starting) or attempt.ranks[event.key.rank].started_at is not None:
        return NOTHING
    if attempt.rendezvous is not None:
        return _ready_again(state, event, job, attempt, attempt.rendezvous)
    keys = rank_keys(job, attempt)
    if not attempt.is_gang or any(key not in state.live.ready for key in keys):
        return NOTHING
    rendezvous = Rendezvous(
        address=_address_of(state, attempt.ranks[0].placement.node), port=state.live.ready[keys[0]], at=event.at
    )
    record = AttemptReady(at=event.at, job=job.id, rendezvous=rendezvous)
    return Decision(records=(record,), commands=tuple(start_command(attempt, rendezvous, key) for key in keys))


def _ready_again(state: State, event: RankReady, job: Job, attempt: Attempt, rendezvous: Rendezvous) -> Decision:
    """Its node had forgotten that it was prepared, and was asked again while the others were started."""
    if event.key.rank == 0 and event.master_port != rendezvous.port:
        why = f"rank 0 cannot be reached any more where the others were sent ({event.node} was started again)"
        return stop_others(state, event.at, job, attempt, 0, why)
    return Decision(commands=(start_command(attempt, rendezvous, event.key),))


def _address_of(state: State, node: NodeName) -> str:
    """The address by which other nodes reach this one: what its agent says, else where it calls from."""
    known = state.durable.nodes[node]
    return known.info.advertise_address or known.address or known.info.hostname


def start_command(attempt: Attempt, rendezvous: Rendezvous, key: RankKey) -> StartAttempt:
    """The command that lets a prepared rank run."""
    return StartAttempt(
        node=attempt.ranks[key.rank].placement.node,
        key=key,
        master_address=rendezvous.address,
        master_port=rendezvous.port,
    )


def handed_back(
    at: Instant,
    job: Job,
    attempt: Attempt,
    node: NodeName,
    reason: str,
    message: str,
    avoided: tuple[NodeName, ...] = (),
) -> Decision:
    """A gang that does not come about, because of this node: its devices are free, and the job is placed again.

    For a while it is not placed on those that are `avoided`; they are open to all others.
    """
    record = AttemptVoided(
        at=at,
        job=job.id,
        number=attempt.number,
        node=node,
        reason=reason,
        message=message,
        kept_away=tuple(kept_away(at, job, each, reason, message) for each in avoided),
    )
    return Decision(records=(record,), commands=abort_commands(job, attempt))


def kept_away(at: Instant, job: Job, node: NodeName, reason: str, message: str) -> KeptAway:
    """How long a job is kept from a node that did not start it: for twice as long each time."""
    tries = 1 + next((each.tries for each in job.spec.resources.kept_away if each.node == node), 0)
    pause = min(AVOIDED_SPAN_MAX, AVOIDED_SPAN << min(tries - 1, 10))
    return KeptAway(
        node=node, tries=tries, reason=reason, message=message[:WHY_CHARS_MAX], until=after(at, Span(pause))
    )


def abort_commands(job: Job, attempt: Attempt, but: int | None = None) -> tuple[Command, ...]:
    """Take back what the nodes prepared, or may have; `but` is a rank that is over already."""
    return tuple(
        AbortAttempt(node=rank.placement.node, key=key) for key, rank in keyed_ranks(job, attempt) if key.rank != but
    )


def has_failed(exit_: RankExit) -> bool:
    """Whether a rank that ended so brings down its gang; one that exits with 0 lets the others go on."""
    return exit_.exit != ExitCode(code=0) or exit_.stop_cause is not None


def unstarted(state: State, job: Job, attempt: Attempt) -> list[int]:
    """The ranks of which neither a start nor an end was heard."""
    return [
        key.rank for key, rank in live_ranks(job, attempt) if rank.started_at is None and key not in state.live.exits
    ]


def stop_others(
    state: State, at: Instant, job: Job, attempt: Attempt, failed: int, why: str, *, has_ended: bool = True
) -> Decision:
    """Give the other ranks the grace rule because one has failed; nothing where no other one lives, or all stop.

    `has_ended` False: the failed rank may live, too, and is stopped with them.
    """
    if not attempt.is_gang or not isinstance(job.state, Starting | Running):
        return NOTHING
    waiting = [(key, rank) for key, rank in live_ranks(job, attempt) if key not in state.live.exits]
    if not any(key.rank != failed or not has_ended for key, _ in waiting):
        return NOTHING
    record = AttemptStopping(at=at, job=job.id, cause=StopCause.GANG, reason=why, failed_rank=failed)
    stops = (
        StopAttempt(node=rank.placement.node, key=key, cause=StopCause.GANG, grace=job.spec.grace)
        for key, rank in waiting
    )
    return Decision(records=(record,), commands=tuple(stops))


def rank_words(attempt: Attempt | EndedAttempt, rank: int) -> str:
    """A rank of a gang and its node, for people."""
    return f"rank {rank} on node {attempt.ranks[rank].placement.node}"


def exit_words(exit_: RankExit) -> str:
    """How a rank ended, for people."""
    match exit_.exit:
        case ExitCode(code=code):
            return exit_.message or f"exited with code {code}"
        case None:
            return f"{exit_.reason}: {exit_.message}" if exit_.message else exit_.reason
        case signalled:
            return exit_.message or f"was ended by signal {signalled.signal}"
