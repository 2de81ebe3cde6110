"""The OpenID Connect provider over HTTP: its description, its keys, and the exchange of a code. By httpx2.

Everything is bounded: how long an answer takes in all, how long it is, how often it is asked for. No redirect is
followed, and no answer is decompressed. What it describes is believed only where it names itself by the issuer of the
settings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from gpufleet.config.login_settings import OidcSettings, wrong_provider_url
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import is_loopback
from gpufleet.telemetry.logs import fields

from .claims import refused_login
from .id_tokens import INSTALL

log = logging.getLogger(__name__)

ANSWER_S_MAX = 10.0
"""How long the provider may take for one answer, all of it."""

DOCUMENT_BYTES_MAX = 256 * 1024
DESCRIPTION_S_MAX = 3600.0
"""How long its description and its keys are believed without asking again."""

PAUSE_S = 5.0
"""A provider that failed is asked again after this; so are its keys where a token names one that is not among them."""

ASKED_AT_ONCE_MAX = 16
"""Exchanges that wait for the provider; more are refused."""

SECRET_BYTES_MAX = 4_096
METHOD = "S256"


@dataclass(frozen=True, slots=True)
class Description:
    """What of the provider's own description is used."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    takes_basic: bool


class Provider:
    """One provider. Errors of all: LOGIN_PROVIDER_FAILED, EXTRA_MISSING."""

    def __init__(self, settings: OidcSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.oidc = settings
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._described: Description | None = None
        self._keys: Mapping[str, Any] = {}
        self._described_at = self._keys_at = -math.inf
        self._failed_at = -math.inf
        self._failure: GpufleetError | None = None
        self._asking = 0

    async def authorization_url(self, *, redirect_uri: str, state: str, nonce: str, code_challenge: str) -> str:
        """Where a browser logs in."""
        endpoint = (await self._description()).authorization_endpoint
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.oidc.client_id,
                "redirect_uri": redirect_uri,
                "scope": " ".join(self.oidc.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": code_challenge,
                "code_challenge_method": METHOD,
            }
        )
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{query}"

    async def id_token(self, *, code: str, redirect_uri: str, code_verifier: str) -> str:
        """What the provider gives for a code. Raises LOGIN_FAILED where it takes none of it."""
        if self._asking >= ASKED_AT_ONCE_MAX:
            message = f"{ASKED_AT_ONCE_MAX} logins wait for the provider"
            raise GpufleetError(Reason.TOO_MANY_TRIES, message, retry_after_s=PAUSE_S)
        self._asking += 1
        try:
            described = await self._description()
            form = {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": redirect_uri,
                "code_verifier": code_verifier,
            }
            status, answer = await self._ask(
                described.token_endpoint, form | self._client_form(described), self._client_headers(described)
            )
        finally:
            self._asking -= 1
        if status in (400, 401, 403):
            why = str(answer.get("error", status))[:80]
            log.warning("the provider takes a code for nothing", extra=fields(why=why))
            raise refused_login(f"the provider does not take the login's code: {why!r}", "Begin the login again.")
        id_token = answer.get("id_token")
        if status != 200 or not isinstance(id_token, str):
            raise self._wrong(described.token_endpoint, f"it answers {status} and no ID token")
        return id_token

    async def keys(self, *, newer: bool = False) -> Mapping[str, Any]:
        """The keys that it signs with. `newer`: asked for again, unless that was done just now."""
        described = await self._description()
        async with self._lock:
            age_s = self._monotonic() - self._keys_at
            if age_s > DESCRIPTION_S_MAX or (newer and age_s > PAUSE_S):
                status, keys = await self._ask(described.jwks_uri)
                if status != 200 or not isinstance(keys.get("keys"), list):
                    raise self._wrong(described.jwks_uri, f"it answers {status} and no keys")
                self._keys, self._keys_at = keys, self._monotonic()
            return self._keys

    async def _description(self) -> Description:
        async with self._lock:
            now_s = self._monotonic()
            if self._described is not None and now_s - self._described_at <= DESCRIPTION_S_MAX:
                return self._described
            if self._failure is not None and now_s - self._failed_at < PAUSE_S:
                raise self._failure
            try:
                self._described = await self._read_description()
            except GpufleetError as problem:
                self._failure, self._failed_at = problem, self._monotonic()
                log.warning("the provider cannot be asked", extra=fields(why=problem.message))
                raise
            self._described_at = self._monotonic()
            return self._described

    async def _read_description(self) -> Description:
        url = self.oidc.issuer.rstrip("/") + "/.well-known/openid-configuration"
        status, said = await self._ask(url)
        if status != 200:
            raise self._wrong(url, f"it answers {status}")
        if said.get("issuer") != self.oidc.issuer:
            raise self._wrong(url, f"it says to be {repr(said.get('issuer'))[:120]}, and not {self.oidc.issuer!r}")
        methods = said.get("token_endpoint_auth_methods_supported")
        return Description(
            authorization_endpoint=self._endpoint(url, said, "authorization_endpoint"),
            token_endpoint=self._endpoint(url, said, "token_endpoint"),
            jwks_uri=self._endpoint(url, said, "jwks_uri"),
            takes_basic=not isinstance(methods, list) or "client_secret_basic" in methods,
        )

    def _endpoint(self, url: str, said: Mapping[str, Any], name: str) -> str:
        end = said.get(name)
        why = wrong_provider_url(end) if isinstance(end, str) else "there is none"
        if why or not isinstance(end, str):
            raise self._wrong(url, f"its {name} is not taken: {why}")
        return end

    def _client_form(self, described: Description) -> dict[str, str]:
        secret = self._secret()
        if secret and described.takes_basic:
            return {}
        return {"client_id": self.oidc.client_id} | ({"client_secret": secret} if secret else {})

    def _client_headers(self, described: Description) -> dict[str, str]:
        secret = self._secret()
        if not secret or not described.takes_basic:
            return {}
        from base64 import b64encode

        pair = f"{quote(self.oidc.client_id, safe='')}:{quote(secret, safe='')}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}

    def _secret(self) -> str:
        return read_client_secret(self.oidc.client_secret_file)

    async def _ask(
        self, url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        """One question; the status, and the object of the answer."""
        try:
            import httpx2
        except ImportError:
            message = "this login needs the package httpx2"
            raise GpufleetError(Reason.EXTRA_MISSING, message, next_step=INSTALL) from None
        said = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        verb = "GET" if form is None else "POST"
        try:
            async with (
                asyncio.timeout(ANSWER_S_MAX),
                httpx2.AsyncClient(
                    verify=self._tls(), follow_redirects=False, timeout=ANSWER_S_MAX, trust_env=not _is_here(url)
                ) as client,
                client.stream(verb, url, data=dict(form) if form else None, headers=said) as answer,
            ):
                body = bytearray()
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise self._wrong(url, "it compresses its answer unasked")
                async for chunk in answer.aiter_raw():
                    body += chunk
                    if len(body) > DOCUMENT_BYTES_MAX:
                        raise self._wrong(url, f"its answer is longer than {DOCUMENT_BYTES_MAX:,} bytes")
                status = answer.status_code
        except TimeoutError:
            raise self._wrong(url, f"no answer came within {ANSWER_S_MAX:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as problem:
            raise self._wrong(url, f"it cannot be asked: {type(problem).__name__}: {problem}"[:300]) from None
        if 300 <= status < 400:
            raise self._wrong(url, f"it answers {status}: redirects are not followed")
        try:
            read = json.loads(bytes(body))
        except (ValueError, RecursionError):
            read = None
        if not isinstance(read, dict):
            if status == 200:
                raise self._wrong(url, "its answer is no object of JSON")
            read = {}
        return status, read

    def _tls(self) -> ssl.SSLContext | bool:
        file = self.oidc.ca_file
        return True if file is None else ssl.create_default_context(cafile=file)

    def _wrong(self, url: str, why: str) -> GpufleetError:
        return GpufleetError(Reason.LOGIN_PROVIDER_FAILED, f"{url[:200]}: {why}", retry_after_s=PAUSE_S)


def read_client_secret(file: Path | None) -> str:
    """The client's secret; empty without a file. Raises FILE_NOT_FOUND, TOKEN_FILE_EXPOSED, CONFIG_INVALID."""
    if file is None:
        return ""
    try:
        with file.open("rb") as opened:
            mode = file.stat().st_mode
            text = opened.read(SECRET_BYTES_MAX + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as problem:
        message = f"the secret of the provider's client cannot be read: {file}: {problem}"
        raise GpufleetError(Reason.FILE_NOT_FOUND, message) from None
    if mode & 0o077:
        message = f"other accounts can read the secret of the provider's client, {file}"
        raise GpufleetError(Reason.TOKEN_FILE_EXPOSED, message, next_step=f"Take their right away: chmod 600 {file}")
    if not text or len(text) > SECRET_BYTES_MAX or not text.isprintable():
        raise GpufleetError(Reason.CONFIG_INVALID, f"{file} holds no secret: one line that can be seen")
    return text


def _is_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")
