"""A drill of the size of CI. `make drill` runs longer ones, with other seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.drill import Order, drill
from tests.drills.links import check_permitted
from tests.several_nodes.network import Network, NotPermitted

SEED = 7
SECONDS = 90.0
"""How long things go wrong; with what it takes to settle the drill has four minutes."""


@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.nightly
async def test_a_drill_of_all_faults_breaks_no_rule(network: Network, tmp_path: Path) -> None:
    try:
        check_permitted()
    except NotPermitted as problem:
        pytest.skip(f"links of network namespaces cannot be impaired here: {problem}")
    report = await drill(Order(seed=SEED, seconds=SECONDS, node_count=3), tmp_path / "drill", network)
    assert report.is_good, f"\n{report}"
    # A drill in which nothing happened proves nothing.
    reasons = {attempt.reason for job in report.history.jobs.values() for attempt in job.attempts}
    outcomes = {job.outcome for job in report.history.jobs.values()}
    assert {"EXITED", "TIME_LIMIT", "EXIT_UNKNOWN"} <= reasons, report.summary()
    assert {"SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"} <= outcomes, report.summary()
    assert reasons & {"NODE_LOST", "FENCED"}, report.summary()
    assert report.history.hostile, report.summary()
    assert "asked for" in report.outsiders, report.summary()
    assert any(followed.streams for followed in report.history.followed), report.summary()
