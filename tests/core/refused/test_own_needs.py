"""Jobs that a node cannot start for want of what they alone need: who is kept from the node, for how long, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpufleet.v1 import node_agent_pb2

from scheduler.core.attempts import TRIES_ON_NODE_MAX
from scheduler.core.gangs import AVOIDED_SPAN, AVOIDED_SPAN_MAX, kept_away
from scheduler.policy.explain import explain
from scheduler.policy.fit import DISK_BITS, disk_free_bytes
from scheduler.state.attempts import RefusalKind
from scheduler.state.events import RankRefused
from scheduler.state.ids import JobId, NodeName, RankKey
from scheduler.state.jobs import Finished, Queued
from scheduler.state.live import NodeLive
from scheduler.state.nodes import HostSample
from scheduler.state.specs import GpuChoice, GpuMode
from scheduler.state.units import GB, MB, SECOND, Instant, Span
from scheduler.wire.validate_reports import REFUSAL_KINDS
from tests.core.fleet import Fleet, Turn, spec

N1, N2 = NodeName("n1"), NodeName("n2")
JOB = JobId(1)


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.join(fleet.add_node(name, gpus=1))
    return fleet


def refuse(fleet: Fleet, kind: RefusalKind | None, reason: str = "FILES_UNAVAILABLE", job: JobId = JOB) -> Turn:
    attempt = fleet.job(job).attempt
    assert attempt is not None
    event = RankRefused(
        at=fleet.now,
        node=attempt.ranks[0].placement.node,
        key=RankKey(job, attempt.number, 0),
        reason=reason,
        message="[Errno 28] No space left on device",
        kind=kind,
    )
    return fleet.take_up(event)


def node_of(fleet: Fleet, job: JobId = JOB) -> NodeName | None:
    attempt = fleet.job(job).attempt
    return None if attempt is None else attempt.ranks[0].placement.node


@pytest.mark.parametrize("kind", [RefusalKind.JOB_HERE, RefusalKind.JOB_NOW])
def test_a_job_goes_to_another_node_at_once_and_the_next_job_to_the_one_that_refused(kind: RefusalKind) -> None:
    fleet = fleet_of("n1", "n2")
    fleet.submit(spec(gpus=1))
    assert node_of(fleet) == N1
    refuse(fleet, kind)
    assert node_of(fleet) == N2
    fleet.submit(spec(gpus=1))
    assert node_of(fleet, JobId(2)) == N1, "nobody else waits for what the first job lacks there"


@pytest.mark.parametrize("kind", [None, RefusalKind.NODE])
def test_what_is_about_the_node_closes_it_for_everybody_and_so_does_a_reason_that_an_agent_of_before_gives(
    kind: RefusalKind | None,
) -> None:
    fleet = fleet_of("n1")
    fleet.submit(spec(gpus=1))
    refuse(fleet, kind, "KEEPER_UNAVAILABLE")
    fleet.submit(spec(gpus=1))
    assert node_of(fleet, JobId(2)) is None
    assert explain(fleet.state, fleet.job(JobId(2)), fleet.now).reason == "NODE_LEFT_OUT"


def test_a_restart_of_the_scheduler_forgets_neither_the_tries_nor_until_when_a_node_is_avoided() -> None:
    fleet = fleet_of("n1")
    fleet.submit(spec(gpus=1))
    refuse(fleet, RefusalKind.JOB_NOW)
    fleet.restart()
    for node in fleet.nodes.values():
        fleet.inventory(node)
        fleet.beat(node.name)
    assert isinstance(fleet.job(JOB).state, Queued)
    assert list(fleet.advance(AVOIDED_SPAN))
    assert node_of(fleet) == N1
    assert [(each.tries, each.is_open) for each in fleet.job(JOB).spec.resources.kept_away] == [(1, True)]


def test_tries_on_a_node_are_bounded_and_then_the_job_ends_with_the_nodes_own_words() -> None:
    fleet = fleet_of("n1")
    fleet.submit(spec(gpus=1))
    for _ in range(TRIES_ON_NODE_MAX - 1):
        refuse(fleet, RefusalKind.JOB_NOW)
        assert list(fleet.advance(AVOIDED_SPAN_MAX))
    refuse(fleet, RefusalKind.JOB_NOW)
    ended = fleet.store.finished[JOB]
    assert isinstance(ended.state, Finished)
    assert (ended.state.reason, ended.run_count) == ("FILES_UNAVAILABLE", 1)
    assert "[Errno 28]" in ended.state.message


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_a_bound() -> None:
    fleet = fleet_of("n1")
    fleet.submit(spec(gpus=1))
    job, pauses = fleet.job(JOB), []
    for _ in range(7):
        kept = kept_away(Instant(0), job, N1, "X", "")
        assert kept.until is not None
        pauses.append(kept.until // SECOND)
        job = replace(job, spec=job.spec.keeping_away(kept))
    assert pauses == [30, 60, 120, 240, 480, 600, 600]


def test_a_job_that_prefers_gpus_is_kept_from_the_node_without_them_too() -> None:
    wanted = spec(gpus=1)
    choice = GpuChoice(
        asked=GpuMode.PREFERRED, mode=GpuMode.PREFERRED, wanted=wanted.resources, wait=Span(1_000 * SECOND)
    )
    fleet = fleet_of("n1")
    fleet.submit(replace(wanted, gpu_choice=choice))
    refuse(fleet, RefusalKind.JOB_NOW)
    kept = fleet.job(JOB).spec
    assert kept.gpu_choice is not None and kept.gpu_choice.wanted is not None
    assert kept.gpu_choice.wanted.kept_away == kept.resources.kept_away != ()


def test_a_node_without_room_for_the_files_of_a_job_is_not_tried_and_says_what_it_has() -> None:
    fleet = fleet_of("n1")
    fleet.nodes[N1].host = HostSample(files_free_bytes=96 * MB)
    fleet.beat(N1)
    large = spec(gpus=1)
    fleet.submit(replace(large, resources=replace(large.resources, disk_bytes=31 * GB // 10)))
    told = explain(fleet.state, fleet.job(JOB), fleet.now)
    assert (node_of(fleet), told.reason) == (None, "DISK_IN_USE")
    assert "node n1 has 96 MB free on its disk, and the job's files need 3,100 MB" in told.sentence
    fleet.submit(spec(gpus=1))
    assert node_of(fleet, JobId(2)) == N1, "it is kept for nobody whose files do not fit"
    fleet.nodes[N1].host = HostSample(files_free_bytes=None)
    fleet.beat(N1)


def test_what_each_beat_changes_a_little_of_a_disk_is_the_same() -> None:
    def free(count: int | None) -> int | None:
        return disk_free_bytes(NodeLive(heard_at=Instant(0), host=HostSample(files_free_bytes=count)))

    assert free(None) is None and free(0) == 0 and free(63) == 63
    assert free(100 * GB) == free(100 * GB + 1)
    for count in (96 * MB, 3 * GB, 7 * GB + 12345):
        rounded = free(count)
        assert rounded is not None and count * (1 - 2 ** (1 - DISK_BITS)) <= rounded <= count


def test_every_kind_of_the_contract_is_known() -> None:
    numbers = set(node_agent_pb2.RefusalKind.values()) - {node_agent_pb2.REFUSAL_KIND_UNSPECIFIED}
    assert numbers == set(REFUSAL_KINDS) and set(REFUSAL_KINDS.values()) == set(RefusalKind)
