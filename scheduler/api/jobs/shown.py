"""A job as its message says it, with what is known beside it: whether there are statistics, why its output waits."""

from gpufleet.v1 import job_pb2

from ...state.attempts import Rank
from ...state.ids import RankKey
from ...state.jobs import Job, Starting, keyed_ranks
from ...state.live import Live
from ...state.state import State
from ...wire.convert_jobs import job_proto
from ...wire.groups.convert import show_group
from ..sight import Sight
from .arrays import show_items

SETUP_FAILED = "SETUP_FAILED"
NODES_SHOWN = 3
"""Nodes of a gang of which it is told what they prepare."""


def shown_job(
    job: Job, view: State, output_error: str, sight: Sight, *, position: int = 0, omit_env: bool = False
) -> job_pb2.Job:
    """A job as who has this `sight` may see it now.

    `output_error` says why no output can be stored here, empty when it can.
    """
    message = job_proto(job, position=position, omit_env=omit_env)
    sight.hide(message.spec, job.user)
    show_items(message, view.durable, job)
    show_group(message, view.durable, job)
    message.has_stats = has_stats(job, view.live)
    message.output_blocked = output_blocked(job, view, output_error)
    message.setting_up = setting_up(job, view) if sight.reads(job.user) else ""
    if not sight.reads(job.user):
        _hide_setup(message)
    return message


def has_stats(job: Job, live: Live) -> bool:
    """Whether GetJobStats would have samples: told with an end, or by a node's newest beat of what runs."""
    attempt = job.attempt
    if attempt is None:
        return bool(job.past) and any(_is_read(rank) for rank in job.past[-1].ranks)
    for key, rank in keyed_ranks(job, attempt):
        node = live.nodes.get(rank.placement.node)
        if _is_read(rank) or (node is not None and any(told == key for told, _ in node.usages)):
            return True
    return False


def _is_read(rank: Rank) -> bool:
    return rank.exit is not None and rank.exit.use is not None and rank.exit.use.sample_count > 0


def _hide_setup(message: job_pb2.Job) -> None:
    """Take out what was written where an environment could not be made: that is output."""
    ended: list[job_pb2.Job | job_pb2.Attempt | job_pb2.PlacedRank] = [message, *message.attempts]
    ended += [rank for attempt in message.attempts for rank in attempt.ranks]
    for each in ended:
        if each.exit_reason == SETUP_FAILED:
            each.exit_message = "its environment could not be made"


def setting_up(job: Job, view: State) -> str:
    """What its nodes do for it before it runs, one sentence; of a gang node by node. Empty where none does."""
    if job.attempt is None or not isinstance(job.state, Starting):
        return ""
    does = {rank.placement.node: _does(view.live, key) for key, rank in keyed_ranks(job, job.attempt)}
    if len(does) == 1:
        return next(iter(does.values()))
    told = [f"{node}: {what}" for node, what in does.items() if what]
    more = f"; {len(told) - NODES_SHOWN} more nodes" if len(told) > NODES_SHOWN else ""
    return f"{'; '.join(told[:NODES_SHOWN])}{more}"


def _does(live: Live, key: RankKey) -> str:
    told = live.preparing.get(key)
    return live.setting_up.get(key, "") or ("" if told is None else told.message)


def output_blocked(job: Job, view: State, output_error: str) -> str:
    """One sentence; empty where its output goes on, and of a job that does not run.

    `output_error` says why no output can be stored here, empty when it can. Of an array it is the sentence of an item.
    """
    if job.items is not None:
        return _of_array(job, view, output_error)
    if job.attempt is None or isinstance(job.state, Starting):
        return ""
    for key, rank in keyed_ranks(job, job.attempt):
        if key in view.live.blocked:
            return _held(key, rank.placement.node, view, output_error)
    if output_error and any(rank.exit is None for rank in job.attempt.ranks):
        return _unstored(output_error)
    return ""


def _held(key: RankKey, node: str, view: State, output_error: str) -> str:
    also = f"; the scheduler cannot store output: {output_error}" if output_error else ""
    return f"it is held in its write until there is room on node {node}: {view.live.blocked[key]}{also}"


def _of_array(array: Job, view: State, output_error: str) -> str:
    items = view.durable.arrays.get(array.id)
    if items is None or not items.active:
        return ""
    for key in view.live.blocked:
        if key.job in items.apart:
            return output_blocked(view.durable.jobs[key.job], view, output_error)
    return _unstored(output_error) if output_error else ""


def _unstored(output_error: str) -> str:
    return f"what it writes waits on its node, as the scheduler cannot store it: {output_error}"
