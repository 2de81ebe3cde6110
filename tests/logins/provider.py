"""An OpenID Connect provider over HTTP, with PKCE, of Authlib's server and Flask; it lies where a test says so.

Its page asks nobody for a password: one chooses who one is.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import flask
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import AuthorizationCodeMixin, ClientMixin
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc7636 import CodeChallenge
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from werkzeug.serving import make_server

CLIENT = "gpufleet"
CODE_LIFE_S = 60.0


def new_key() -> ECKey | RSAKey:
    """A key with a name of its own, which is made fast."""
    return ECKey.generate_key("P-256", {"use": "sig", "kid": secrets.token_hex(4)})


@dataclass
class Lies:
    """What it does otherwise than it should; nothing at first."""

    claims: dict[str, Any] = field(default_factory=dict)
    """Put over those of the ID token; None leaves one out."""
    issuer: str = ""
    """What it says to be where it describes itself."""
    endpoints: dict[str, Any] = field(default_factory=dict)
    key_id: str = ""
    algorithm: str = "ES256"
    answers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """What a path answers instead, by the path."""
    takes_codes_again: bool = False


@dataclass
class Client(ClientMixin):  # type: ignore[misc]
    """The one client; public where it has no secret."""

    redirect_uris: tuple[str, ...] = ()
    secret: str = ""

    def get_client_id(self) -> str:
        return CLIENT

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        # Any port of loopback is one address, as RFC 8252 has it.
        return redirect_uri.startswith(("http://127.0.0.1:", "http://127.0.0.1/")) or redirect_uri in self.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return secrets.compare_digest(client_secret, self.secret)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return (method == "none") is (not self.secret)

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass
class Code(AuthorizationCodeMixin):  # type: ignore[misc]
    """What one code is for."""

    code: str
    subject: str
    redirect_uri: str
    scope: str
    nonce: str
    code_challenge: str
    code_challenge_method: str
    made_at: float = field(default_factory=time.time)

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


class Provider:
    """One provider with its people; `people` has the claims of each by subject."""

    def __init__(self) -> None:
        self.people: dict[str, dict[str, Any]] = {}
        self.lies = Lies()
        self.client = Client()
        self.codes: dict[str, Code] = {}
        self.issuer = ""
        self.key = new_key()
        self.asked: list[str] = []
        self.leaving = threading.Event()
        self.app = _app(self)

    def rotate(self) -> None:
        """Sign with another key from now on."""
        self.key = new_key()

    def stall(self) -> flask.Response:
        """An answer that never comes, until the provider ends."""
        self.leaving.wait()
        return flask.Response(status=503)

    def id_token(self, code: Code) -> str:
        """What it says of who has this code."""
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": code.subject, "aud": CLIENT, "iat": now, "exp": now + 300}
        claims |= {"nonce": code.nonce, **self.people.get(code.subject, {}), **self.lies.claims}
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.lies.algorithm, "kid": self.lies.key_id or str(self.key.kid)}
        if self.lies.algorithm == "none" or self.lies.algorithm.startswith("HS"):
            return _forged(header, claims, self.key.as_pem(private=False))
        return str(jwt.encode(header, claims, self.key))


def _forged(header: dict[str, str], claims: dict[str, Any], public_key: bytes) -> str:
    """Signed by nobody, or with what everybody can read: the public key. joserfc itself would not make it."""
    said = ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, claims))
    if header["alg"] == "none":
        return said + "."
    mac = hmac.digest(public_key, said.encode(), f"sha{header['alg'][2:]}")
    return f"{said}.{urlsafe_b64encode(mac).decode().rstrip('=')}"


PAGE = """<!doctype html><title>Provider</title><h1>Who are you?</h1><form method="post">
{% for each in people %}<button name="sub" value="{{ each }}">{{ each }}</button>{% endfor %}
<button name="sub" value="">Nobody: do not log in</button></form>"""


def _app(provider: Provider) -> flask.Flask:
    app = flask.Flask(__name__)
    server = AuthorizationServer(
        app,
        query_client=lambda client_id: provider.client if client_id == CLIENT else None,
        save_token=lambda token, request: None,
    )

    class Grant(AuthorizationCodeGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")

        def save_authorization_code(self, code: str, request: Any) -> None:
            said = request.payload.data
            provider.codes[code] = Code(
                code=code,
                subject=request.user,
                redirect_uri=request.payload.redirect_uri,
                scope=request.payload.scope,
                nonce=said.get("nonce", ""),
                code_challenge=said.get("code_challenge", ""),
                code_challenge_method=said.get("code_challenge_method", ""),
            )

        def query_authorization_code(self, code: str, client: Client) -> Code | None:
            found = provider.codes.get(code)
            return found if found is not None and time.time() < found.made_at + CODE_LIFE_S else None

        def delete_authorization_code(self, authorization_code: Code) -> None:
            if not provider.lies.takes_codes_again:
                del provider.codes[authorization_code.code]

        def authenticate_user(self, authorization_code: Code) -> str:
            return authorization_code.subject

    def add_id_token(grant: Any, response: Any) -> None:
        _, payload, _ = response
        payload["id_token"] = provider.id_token(grant.request.authorization_code)

    def with_id_token(grant: Any) -> None:
        grant.register_hook("after_create_token_response", add_id_token)

    server.register_grant(Grant, [CodeChallenge(required=True), with_id_token])

    @app.before_request
    def lie() -> Any:
        provider.asked.append(flask.request.path)
        instead = provider.lies.answers.get(flask.request.path)
        return None if instead is None else instead()

    @app.get("/.well-known/openid-configuration")
    def describe() -> dict[str, Any]:
        return {
            "issuer": provider.lies.issuer or provider.issuer,
            "authorization_endpoint": f"{provider.issuer}/authorize",
            "token_endpoint": f"{provider.issuer}/token",
            "jwks_uri": f"{provider.issuer}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
            "code_challenge_methods_supported": ["S256"],
            **provider.lies.endpoints,
        }

    @app.get("/keys")
    def keys() -> dict[str, Any]:
        return {"keys": [provider.key.as_dict(private=False)]}

    @app.route("/authorize", methods=["GET", "POST"])
    def authorize() -> Any:
        try:
            grant = server.get_consent_grant()
        except OAuth2Error as problem:
            return flask.Response(f"refused: {problem.error}", status=400)
        if flask.request.method == "GET":
            return flask.render_template_string(PAGE, people=list(provider.people))
        subject = flask.request.form.get("sub") or None
        return server.create_authorization_response(grant=grant, grant_user=subject)

    @app.post("/token")
    def token() -> Any:
        return server.create_token_response()

    return app


@contextmanager
def serving(provider: Provider) -> Iterator[Provider]:
    """The provider at a port of its own, in a thread."""
    server = make_server("127.0.0.1", 0, provider.app, threaded=True)
    provider.issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="provider")
    thread.start()
    try:
        yield provider
    finally:
        provider.leaving.set()
        server.shutdown()
        thread.join()
        server.server_close()
