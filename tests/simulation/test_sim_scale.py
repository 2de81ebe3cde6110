"""The replay at scale, in a small size: every job ends, and nothing that must be true of the state is broken."""

from __future__ import annotations

from bench.sim_scale import replay


def test_a_small_replay_ends_every_job_and_leaves_an_empty_fleet() -> None:
    done = replay(nodes=10, jobs=400, seed=1)
    assert (done.submitted, done.ended) == (400, 400)
    assert done.decisions > 3 * 400
    assert done.running_max > 10
