"""What an upgrade drill draws and what it judges; and one of the size of CI. `make upgrade-drill` runs longer ones."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.drills.conftest import network as network
from tests.drills.upgrades import two_versions
from tests.drills.upgrades.two_versions import NEWER, OLDER, Version, newer, older
from tests.drills.upgrades.upgrade_drill import UpgradeDrill, digest_of
from tests.drills.upgrades.upgrade_plan import GATEWAY, SCHEDULER, Move, Step, UpgradeOrder
from tests.several_nodes.network import Network

SEED = 16


def test_a_seed_draws_an_order_in_which_all_become_newer_and_all_but_the_scheduler_go_back_and_forth() -> None:
    order = UpgradeOrder(seed=SEED, rounds=2)
    plan = order.plan()
    assert plan == UpgradeOrder(seed=SEED, rounds=2).plan() != UpgradeOrder(seed=SEED + 1, rounds=2).plan()
    others = {"n1", "n2", GATEWAY}
    assert {each.program for each in plan[:4]} == others | {SCHEDULER}
    assert {each.move for each in plan[:4]} == {Move.TO_NEWER}
    for begin in (4, 11):
        back, forth = set(plan[begin : begin + 4]), plan[begin + 4 : begin + 7]
        assert back == {Step(each, Move.TO_OLDER) for each in others} | {Step(SCHEDULER, Move.REFUSED)}
        assert set(forth) == {Step(each, Move.TO_NEWER) for each in others}
    assert len(plan) == 18


def test_what_a_store_holds_has_a_digest_that_every_change_of_a_row_or_a_table_changes(tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    found = []
    for change in ("CREATE TABLE jobs (id)", "INSERT INTO jobs VALUES (1)", "CREATE TABLE audit (id)"):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(change)
        found.append(digest_of(database))
    assert len(set(found)) == 3 and digest_of(database) == found[-1]


def test_people_are_judged_by_their_own_jobs_and_by_every_job_that_ran_twice(tmp_path: Path, network: Network) -> None:
    versions = (Version(OLDER, tmp_path), Version(NEWER, tmp_path))
    drill = UpgradeDrill(UpgradeOrder(seed=SEED, nodes=1), tmp_path, network, versions, lambda line: None)
    (tmp_path / f"events-{OLDER}.jsonl").write_text(
        json.dumps({"at": 0.0, "job": 1, "began": 1.0, "acknowledged": 1.5}) + "\n"
    )
    (tmp_path / "runs").write_text("1.1\n2.1\n3.1\n3.1\n")
    assert dict(drill.evidence_of(versions[0]).runs) == {1: 1, 3: 2}


def test_a_clone_that_lacks_the_release_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "tests" / "releases" / OLDER
    kept.mkdir(parents=True)
    (kept / "commit").write_text("0123456789" * 4)
    monkeypatch.setattr(two_versions, "ROOT", tmp_path)
    assert older(tmp_path / "made") == "the history here does not reach back to 0.1.0 (01234567): clone all of it"
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1200)
async def test_a_fleet_of_the_release_is_upgraded_and_goes_back_under_load_and_loses_nothing(
    network: Network, tmp_path: Path
) -> None:
    before = older(tmp_path / "older")
    if isinstance(before, str):
        pytest.skip(before)
    order = UpgradeOrder(seed=SEED, nodes=1, rounds=1, submits_per_s=2.0)
    said: list[str] = []
    drill = UpgradeDrill(order, tmp_path, network, (before, newer(tmp_path / "newer")), said.append)
    problems = await drill.run()
    assert not problems, "\n".join([*said, *problems])
    assert [step for step, _ in drill.measured] == order.plan()
    for version in (before, Version(NEWER, tmp_path)):
        assert drill.evidence_of(version).followed, "a drill in which nothing was submitted proves nothing"
