"""Rows of features on a real fleet: in `make test` every level once, in `make nightly` all pairs of the day's seed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.pairs.covering import covering_rows
from tests.pairs.features import Row
from tests.pairs.run import report, rows_that_can_run, run_rows

pytestmark = pytest.mark.slow

FIXED_SEED = 1
"""A failure of `make test` is then one of the change that it tests."""


async def test_a_job_with_any_feature_does_what_the_documents_say() -> None:
    await must_pass(FIXED_SEED, strength=1)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
async def test_any_two_features_of_a_job_work_together() -> None:
    await must_pass(datetime.now(UTC).toordinal(), strength=2)


async def must_pass(seed: int, strength: int) -> None:
    """Run the rows; a failure names the seed, and each row by the line that a person types."""
    rows: list[Row] = covering_rows(seed, strength=strength)
    rows, _ = rows_that_can_run(rows)
    results = await run_rows(rows, say=print)
    again = f"all of them again: make pairs SEED={seed} ARGS='--strength {strength}'"
    assert all(each.is_good for each in results), f"{report(results)}\n{again}"
