"""Gangs, event by event, and how a request is divided over nodes: what transcripts do not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.jobs.runs import ExitSignal, StopCause
from scheduler.core.gangs import launch_command
from scheduler.policy.gangs import could_ever, ranks_of
from scheduler.state.attempts import RankExit
from scheduler.state.commands import AbortAttempt, KillAttempt, PrepareAttempt, StartAttempt
from scheduler.state.events import CancelRequested, Preparation, RankExited, RankReady, RankStarted
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from scheduler.state.nodes import Device, Node, NodeInfo
from scheduler.state.records import AttemptReady, AttemptVoided, RankEnded
from scheduler.state.specs import NodePins, Resources
from scheduler.state.units import GB, SECOND, Instant, Span
from tests.core.fleet import BEGIN, Fleet, Turn, spec

RANK_0, RANK_1 = RankKey(JobId(1), 1, 0), RankKey(JobId(1), 1, 1)


def two_nodes(addresses: tuple[str, str] = ("10.0.0.1", "10.0.0.2"), advertised: str = "") -> Fleet:
    fleet = Fleet()
    for name, address in zip(("n1", "n2"), addresses, strict=True):
        node = fleet.add_node(name, gpus=2)
        if name == "n1":
            node.info = replace(node.info, advertise_address=advertised)
        fleet.announce(node, address)
        fleet.inventory(node)
        fleet.beat(node.name)
    return fleet


def ready(fleet: Fleet, key: RankKey, node: str, port: int = 0) -> Turn:
    return fleet.take_up(RankReady(at=fleet.now, node=NodeName(node), key=key, master_port=port))


def test_a_prepare_carries_what_a_launch_does_and_how_many_ranks_there_are() -> None:
    turn = two_nodes().submit(spec(gpus=4, node_count=2, cpus=3))
    launches = [each.launch for each in turn.commands if isinstance(each, PrepareAttempt)]
    assert [(each.node, each.key, each.node_count) for each in launches] == [("n1", RANK_0, 2), ("n2", RANK_1, 2)]
    assert all((len(each.placement.devices), each.placement.cpus) == (2, 3) for each in launches)


def test_a_rank_is_started_only_when_all_are_ready_and_told_where_they_meet() -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    assert not ready(fleet, RANK_0, "n1", 29_500).commands
    turn = ready(fleet, RANK_1, "n2")
    assert [type(record) for record in turn.records] == [AttemptReady]
    starts = [each for each in turn.commands if isinstance(each, StartAttempt)]
    assert [(each.node, each.master_address, each.master_port) for each in starts] == [
        ("n1", "10.0.0.1", 29_500),
        ("n2", "10.0.0.1", 29_500),
    ]


def test_a_gang_of_which_nothing_moves_is_given_up_after_ten_minutes_however_often_its_node_says_so() -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    ready(fleet, RANK_0, "n1", 29_500)
    given_up: list[AttemptVoided] = []
    for seconds in range(0, 700, 5):
        told = Preparation(key=RANK_1, still=Span(seconds * SECOND), message="its files come")
        fleet.beat(NodeName("n1"))
        fleet.beat(NodeName("n2"), told)
        turns = fleet.advance(Span(5 * SECOND))
        given_up += [record for turn in turns for record in turn.records if isinstance(record, AttemptVoided)]
        if given_up:
            break
    assert [(each.reason, each.number) for each in given_up] == [("PREPARE_TIMED_OUT", 1)]
    assert given_up[0].message == "rank 1 on node n2 made no progress for 10m"
    assert given_up[0].at - BEGIN == 600 * SECOND


def test_what_a_node_says_of_a_rank_that_it_does_not_have_prolongs_nothing() -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    fleet.beat(
        NodeName("n1"), Preparation(key=RANK_1, still=Span(0)), Preparation(key=RankKey(JobId(9), 1, 0), still=Span(0))
    )
    assert not fleet.state.live.preparing
    fleet.beat(NodeName("n2"), Preparation(key=RANK_1, still=Span(0), message="its files come"))
    assert set(fleet.state.live.preparing) == {RANK_1}
    ready(fleet, RANK_1, "n2")
    fleet.beat(NodeName("n2"), Preparation(key=RANK_1, still=Span(0)))
    assert not fleet.state.live.preparing, "a beat that was late says nothing of a rank that is ready"


def test_attempts_that_came_to_nothing_use_up_numbers_and_are_not_counted() -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    assert list(fleet.advance(Span(50 * SECOND)))
    job = fleet.job(JobId(1))
    assert job.attempt is not None and job.attempt.number == job.attempt_count > 1
    assert (job.run_count, job.retries_used, job.requeue_count) == (1, 0, 0)
    command = launch_command(fleet.state, job, job.attempt, job.attempt.keys(job.id)[0])
    assert isinstance(command, PrepareAttempt) and command.launch.run_number == 1


def test_the_address_that_an_agent_advertises_goes_before_the_one_it_calls_from() -> None:
    fleet = two_nodes(advertised="192.168.7.7")
    fleet.submit(spec(gpus=4, node_count=2))
    ready(fleet, RANK_0, "n1", 29_500)
    starts = [each for each in ready(fleet, RANK_1, "n2").commands if isinstance(each, StartAttempt)]
    assert {each.master_address for each in starts} == {"192.168.7.7"}


def test_a_node_beside_the_scheduler_is_not_the_one_where_others_meet() -> None:
    fleet = two_nodes(addresses=("127.0.0.1", "10.0.0.2"))
    turn = fleet.submit(spec(gpus=4, node_count=2))
    assert [each.node for each in turn.commands] == ["n2", "n1"]


def test_who_is_ready_twice_is_counted_once() -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    for _ in range(2):
        turn = ready(fleet, RANK_1, "n2")
        assert (turn.records, turn.commands) == ((), ())


@pytest.mark.parametrize(
    ("key", "node"), [(RankKey(JobId(9), 1, 0), "n1"), (RANK_0, "n2"), (RankKey(JobId(1), 2, 0), "n1")]
)
def test_what_nobody_waits_for_is_taken_back(key: RankKey, node: str) -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    turn = ready(fleet, key, node)
    assert (turn.records, turn.commands) == ((), (AbortAttempt(node=NodeName(node), key=key),))


def test_a_rank_that_runs_unasked_is_ended_and_its_gang_placed_anew() -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    turn = fleet.take_up(RankStarted(at=fleet.now, node=NodeName("n2"), key=RANK_1))
    assert KillAttempt(node=NodeName("n2"), key=RANK_1) in turn.commands
    assert fleet.job(1).attempt is None


def test_a_gang_that_is_abandoned_as_it_starts_is_killed_on_every_node() -> None:
    """Its Starts may leave in the same turn; then each Kill follows its Start on the same stream."""
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    ready(fleet, RANK_0, "n1", 29_500)
    ready(fleet, RANK_1, "n2")
    abandoned = CancelRequested(at=fleet.now, jobs=(JobId(1),), by=UserName("alice"), is_abandoned=True)
    kills = [KillAttempt(node=NodeName("n1"), key=RANK_0), KillAttempt(node=NodeName("n2"), key=RANK_1)]
    assert list(fleet.take_up(abandoned).commands) == kills


def test_a_node_that_said_that_nothing_lives_there_is_not_kept_clear_of_work_when_its_gang_is_over() -> None:
    fleet = two_nodes()
    fleet.submit(spec(gpus=4, node_count=2))
    ready(fleet, RANK_0, "n1", 29_500)
    ready(fleet, RANK_1, "n2")
    for key, name in ((RANK_0, "n1"), (RANK_1, "n2")):
        fleet.take_up(RankStarted(at=fleet.now, node=NodeName(name), key=key))
    fleet.disconnect(NodeName("n2"))
    turns = fleet.advance(fleet.limits.node_lease + fleet.limits.requeue_fence)
    ended = [record for turn in turns for record in turn.records if isinstance(record, RankEnded)]
    assert [(record.key, record.exit.is_presumed) for record in ended] == [(RANK_1, True)]
    assert fleet.state.live.nodes[NodeName("n2")].lingering == {RANK_1}
    machine = fleet.nodes[NodeName("n2")]
    machine.boot_id, machine.incarnation = "boot-2", 2
    fleet.join(machine)
    assert fleet.state.live.nodes[NodeName("n2")].lingering == set()
    stopped = RankExit(exit=ExitSignal(signal=15), reason="SIGNALLED", stop_cause=StopCause.GANG)
    fleet.take_up(RankExited(at=fleet.now, node=NodeName("n1"), key=RANK_0, exit=stopped))
    assert fleet.state.live.nodes[NodeName("n2")].lingering == set()
    attempt = fleet.job(1).attempt
    assert attempt is not None
    assert attempt.number == 2


# --- how a request is divided


def node(name: str, gpus: int, *, cpus: int = 8, memory_bytes: int = 80 * GB) -> Node:
    devices = tuple(
        Device(uuid=DeviceUuid(f"{name}-{index}"), index=index, name="GPU", memory_bytes=memory_bytes)
        for index in range(gpus)
    )
    return Node(
        name=NodeName(name),
        agent_id=name,
        incarnation=1,
        boot_id="1",
        info=NodeInfo(cpus=cpus, memory_bytes=64 * GB, devices=devices),
        registered_at=Instant(0),
    )


@pytest.mark.parametrize(
    ("gpus", "nodes", "parts"),
    [
        (8, [8, 8], [8]),
        (10, [8, 8, 8], [5, 5]),
        (12, [8, 4], [8, 4]),
        (17, [8, 8, 8], [6, 6, 5]),
        (20, [8, 8, 4], [8, 8, 4]),
        (9, [1, 8, 2, 4], [5, 4]),
        (21, [8, 8, 4], [21]),
        (1, [0, 0], [1]),
    ],
)
def test_a_request_is_spread_over_as_few_nodes_as_hold_it_as_evenly_as_they_can(
    gpus: int, nodes: list[int], parts: list[int]
) -> None:
    known = [node(f"n{number}", count) for number, count in enumerate(nodes)]
    ranks = ranks_of(known, Resources(gpus=gpus), 0)
    assert [rank.gpus for rank in ranks] == parts
    assert could_ever(known, ranks, 0) == (sum(nodes) >= gpus)


def test_only_gpus_are_spread_and_only_over_nodes_with_the_rest_for_each_rank() -> None:
    known = [node("n1", 4, cpus=2), node("n2", 4), node("n3", 4)]
    assert len(ranks_of(known, Resources(cpus=9), 0)) == 1
    asked = Resources(gpus=8, cpus=4)
    assert len(ranks_of(known, asked, 0)) == 2
    assert len(ranks_of(known[:2], asked, 0)) == 1, "n1 has too few CPUs for a rank"
    assert len(ranks_of(known, replace(asked, no_span=True), 0)) == 1
    assert len(ranks_of(known, replace(asked, node_count=1), 0)) == 1


def test_pins_name_what_each_node_gives() -> None:
    pins = (NodePins(node=NodeName("n1"), indices=(0,)), NodePins(node=NodeName("n2"), indices=(1, 2)))
    ranks = ranks_of([node("n1", 4), node("n2", 4)], Resources(gpus=3, pins=pins), 0)
    assert [(rank.gpus, rank.pins[0].node) for rank in ranks] == [(2, "n2"), (1, "n1")]
