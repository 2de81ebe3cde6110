"""Reports that come late, again or from another agent: what they change, and what they must leave as it is."""

from __future__ import annotations

from scheduler.state.events import DrainRequested, SetupReported, SharedRootChecked
from scheduler.state.groups.changes import GroupSetRequested
from scheduler.state.groups.group import GroupName
from scheduler.state.ids import JobId, NodeName, RankKey, UserName
from scheduler.state.records import SetupStateChanged
from scheduler.state.replies import GroupChanged, NodeChanged
from tests.core.fleet import Fleet, Turn, spec

ADMIN = UserName("admin")
KEY = RankKey(JobId(1), 1, 0)
N1, N2 = NodeName("n1"), NodeName("n2")
ROOT = "/shared"


def with_nodes(*names: NodeName) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.join(fleet.add_node(name, shared_root=ROOT))
    return fleet


def test_an_agent_that_registers_again_keeps_the_shared_folder_that_its_node_was_found_to_see() -> None:
    fleet = with_nodes(N1)
    fleet.take_up(SharedRootChecked(at=fleet.now, node=N1, root=ROOT))
    fleet.nodes[N1].incarnation += 1
    fleet.announce(fleet.nodes[N1])
    assert fleet.state.durable.nodes[N1].checked_root == ROOT


def test_another_agent_under_the_name_of_a_node_has_to_be_found_to_see_the_shared_folder_itself() -> None:
    fleet = with_nodes(N1)
    fleet.take_up(SharedRootChecked(at=fleet.now, node=N1, root=ROOT))
    fleet.disconnect(N1)
    fleet.nodes[N1].agent_id = "another-agent"
    fleet.announce(fleet.nodes[N1])
    assert fleet.state.durable.nodes[N1].agent_id == "another-agent"
    assert fleet.state.durable.nodes[N1].checked_root == ""


def test_the_setup_of_a_live_rank_is_noted_and_that_of_any_other_is_not() -> None:
    fleet = with_nodes(N1, N2)
    fleet.submit(spec())
    attempt = fleet.state.durable.jobs[JobId(1)].attempt
    assert attempt is not None
    here = attempt.ranks[0].placement.node
    elsewhere = N2 if here == N1 else N1

    def reported(by: NodeName, key: RankKey = KEY) -> Turn:
        return fleet.take_up(SetupReported(at=fleet.now, node=by, key=key, is_ready=False, message="1GB of 4GB"))

    (record,) = reported(here).records
    assert record == SetupStateChanged(at=fleet.now, key=KEY, is_ready=False, message="1GB of 4GB")
    assert not reported(elsewhere).records
    assert not reported(here, RankKey(JobId(1), 2, 0)).records
    assert not reported(here, RankKey(JobId(2), 1, 0)).records


def test_only_the_first_drain_of_a_node_says_that_it_changed_something() -> None:
    fleet = with_nodes(N1)
    drain = DrainRequested(at=fleet.now, by=ADMIN, node=N1, is_draining=True, reason="new disk")
    first, again = fleet.take_up(drain), fleet.take_up(drain)
    assert isinstance(first.reply, NodeChanged) and first.reply.changed
    assert isinstance(again.reply, NodeChanged) and not again.reply.changed
    assert not again.records


def test_each_change_of_a_group_raises_its_version_by_one_and_the_same_again_does_not() -> None:
    fleet = Fleet()
    versions = []
    for gpus_max in (4, 8, 8, 2):
        turn = fleet.take_up(GroupSetRequested(at=fleet.now, by=ADMIN, name=GroupName("lab"), gpus_max=gpus_max))
        assert isinstance(turn.reply, GroupChanged)
        versions.append(turn.reply.group.version)
    assert versions == [1, 2, 2, 3]
