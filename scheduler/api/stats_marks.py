"""Whether there are statistics of what a job's newest attempt used, without reading them."""

from ..state.attempts import Rank
from ..state.jobs import Job, rank_keys
from ..state.live import Live


def has_stats(job: Job, live: Live) -> bool:
    """Whether GetJobStats would have samples: told with an end, or by a node's newest beat of what runs."""
    attempt = job.attempt
    if attempt is None:
        return bool(job.past) and any(_is_read(rank) for rank in job.past[-1].ranks)
    keys = rank_keys(job, attempt)
    for key, rank in zip(keys, attempt.ranks, strict=True):
        node = live.nodes.get(rank.placement.node)
        if _is_read(rank) or (node is not None and any(told == key for told, _ in node.usages)):
            return True
    return False


def _is_read(rank: Rank) -> bool:
    return rank.exit is not None and rank.exit.use is not None and rank.exit.use.sample_count > 0
