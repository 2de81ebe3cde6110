"""Who may be a node: rules 4.20 to 4.23."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.admin.token_calls import NODES_USER as CLI_NODES_USER
from scheduler.core.membership import CREDENTIAL_RENEWED_AFTER
from scheduler.policy.explain import explain
from scheduler.state.access import Role, Token
from scheduler.state.events import (
    DrainRequested,
    NodeAnnounced,
    NodeApprovalRequested,
    NodeProof,
    NodeRevokeRequested,
    ReportedRunning,
    RevokeRequested,
    TokenRequested,
)
from scheduler.state.ids import JobId, NodeName, RankKey, TokenId, UserName
from scheduler.state.jobs import Running
from scheduler.state.limits import Limits
from scheduler.state.nodes import JobAccounts, Node, NodeInfo, RunsAs
from scheduler.state.records import NodeApproved, NodeRegistered, NodeRevoked, TokenUsed
from scheduler.state.replies import NodeChanged, Refused
from scheduler.state.sessions.events import ServeRequested
from scheduler.state.sessions.session import Model, ModelName
from scheduler.state.units import SECOND, Instant, Span, after
from tests.core.fleet import BEGIN, Fleet, Turn, spec

ADMIN = UserName("admin")
JOIN = TokenId("join")
N1 = NodeName("gpu-1")


def fleet_with_token(nodes: str = "", uses_max: int = 0, limits: Limits | None = None) -> Fleet:
    fleet = Fleet(limits)
    token = Token(id=JOIN, user=ADMIN, role=Role.NODE, digest="d", created_at=BEGIN, nodes=nodes, uses_max=uses_max)
    fleet.take_up(TokenRequested(at=fleet.now, by=ADMIN, token=token))
    return fleet


def announce(fleet: Fleet, proof: NodeProof, name: NodeName = N1, agent: str = "a", incarnation: int = 1) -> Turn:
    return fleet.take_up(
        NodeAnnounced(
            at=fleet.now, name=name, agent_id=agent, incarnation=incarnation, boot_id="b", info=NodeInfo(), proof=proof
        )
    )


def joins(fleet: Fleet, fresh: int = 7, name: NodeName = N1, agent: str = "a") -> Turn:
    return announce(fleet, NodeProof(join_token=JOIN, fresh=fresh), name, agent)


def node(fleet: Fleet, name: NodeName = N1) -> Node:
    return fleet.state.durable.nodes[name]


def why_refused(turn: Turn) -> str:
    assert isinstance(turn.reply, Refused), turn.reply
    assert turn.records == ()
    return turn.reply.reason


def test_a_token_is_traded_for_a_credential_and_asked_again_the_same_is_given() -> None:
    fleet = fleet_with_token()
    turn = joins(fleet, fresh=7)
    assert node(fleet).credentials == (7,)
    assert [type(record) for record in turn.records] == [TokenUsed, NodeRegistered]
    again = joins(fleet, fresh=8)
    assert node(fleet).credentials == (7,)
    assert TokenUsed not in [type(record) for record in again.records], "its answer was lost: it is the same node"
    assert fleet.state.durable.tokens[JOIN].uses == 1


def test_a_credential_is_renewed_and_the_old_one_is_good_until_the_next_is_used() -> None:
    fleet = fleet_with_token()
    joins(fleet, fresh=7)
    announce(fleet, NodeProof(credential=7, fresh=8), incarnation=2)
    assert node(fleet).credentials == (7,), "it is of today"
    fleet.now = after(fleet.now, CREDENTIAL_RENEWED_AFTER)
    announce(fleet, NodeProof(credential=7, fresh=9), incarnation=3)
    assert node(fleet).credentials == (7, 9)
    announce(fleet, NodeProof(credential=7, fresh=10), incarnation=3)
    assert node(fleet).credentials == (7, 9), "its answer was lost: the same again"
    announce(fleet, NodeProof(credential=9, fresh=11), incarnation=3)
    assert node(fleet).credentials == (9,)


def test_an_agent_that_takes_no_credential_stays_as_it_was() -> None:
    fleet = Fleet()
    announce(fleet, NodeProof())
    assert node(fleet).credentials == ()


def test_a_running_fleet_moves_over_when_its_agents_register_again() -> None:
    fleet = Fleet()
    announce(fleet, NodeProof())
    announce(fleet, NodeProof(fresh=7), incarnation=2)
    assert node(fleet).credentials == (7,)


def test_another_agent_gets_no_name_that_has_a_credential_by_a_token_that_lets_nodes_join() -> None:
    fleet = fleet_with_token()
    joins(fleet)
    assert why_refused(joins(fleet, fresh=8, agent="thief")) == "NODE_ID_TAKEN"
    assert why_refused(announce(fleet, NodeProof(credential=7, fresh=8), agent="thief")) == "PERMISSION_DENIED"
    assert node(fleet).credentials == (7,)


@pytest.mark.parametrize(("pattern", "name"), [("gpu-*", "cpu-1"), ("gpu-1", "gpu-11"), ("*-gpu", "gpu-1")])
def test_a_token_lets_only_nodes_of_its_names_join(pattern: str, name: str) -> None:
    assert why_refused(joins(fleet_with_token(pattern), name=NodeName(name))) == "PERMISSION_DENIED"


def test_a_token_lets_only_so_many_nodes_join_and_those_may_come_back() -> None:
    fleet = fleet_with_token("gpu-*", uses_max=2)
    for name in ("gpu-1", "gpu-2"):
        assert isinstance(joins(fleet, name=NodeName(name)).reply, NodeChanged)
    assert why_refused(joins(fleet, name=NodeName("gpu-3"))) == "TOKEN_USED_UP"
    assert isinstance(joins(fleet, name=NodeName("gpu-2")).reply, NodeChanged)


def test_what_was_revoked_stays_out_until_somebody_approves_it() -> None:
    fleet = fleet_with_token()
    joins(fleet)
    turn = fleet.take_up(NodeRevokeRequested(at=fleet.now, by=ADMIN, node=N1, reason="stolen"))
    assert turn.records == (NodeRevoked(at=fleet.now, node=N1, by=ADMIN, reason="stolen"),)
    assert (node(fleet).credentials, node(fleet).is_draining) == ((), True)
    for proof in (NodeProof(), NodeProof(fresh=8), NodeProof(join_token=JOIN, fresh=8)):
        assert why_refused(announce(fleet, proof, incarnation=2)) == "NODE_REVOKED"
    resumed = fleet.take_up(DrainRequested(at=fleet.now, by=ADMIN, node=N1, is_draining=False))
    assert why_refused(resumed) == "CONFLICT"
    turn = fleet.take_up(NodeApprovalRequested(at=fleet.now, by=ADMIN, node=N1))
    assert turn.records == (NodeApproved(at=fleet.now, node=N1, by=ADMIN),)
    joins(fleet, fresh=9)
    assert (node(fleet).credentials, node(fleet).is_draining) == ((9,), False)


def test_a_node_that_awaits_approval_is_given_no_work_until_then_whatever_it_does() -> None:
    fleet = fleet_with_token(limits=Limits(nodes_await_approval=True))
    joins(fleet)
    assert (node(fleet).awaits_approval, node(fleet).is_draining) == (True, True)
    announce(fleet, NodeProof(credential=7, fresh=8), incarnation=2)
    assert node(fleet).awaits_approval, "registering again approves nothing"
    fleet.take_up(NodeApprovalRequested(at=fleet.now, by=ADMIN, node=N1))
    assert (node(fleet).awaits_approval, node(fleet).is_draining) == (False, False)
    announce(fleet, NodeProof(credential=7, fresh=8), incarnation=3)
    assert not node(fleet).awaits_approval, "it was approved once"
    known = fleet.take_up(NodeApprovalRequested(at=fleet.now, by=ADMIN, node=N1))
    assert isinstance(known.reply, NodeChanged)
    assert not known.reply.changed


def test_a_revoked_token_keeps_its_nodes_and_lets_no_other_join() -> None:
    fleet = fleet_with_token()
    joins(fleet)
    fleet.take_up(RevokeRequested(at=fleet.now, by=ADMIN, token=JOIN))
    fleet.now = after(fleet.now, Span(1 * SECOND))
    announce(fleet, NodeProof(credential=7, fresh=8), incarnation=2)
    assert node(fleet).credentials == (7,)


# --- whose jobs a node takes (rule 4.37)


def alone(owner: str = "") -> NodeInfo:
    return NodeInfo(job_accounts=JobAccounts(runs_as=RunsAs.OWNER, owner=UserName(owner)))


def owner_as(fleet: Fleet, info: NodeInfo, proof: NodeProof, incarnation: int = 1) -> UserName:
    """Whose jobs alone the node takes, once it has registered so."""
    fleet.take_up(
        NodeAnnounced(at=fleet.now, name=N1, agent_id="a", incarnation=incarnation, boot_id="b", info=info, proof=proof)
    )
    return node(fleet).info.job_accounts.owner


def test_a_node_is_of_the_user_of_the_token_with_which_it_joined_and_stays_so() -> None:
    fleet = fleet_with_token()
    assert owner_as(fleet, alone(), NodeProof(join_token=JOIN, fresh=7)) == ADMIN
    assert owner_as(fleet, NodeInfo(), NodeProof(credential=7), incarnation=2) == "", "it takes those of all now"
    assert owner_as(fleet, alone(), NodeProof(credential=7), incarnation=3) == ADMIN
    assert owner_as(fleet, alone("carol"), NodeProof(credential=7), incarnation=4) == "carol", "its agent says so"


@pytest.mark.parametrize("is_joining", [True, False])
def test_a_node_that_is_nobodys_is_of_who_made_the_fleet(is_joining: bool) -> None:
    fleet = Fleet()
    made = (("late", "bob", Role.ADMIN, 2), ("first", "alice", Role.ADMIN, 1), ("older", "carol", Role.USER, 0))
    for name, user, role, second in made:
        at = Instant(BEGIN + second * SECOND)
        token = Token(id=TokenId(name), user=UserName(user), role=role, digest=name, created_at=at)
        fleet.take_up(TokenRequested(at=fleet.now, by=ADMIN, token=token))
    token = Token(id=JOIN, user=UserName(CLI_NODES_USER), role=Role.NODE, digest="d", created_at=BEGIN)
    fleet.take_up(TokenRequested(at=fleet.now, by=ADMIN, token=token))
    proof = NodeProof(join_token=JOIN, fresh=7) if is_joining else NodeProof()
    assert owner_as(fleet, alone(), proof) == "alice"


def test_what_runs_on_a_node_that_becomes_its_owners_alone_goes_on_and_nothing_of_others_follows() -> None:
    fleet = Fleet()
    fake = fleet.add_node("n1", gpus=2, is_virtual=True)
    fleet.join(fake)
    fleet.submit(spec(gpus=1), user="bob")
    fleet.submit(spec(gpus=2), user="bob")
    assert fleet.job(1).attempt is not None
    fake = replace(fake, incarnation=2, info=replace(fake.info, job_accounts=alone("alice").job_accounts))
    fleet.announce(fake)
    fleet.inventory(fake, [(RankKey(JobId(1), 1, 0), ReportedRunning(run_span=Span(SECOND)))])
    assert isinstance(fleet.job(1).state, Running)
    fleet.submit(spec(gpus=1), user="alice")
    assert fleet.job(2).attempt is None
    assert fleet.job(3).attempt is not None
    told = explain(fleet.state, fleet.job(2), fleet.now)
    assert told.reason == "NEVER_FITS"
    assert "runs jobs of alice alone" in told.sentence


def test_a_worker_is_its_models_owners() -> None:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=1, owner="alice"))
    for user, is_refused in (("bob", True), ("alice", False)):
        worker = spec(gpus=1, serves=ModelName("canvas"))
        model = Model(name=ModelName("canvas"), owner=UserName(user), worker=worker, min_workers=1, max_workers=1)
        turn = fleet.take_up(ServeRequested(at=fleet.now, model=model))
        assert isinstance(turn.reply, Refused) is is_refused, turn.reply
        if isinstance(turn.reply, Refused):
            assert "runs jobs of alice alone" in turn.reply.message
