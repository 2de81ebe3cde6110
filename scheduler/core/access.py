"""Tokens: made and revoked; their secrets never come here."""

from ..state.events import RevokeRequested, TokenRequested
from ..state.records import TokenCreated, TokenRevoked
from ..state.state import State
from .decision import NOTHING, Decision, refused


def on_token_requested(state: State, event: TokenRequested) -> Decision:
    """Make a token."""
    if event.token.id in state.durable.tokens:
        return refused("TOKEN_NAME_TAKEN", f"a token {event.token.id!r} exists", field="id")
    return Decision(records=(TokenCreated(at=event.at, token=event.token, by=event.by),))


def on_revoke_requested(state: State, event: RevokeRequested) -> Decision:
    """Make a token useless; a revoked one stays as it is."""
    token = state.durable.tokens.get(event.token)
    if token is None:
        return refused(
            "TOKEN_NOT_FOUND",
            f"no token has the id {event.token!r}",
            field="id",
            next_step="list them with: gpuctl token list",
        )
    if token.revoked_at is not None:
        return NOTHING
    return Decision(records=(TokenRevoked(at=event.at, token=event.token, by=event.by),))
