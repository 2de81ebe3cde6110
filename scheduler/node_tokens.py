"""The credential of one node: a bearer token with which its agent proves itself, given to it when it joins.

It follows from the key in the scheduler's data folder, the node's name and the number that its joining drew, so that a
registration whose answer was lost is answered the same again, and nothing secret is stored. It is good as long as the
node has that number (`state/nodes.py`), and for what that node may say (`api/own_node.py`).
"""

import hashlib
import secrets
import struct

from .keyed_tokens import KeyedTokens
from .state.durable import Durable
from .state.ids import NodeName, TokenId
from .state.nodes import Node

TOKEN_ID_PREFIX = "node-"

NAME_BYTES = 6
"""Of the name's SHA-256: by them a call finds its node without a search. Two nodes that share them cannot both join."""

_NAMED = struct.Struct(f">{NAME_BYTES}sQ")
_NUMBER_BITS = 48


def new_number() -> int:
    """A number for a credential: none is drawn twice, so that what was revoked or forgotten stays useless."""
    return secrets.randbits(_NUMBER_BITS) or 1


class NodeTokens:
    """Makes and checks the credentials of nodes by one key."""

    def __init__(self, key: bytes) -> None:
        self._keyed = KeyedTokens(key, "node", _NAMED.size)
        self._names: dict[bytes, NodeName] = {}

    def token(self, node: NodeName, number: int) -> str:
        """The bearer token of this node with this number."""
        return self._keyed.token(_NAMED.pack(_short(node), number))

    def found(self, token: str, durable: Durable) -> tuple[Node, int] | None:
        """The node that has this token now, and its number; None for what is none, or is of a former credential."""
        named = self._keyed.named_by(token)
        if named is None:
            return None
        short, number = _NAMED.unpack(named)
        node = self._node(short, durable)
        return (node, number) if node is not None and number in node.credentials else None

    def _node(self, short: bytes, durable: Durable) -> Node | None:
        known = durable.nodes.get(self._names.get(short, NodeName("")))
        if known is None:
            # Only who holds a credential that was once good comes here: a proof was checked before.
            self._names = {_short(name): name for name in durable.nodes}
            known = durable.nodes.get(self._names.get(short, NodeName("")))
        return known


def _short(node: NodeName) -> bytes:
    return hashlib.sha256(node.encode()).digest()[:NAME_BYTES]


def token_id(node: NodeName, number: int) -> TokenId:
    """The name of a node's credential, for who keeps streams by it."""
    return TokenId(f"{TOKEN_ID_PREFIX}{number}-{node}")


def is_good(name: TokenId, durable: Durable) -> bool:
    """Whether a credential may still be used: its node has it."""
    number, _, node = name.removeprefix(TOKEN_ID_PREFIX).partition("-")
    known = durable.nodes.get(NodeName(node))
    return known is not None and int(number) in known.credentials
