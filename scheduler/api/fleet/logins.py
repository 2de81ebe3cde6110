"""Logins: which ways there are, and a token for who has proven who they are."""

import logging
import re
import secrets
from urllib.parse import urlsplit

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.security.tokens import hash_token, make_token
from gpufleet.telemetry.logs import fields

from ...engine import Engine
from ...logins.claims import ProvenPerson
from ...logins.ways import Ways
from ...state.access import Role, Token
from ...state.events import LoginProven, LogoutRequested
from ...state.ids import TokenId
from ...state.units import Span, after
from ...wire.convert import token_proto
from ..answers import Calls, reply_of
from ..roles import caller, caller_if_known

log = logging.getLogger(__name__)

USER_CHARS_MAX = 63
PASSWORD_CHARS_MAX = 200
CODE_CHARS_MAX = 4_000
REDIRECT_CHARS_MAX = 2_000
ADDRESS_CHARS_MAX = 64
RANDOM = re.compile(r"[A-Za-z0-9_-]{22,200}")
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
TOKEN_ID_BYTES = 4


class LoginCalls(Calls):
    """The calls by which people come to a token, and let go of it."""

    engine: Engine
    ways: Ways
    logins_hold: Span

    async def DescribeLogin(self, request: scheduler_pb2.DescribeLoginRequest) -> scheduler_pb2.DescribeLoginResponse:
        """Which ways there are."""
        answer = scheduler_pb2.DescribeLoginResponse(
            has_passwords=self.ways.users is not None, valid_for=Duration(seconds=self.logins_hold // 1_000_000)
        )
        if self.ways.provider is not None:
            oidc = self.ways.oidc
            answer.provider.MergeFrom(
                scheduler_pb2.LoginProvider(name=oidc.name, issuer=oidc.issuer, client_id=oidc.client_id)
            )
        return answer

    async def BeginLogin(self, request: scheduler_pb2.BeginLoginRequest) -> scheduler_pb2.BeginLoginResponse:
        """Where a browser goes."""
        provider = self.ways.checked_provider()
        _check_redirect("redirect_uri", request.redirect_uri)
        _check_form("state", request.state, RANDOM, "22 to 200 random characters of A-Z, a-z, 0-9, '-' and '_'")
        _check_form("nonce", request.nonce, RANDOM, "22 to 200 random characters of A-Z, a-z, 0-9, '-' and '_'")
        _check_form("code_challenge", request.code_challenge, CHALLENGE, "the verifier's SHA-256 in base64url")
        url = await provider.authorization_url(
            redirect_uri=request.redirect_uri,
            state=request.state,
            nonce=request.nonce,
            code_challenge=request.code_challenge,
        )
        return scheduler_pb2.BeginLoginResponse(authorization_url=url)

    async def Login(self, request: scheduler_pb2.LoginRequest, context: object) -> scheduler_pb2.LoginResponse:
        """A token for who proves who they are."""
        address = _address(request.client_address, context)
        match request.WhichOneof("way"):
            case "password":
                said = request.password
                _check_length("password.user", said.user, USER_CHARS_MAX)
                _check_length("password.password", said.password, PASSWORD_CHARS_MAX)
                person = await self.ways.by_password(said.user, said.password, address)
            case "code":
                code = request.code
                _check_length("code.code", code.code, CODE_CHARS_MAX)
                _check_redirect("code.redirect_uri", code.redirect_uri)
                _check_form("code.code_verifier", code.code_verifier, VERIFIER, "43 to 128 characters, as in RFC 7636")
                _check_form("code.nonce", code.nonce, RANDOM, "that of BeginLogin")
                person = await self.ways.by_code(code.code, code.redirect_uri, code.code_verifier, code.nonce)
            case _:
                raise invalid("way", "is not set", next_step="say a password, or a provider's code")
        return await self._given(person, address)

    async def Logout(self, request: scheduler_pb2.LogoutRequest) -> scheduler_pb2.LogoutResponse:
        """End the login that calls."""
        who = caller()
        await reply_of(self.engine.request(LogoutRequested(at=self.engine.now(), by=who.user, token=who.token)))
        log.info("logged out", extra=fields(user=who.user, token=who.token))
        return scheduler_pb2.LogoutResponse(token=token_proto(self.engine.view.durable.tokens[who.token]))

    async def _given(self, person: ProvenPerson, address: str) -> scheduler_pb2.LoginResponse:
        now = self.engine.now()
        secret = make_token()
        token = Token(
            id=TokenId(secrets.token_hex(TOKEN_ID_BYTES)),
            user=person.user,
            role=person.role,
            digest=hash_token(secret),
            created_at=now,
            expires_at=after(now, self.logins_hold),
            note=f"login from {address}",
            login=person.login,
        )
        try:
            await reply_of(self.engine.request(LoginProven(at=now, token=token)))
        except GpufleetError as problem:
            log.warning("a login failed", extra=fields(user=person.user, address=address, why=problem.message))
            raise
        log.info("logged in", extra=fields(user=person.user, role=person.role.value, address=address, token=token.id))
        return scheduler_pb2.LoginResponse(token=token_proto(token), secret=secret)


def _address(said: str, context: object) -> str:
    """Where somebody logs in from: a gateway says it of its browsers, of all others it is where the call comes from."""
    who = caller_if_known()
    if said and who is not None and who.role is Role.GATEWAY:
        if len(said) > ADDRESS_CHARS_MAX or not said.isprintable() or not said.isascii():
            raise invalid("client_address", "is no address")
        return said
    return address_of_peer(getattr(context, "peer", str)())


def address_of_peer(peer: str) -> str:
    """The address in gRPC's name of a caller, such as ipv4:10.0.0.5:4711; "local" for a socket of this machine."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return "local"
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")[:ADDRESS_CHARS_MAX]


def _check_length(field: str, text: str, chars_max: int) -> None:
    if not text:
        raise invalid(field, "is empty")
    if len(text) > chars_max:
        raise invalid(field, f"is longer than {chars_max:,} characters")


def _check_form(field: str, text: str, form: re.Pattern[str], wanted: str) -> None:
    if not form.fullmatch(text):
        raise invalid(field, "is not what it has to be", next_step=f"send {wanted}")


def _check_redirect(field: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        is_url = False
    if not is_url or "#" in url or len(url) > REDIRECT_CHARS_MAX or not url.isprintable() or " " in url:
        raise invalid(
            field,
            "is no http or https URL without a fragment",
            next_step="send the one that the provider knows, as http://127.0.0.1:8400/callback",
        )
