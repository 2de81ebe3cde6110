"""How workers by hand and gateways join: a token that lets them is traded for a credential of one of them.

The program makes its credential and says its digest, so that no answer carries a secret and a lost one is asked for
again. A credential is a token: it is listed and revoked as one, and never lets anybody join. Nodes: membership.py.
"""

from fnmatch import fnmatchcase

from ..state.access import Role, Token
from ..state.events import ProgramAnnounced
from ..state.records import CredentialRenewed, ProgramJoined
from ..state.replies import CredentialGiven
from ..state.state import State
from .decision import Decision, refused


def on_program_announced(state: State, event: ProgramAnnounced) -> Decision:
    """Trade a token for a credential, renew that, or answer again what was answered before."""
    by = state.durable.tokens[event.by]
    if by.program:
        return _renewed(state, event, by)
    known = [token for token in state.durable.tokens.values() if token.digest == event.digest]
    if known:
        token = known[0]
        if (token.joined_by, token.program, token.revoked_at) == (by.id, event.name, None):
            return Decision(reply=CredentialGiven(token=token))
        return refused("CONFLICT", "this credential is another program's", field="digest")
    if by.role is Role.WORKER and not fnmatchcase(event.model, by.models or "*"):
        return refused(
            "PERMISSION_DENIED",
            f"token {by.id} lets workers join of models named like {by.models!r}, and not {event.model!r}",
            field="model",
            next_step="ask an admin for another one: gpuctl token create OWNER --role worker --model NAME --uses 1",
        )
    taken = next((each for each in state.durable.tokens.values() if each.program == event.name), None)
    if taken is not None:
        what = "was revoked" if taken.revoked_at is not None else "is another program's, or was lost with its folder"
        return refused(
            "TOKEN_NAME_TAKEN",
            f"a {taken.role.value} called {event.name!r} has joined, and its credential {what}",
            field="name",
            next_step="join under another name: --worker-id, or --gateway-id",
        )
    if by.uses >= by.uses_max:
        return refused(
            "TOKEN_USED_UP",
            f"token {by.id} has let {by.uses} of {by.uses_max} programs join",
            next_step=f"ask an admin for another one: gpuctl token create USER --role {by.role.value} --uses 1",
        )
    token = Token(
        id=event.fresh,
        user=by.user,
        role=by.role,
        digest=event.digest,
        created_at=event.at,
        models=event.model,
        program=event.name,
        joined_by=by.id,
    )
    return Decision(records=(ProgramJoined(at=event.at, token=token),), reply=CredentialGiven(token=token))


def _renewed(state: State, event: ProgramAnnounced, own: Token) -> Decision:
    """The credential of a program that asks by the one that it has, or by the next, whose answer was lost."""
    if (event.name, event.model) != (own.program, own.models):
        of_model = f" of model {own.models!r}" if own.models else ""
        return refused(
            "PERMISSION_DENIED",
            f"the credential is that of {own.role.value} {own.program!r}{of_model}, and of no other",
            field="name",
            next_step="join under another name, with a token that lets programs join",
        )
    if event.digest == own.digest:
        return Decision(reply=CredentialGiven(token=own))
    if any(token.digest == event.digest for token in state.durable.tokens.values()):
        return refused("CONFLICT", "this credential is another program's", field="digest")
    record = CredentialRenewed(at=event.at, token=own.id, digest=event.digest)
    return Decision(records=(record,), reply=CredentialGiven(token=own))
