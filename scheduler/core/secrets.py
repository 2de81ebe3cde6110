"""Secrets: set, replaced and removed. Their values are sealed before they come here."""

from ..state.events import SecretRemovalRequested, SecretSubmitted
from ..state.records import SecretRemoved, SecretSet
from ..state.replies import SecretChanged
from ..state.state import State
from .decision import Decision, refused

SECRETS_PER_USER_MAX = 100
"""Secrets that one user may have."""


def on_secret_submitted(state: State, event: SecretSubmitted) -> Decision:
    """Keep a secret, in place of the one of this name. Jobs that run are not told."""
    secret = event.secret
    is_new = secret.key not in state.durable.secrets
    known = sum(user == secret.user for user, _ in state.durable.secrets) if is_new else 0
    if known >= SECRETS_PER_USER_MAX:
        return refused(
            "QUOTA_EXCEEDED",
            f"{secret.user} has {known} secrets, as many as one user may",
            field="name",
            next_step="remove one that no job needs any more: gpuctl secret rm NAME",
        )
    return Decision(
        records=(SecretSet(at=event.at, secret=secret, by=secret.set_by),),
        reply=SecretChanged(secret=secret, is_new=is_new),
    )


def on_secret_removal_requested(state: State, event: SecretRemovalRequested) -> Decision:
    """Drop a secret."""
    secret = state.durable.secrets.get((event.user, event.name))
    if secret is None:
        return refused(
            "SECRET_NOT_FOUND",
            f"{event.user} has no secret {event.name!r}",
            field="name",
            next_step="see them with: gpuctl secret list",
        )
    record = SecretRemoved(at=event.at, user=event.user, name=event.name, by=event.by)
    return Decision(records=(record,), reply=SecretChanged(secret=secret, is_new=False))
