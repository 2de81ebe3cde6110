"""Who may be a node: by what proof one joins, what it proves itself by afterwards, and how a person lets it in or out.

A node that takes one is given a credential of its own when it joins. From then on its name is its own: no other token
speaks for it (`api/own_node.py`), and no other agent gets the name by a token that lets nodes join. Rules:
docs/rules/jobs.md 4.20 to 4.23.
"""

from dataclasses import replace
from fnmatch import fnmatchcase

from ..state.access import Role
from ..state.events import NodeAnnounced, NodeApprovalRequested, NodeRevokeRequested
from ..state.ids import NodeName, UserName
from ..state.nodes import Node, NodeInfo, approved, revoked
from ..state.records import NodeApproved, NodeRevoked, TokenUsed
from ..state.replies import NodeChanged
from ..state.state import State
from ..state.units import DAY, Span, after
from .decision import Decision, refused

CREDENTIAL_RENEWED_AFTER = Span(1 * DAY)
"""An agent that registers with an older credential is given the next; the old one is good until the next is used."""

NODES_USER = UserName("nodes")
"""The user of a token with which nodes join that are nobody's."""

CREDENTIALS_MAX = 2
"""The one that the agent has, and the next."""


def refusal_to_join(state: State, event: NodeAnnounced, known: Node | None) -> Decision | None:
    """Why a node's proof does not let it join; None where it does."""
    name, join_token = event.name, event.proof.join_token
    if known is not None and known.is_revoked:
        return refused(
            "NODE_REVOKED",
            f"the credential of node {name!r} was revoked",
            field="node",
            next_step=f"an admin lets it in again with: gpuctl nodes approve {name}",
        )
    if event.proof.credential:
        if known is None or known.agent_id != event.agent_id:
            return refused(
                "PERMISSION_DENIED",
                f"the credential of node {name!r} was given to another agent",
                field="agent_id",
                next_step="give this agent a token with which nodes join: gpuctl token create --role node",
            )
        return None
    if join_token is None:
        return None
    if known is not None and known.credentials and known.agent_id != event.agent_id:
        return refused(
            "NODE_ID_TAKEN",
            f"node {name!r} has a credential of its own, of another agent",
            field="node",
            next_step=f"join with another --node-id, or, when the other machine is gone for good: "
            f"gpuctl nodes forget {name}",
        )
    token = state.durable.tokens[join_token]
    if not fnmatchcase(name, token.nodes or "*"):
        return refused(
            "PERMISSION_DENIED",
            f"token {token.id} lets nodes join that are named like {token.nodes!r}, and not {name!r}",
            field="node",
            next_step="name the node so with --node-id, or ask an admin for another token",
        )
    if not _is_back(event, known) and token.uses_max and token.uses >= token.uses_max:
        return refused(
            "TOKEN_USED_UP",
            f"token {token.id} has let {token.uses} of {token.uses_max} nodes join",
            next_step="ask an admin for another one: gpuctl token create --role node",
        )
    return None


def admitted(state: State, event: NodeAnnounced, known: Node | None, node: Node) -> Node:
    """The node as it joins: with what it proves itself by, and whether it waits for a person's word."""
    held = known.credentials if known is not None and known.agent_id == event.agent_id else ()
    given_at = known.credential_given_at if known is not None else None
    proof = event.proof
    if proof.credential:
        held = held[held.index(proof.credential) :]
    elif not proof.fresh:
        held = ()  # an older agent has the name now, and proves itself as it always did
    is_due = not held or given_at is None or after(given_at, CREDENTIAL_RENEWED_AFTER) <= event.at
    if proof.fresh and is_due:
        held, given_at = (*held, proof.fresh)[-CREDENTIALS_MAX:], event.at
    node = replace(node, credentials=held, credential_given_at=given_at if held else None)
    if known is not None and known.agent_id == event.agent_id:
        return replace(node, awaits_approval=known.awaits_approval)
    if not state.limits.nodes_await_approval:
        return node
    reason = f"waits for: gpuctl nodes approve {node.name}"
    return replace(node, awaits_approval=True, is_draining=True, drain_reason=reason)


def owner_of(state: State, event: NodeAnnounced, known: Node | None) -> UserName:
    """Whose a node is, by the token with which it joined; empty where that is nobody's."""
    token = None if event.proof.join_token is None else state.durable.tokens.get(event.proof.join_token)
    if token is not None and token.user != NODES_USER:
        return token.user
    return known.owner if known is not None and known.agent_id == event.agent_id else UserName("")


def with_owner(state: State, info: NodeInfo, owner: UserName) -> NodeInfo:
    """What a node says of itself, and, where it takes its owner's jobs alone and does not say who that is, who.

    A node that is nobody's, as it joined by a token that any agent may have, is of who made the fleet.
    """
    accounts = info.job_accounts
    if not accounts.is_alone or accounts.owner:
        return info
    return replace(info, job_accounts=replace(accounts, owner=owner or _founder(state)))


def _founder(state: State) -> UserName:
    """The user of the oldest admin token that is good: the scheduler's first start made it."""
    admins = [each for each in state.durable.tokens.values() if each.role is Role.ADMIN and each.revoked_at is None]
    return min(admins, key=lambda each: (each.created_at, each.id)).user if admins else UserName("")


def use_of_token(event: NodeAnnounced, known: Node | None) -> tuple[TokenUsed, ...]:
    """What is noted of the token that let a node join; one that comes back has been counted."""
    token = event.proof.join_token
    if token is None or _is_back(event, known):
        return ()
    return (TokenUsed(at=event.at, token=token, node=event.name),)


def _is_back(event: NodeAnnounced, known: Node | None) -> bool:
    return known is not None and bool(known.credentials) and known.agent_id == event.agent_id


def on_node_approval_requested(state: State, event: NodeApprovalRequested) -> Decision:
    """Let a node take part that waits for it, or whose credential was revoked."""
    node = state.durable.nodes.get(event.node)
    if node is None:
        return no_such_node(event.node)
    if not node.awaits_approval and not node.is_revoked:
        return Decision(reply=NodeChanged(node=node, changed=False))
    record = NodeApproved(at=event.at, node=node.name, by=event.by)
    return Decision(records=(record,), reply=NodeChanged(node=approved(node), changed=True))


def on_node_revoke_requested(state: State, event: NodeRevokeRequested) -> Decision:
    """Make a node's credential useless and keep work away; what runs there is treated as on a node that is silent."""
    node = state.durable.nodes.get(event.node)
    if node is None:
        return no_such_node(event.node)
    if node.is_revoked:
        return Decision(reply=NodeChanged(node=node, changed=False))
    record = NodeRevoked(at=event.at, node=node.name, by=event.by, reason=event.reason)
    return Decision(records=(record,), reply=NodeChanged(node=revoked(node, event.reason), changed=True))


def no_such_node(name: NodeName) -> Decision:
    """The refusal of a name that no node has."""
    return refused(
        "NODE_NOT_FOUND", f"no node is called {name!r}", field="node", next_step="list them with: gpuctl nodes"
    )
