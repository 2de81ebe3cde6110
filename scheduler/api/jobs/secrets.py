"""The Scheduler service: secrets. Values come in and are sealed; nothing here ever answers one."""

from collections.abc import Iterable

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ...engine import Engine
from ...secret_box import SecretBox
from ...state.access import Secret
from ...state.durable import Durable
from ...state.events import SecretRemovalRequested, SecretSubmitted
from ...state.ids import SecretName, UserName
from ...state.replies import SecretChanged
from ...state.specs import JobSpec
from ...wire.secret_fields import secret_name, secret_proto, secret_value
from ...wire.validate import USER_NAME
from ..answers import Calls, reply_of
from ..paging import PageTokens, page_size
from ..roles import caller


class SecretCalls(Calls):
    """What people do with their secrets. Each method is one RPC."""

    engine: Engine
    pages: PageTokens
    secret_box: SecretBox

    async def SetSecret(self, request: scheduler_pb2.SetSecretRequest) -> scheduler_pb2.SetSecretResponse:
        """Seal a value and keep it."""
        user, name = _owner(request.user), secret_name(request.name, "name")
        value = secret_value(request.value, "value")
        now = self.engine.now()
        sealed = self.secret_box.seal(user, name, value, is_first=not self.engine.view.durable.secrets)
        secret = Secret(user=user, name=name, set_at=now, set_by=caller().user, sealed=sealed)
        reply = await reply_of(self.engine.request(SecretSubmitted(at=now, secret=secret)))
        assert isinstance(reply, SecretChanged)
        return scheduler_pb2.SetSecretResponse(secret=secret_proto(reply.secret), is_new=reply.is_new)

    async def ListSecrets(self, request: scheduler_pb2.ListSecretsRequest) -> scheduler_pb2.ListSecretsResponse:
        """A page of a user's secrets, in the order of their names."""
        owner, size = _owner(request.user), page_size(request.page_size)
        query = f"secrets {owner}"
        cursor = self.pages.read(query, request.page_token)
        known = sorted(name for user, name in self.engine.view.durable.secrets if user == owner)
        wanted = [name for name in known if not cursor or name > cursor[0]]
        more = self.pages.sign(query, [wanted[size - 1]]) if len(wanted) > size else ""
        shown = [secret_proto(self.engine.view.durable.secrets[owner, name]) for name in wanted[:size]]
        return scheduler_pb2.ListSecretsResponse(secrets=shown, next_page_token=more)

    async def RemoveSecret(self, request: scheduler_pb2.RemoveSecretRequest) -> scheduler_pb2.RemoveSecretResponse:
        """Drop a secret."""
        event = SecretRemovalRequested(
            at=self.engine.now(),
            by=caller().user,
            user=_owner(request.user),
            name=secret_name(request.name, "name"),
        )
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, SecretChanged)
        return scheduler_pb2.RemoveSecretResponse(secret=secret_proto(reply.secret))


def check_secrets(durable: Durable, owner: UserName, specs: Iterable[JobSpec], field: str) -> None:
    """Refuse jobs that name a secret which their owner does not have; `field` with a place for the spec's number.

    Errors: SECRET_NOT_FOUND.
    """
    for number, spec in enumerate(specs):
        of_image = spec.container.image_secret if spec.container is not None else SecretName("")
        named = [(f"{field.format(number)}[{variable!r}]", name) for variable, name in spec.secrets]
        if of_image:
            named.append((f"{field.format(number).removesuffix('secrets')}container.image_secret", of_image))
        for path, name in named:
            if (owner, name) not in durable.secrets:
                raise invalid(
                    path,
                    f"{owner} has no secret {name!r}",
                    reason=Reason.SECRET_NOT_FOUND,
                    next_step=f"see the names with: gpuctl secret list · set it with: gpuctl secret set {name}",
                )


def _owner(named: str) -> UserName:
    """Whose secrets are meant. Errors: PERMISSION_DENIED for those of others, but for admins."""
    who = caller()
    if named in ("", who.user):
        return who.user
    if not who.is_admin:
        raise GpufleetError(Reason.PERMISSION_DENIED, f"secrets of {named[:80]} are theirs, and for admins")
    if not USER_NAME.fullmatch(named):
        raise invalid("user", f"{named[:80]!r} is not a user's name", next_step="leave it out for your own")
    return UserName(named)
