"""An agent speaks for its own node alone: each call of an agent says which node it is of, and is checked here.

An agent with a credential (`node_tokens.py`) speaks for the node that it was given to. A token of role AGENT, which any
agent may have, speaks for nodes that have no credential, and for none that has.
"""

from gpufleet.errors import Reason, invalid

from ..state.ids import NodeName
from ..state.state import State
from .roles import Caller

KEPT_STEP = "Its agent keeps the credential in its data folder; another agent needs a --node-id of its own."


def check_certificate(caller: Caller, identity: str, field: str) -> None:
    """Raise PERMISSION_DENIED where the caller's certificate is not of the node, or program, that it speaks for."""
    if caller.identities is not None and identity not in caller.identities:
        said = f"the certificate is not of {identity}"
        step = f"Make one where the authority is: gpuctl config certificate --client {identity}"
        raise invalid(field, said, reason=Reason.PERMISSION_DENIED, next_step=step)


def check_own_node(view: State, caller: Caller, name: NodeName, field: str = "node") -> None:
    """Raise PERMISSION_DENIED where the caller may not speak for a node of this name."""
    check_certificate(caller, f"node:{name}", field)
    if caller.node is not None:
        if caller.node != name:
            said = f"the credential of node {caller.node!r} does not speak for {name!r}"
            raise invalid(field, said, reason=Reason.PERMISSION_DENIED, next_step=KEPT_STEP)
        return
    node = view.durable.nodes.get(name)
    if node is not None and (node.credentials or node.is_revoked):
        said = f"node {name!r} has a credential of its own, and this token is not it"
        raise invalid(field, said, reason=Reason.PERMISSION_DENIED, next_step=KEPT_STEP)
