"""What a takeover drill draws and what it judges; and one of the size of CI. `make takeover-drill` runs longer ones."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.conftest import network as network
from tests.drills.takeover.customers import expected_of
from tests.drills.takeover.drill import TakeoverDrill
from tests.drills.takeover.judging_takeovers import problems_of, quantile, read_evidence, served_after, table_of
from tests.drills.takeover.plan import TakeoverOrder, Trouble
from tests.several_nodes.network import Network
from tests.store.postgres_server import programs

SEED = 16


def test_the_same_seed_draws_the_same_faults_as_many_as_were_ordered() -> None:
    order = TakeoverOrder(seed=SEED)
    assert order.plan() == TakeoverOrder(seed=SEED).plan() != TakeoverOrder(seed=SEED + 1).plan()
    counts = Counter(each.kind for each in order.plan())
    assert [counts[kind] for kind in Trouble] == [20, 20, 5, 2, 2, 2]
    assert {each.is_from_leader for each in order.plan() if each.kind is Trouble.STORE_LOST} == {True, False}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Job 1 went well; job 2 ran twice; job 3 never ran; of job 4 a byte was not seen; nobody saw job 5 end."""
    said: list[dict[str, object]] = [
        {"job": job, "began": float(job), "acknowledged": job + 0.5} for job in range(1, 6)
    ]
    said += [
        {"followed": job, "is_whole": job != 4, "bytes": len(expected_of(job)), "state": "succeeded"}
        for job in range(1, 5)
    ]
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps({"at": 0.0, **each}) + "\n" for each in said) + '{"at": 1.0, "jo')
    (tmp_path / "runs").write_text("1.1\n2.1\n4.1\n5.1\n2.1\n")
    return file


def test_whatever_is_lost_or_done_twice_is_found(events: Path) -> None:
    found = problems_of(read_evidence(events, events.with_name("runs")))
    assert [each.split("(")[0].strip() for each in found] == [
        "job 3 was acknowledged and never ran",
        "of job 4 other bytes were seen than it wrote",
        "job 5 was never seen to end",
        "job 2 ran 2 times",
    ]


def test_the_time_is_that_of_a_submit_that_began_behind_the_fault(events: Path) -> None:
    evidence = read_evidence(events, events.with_name("runs"))
    assert served_after(evidence, 2.1) == pytest.approx(1.4)
    assert served_after(evidence, 5.1) is None
    assert (quantile([3.0, 1.0, 2.0], 0.5), quantile([float(n) for n in range(1, 21)], 0.95)) == (2.0, 19.0)
    assert table_of([(Trouble.KILLED, 1.0), (Trouble.KILLED, 2.0)])[2].endswith("| 2 | 1.00 s | 2.00 s | 2.00 s |")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the account of the database may enter, as pytest's own may not be."""
    folder = Path(tempfile.mkdtemp(prefix="takeover-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1200)
async def test_a_leader_that_is_killed_and_one_that_is_paused_lose_nothing(network: Network, place: Path) -> None:
    found = programs()
    if isinstance(found, str):
        if os.environ.get("CI") == "true":
            pytest.fail(found)
        pytest.skip(found)
    order = TakeoverOrder(seed=SEED, kills=1, pauses=1, store_kills=0, losses=0, submits_per_s=2.0, calm_s=1.0)
    said: list[str] = []
    drill = TakeoverDrill(order, place, network, found, said.append)
    problems = await drill.run()
    assert not problems, "\n".join([*said, *problems])
    assert [line.partition(":")[0] for line in said[:2]] == ["the leader", "the standby"]
    assert [kind for kind, _ in drill.measured] == [each.kind for each in order.plan()]
    evidence = read_evidence(place / "events.jsonl", place / "runs")
    assert evidence.followed, "a drill in which nothing was submitted proves nothing"
