"""Which workers a client asks, and where: by its settings, and by gpuctl's context where they do not say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from gpufleet.config.cli_settings import load_cli
from gpufleet.config.gateway_settings import GATEWAY_PORT
from gpufleet.config.layers import Problem, config_error
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import is_loopback
from gpufleet.security.tokens import is_token, read_token_file

from .core.outcomes import Backend
from .http import Origin, parse_url
from .settings import ClientSettings

MODE_HEADER, CONTENT_TYPE_HEADER = "Gpufleet-Gpu-Mode", "Gpufleet-Content-Type"
"""What a request says to the gateway: docs/gpu-or-cpu.md."""

CALLABLE = "callable"
"""The name of the user's callable among the workers."""


@dataclass(frozen=True, slots=True)
class Route:
    """A worker, or a gateway in front of several: where, which model, and what the user says that it computes on.

    `headers` say with each request how it takes GPUs.
    """

    origin: Origin
    model: str
    backend: Backend | None = None
    is_gateway: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> str:
        """Of the model, below the origin's prefix."""
        return f"/v2/models/{quote(self.model, safe='')}"


@dataclass(frozen=True, slots=True)
class _Gateway:
    url: str
    token: str
    origin: Origin


def routes_of(
    settings: ClientSettings, *, has_callable: bool, environment: Mapping[str, str] = os.environ
) -> list[Route]:
    """The workers that the settings name. Raises CONFIG_INVALID where there are none."""
    routes = [_direct(settings, "addresses", text) for text in settings.addresses]
    routes += [_direct(settings, "cpu_addresses", text, Backend.CPU) for text in settings.cpu_addresses]
    through: list[tuple[str, Backend | None]] = (
        [(settings.model, None)] if settings.model and not settings.addresses else []
    )
    through += [(settings.cpu_model, Backend.CPU)] if settings.cpu_model else []
    if through:
        gateway = _gateway(settings, environment)
        # What runs on CPUs has no CPU model of its own.
        said = _mode_headers(settings)
        routes += [_behind(gateway, model, backend, () if backend else said) for model, backend in through]
    if settings.backend == "callable":
        routes = []
    if settings.backend in ("gpu", "cpu") and not any(
        route.backend in (None, Backend(settings.backend)) for route in routes
    ):
        raise _wrong("backend", f"no worker is named that may be of {settings.backend}")
    if not routes and not (has_callable and settings.backend in ("auto", "callable")):
        needed = "a fallback callable" if settings.backend == "callable" else "a model, or addresses of workers"
        raise _wrong("model" if settings.backend != "callable" else "backend", f"name {needed}: there is nobody to ask")
    return routes


def _direct(settings: ClientSettings, key: str, text: str, backend: Backend | None = None) -> Route:
    """A worker by its address; it never gets the token, which is the gateway's alone."""
    try:
        return Route(parse_url(text, ca_file=settings.ca_file), settings.model, backend)
    except ValueError as problem:
        raise _wrong(key, str(problem)) from None


def _mode_headers(settings: ClientSettings) -> tuple[tuple[str, str], ...]:
    said = ((MODE_HEADER, settings.gpu_mode), (CONTENT_TYPE_HEADER, settings.content_type))
    return tuple((name, value) for name, value in said if value)


def _behind(gateway: _Gateway, model: str, backend: Backend | None, headers: tuple[tuple[str, str], ...]) -> Route:
    origin = gateway.origin
    prefix = f"{origin.prefix}/m/{quote(model, safe='')}"
    through = Origin(origin.host, origin.port, origin.is_tls, prefix, gateway.token, origin.ca_file)
    return Route(through, model, backend, is_gateway=True, headers=headers)


def _gateway(settings: ClientSettings, environment: Mapping[str, str]) -> _Gateway:
    url, token, ca_file = settings.gateway, settings.token, settings.ca_file
    is_insecure = settings.insecure
    if settings.token_file is not None:
        token = read_token_file(settings.token_file)
    if not url or not token:
        known = load_cli({}, environment=environment)
        found = None if token else known.token(environment)
        token = token or (found.token if found else "")
        ca_file = ca_file or known.settings.ca_file
        is_insecure = is_insecure or known.settings.insecure
        url = url or known.settings.gateway or ""
        beyond = [address.host for address in known.settings.scheduler if not is_loopback(address.host)]
        if not url and beyond:
            why = f"say where the gateway is, such as https://{beyond[0]}:{GATEWAY_PORT}"
            raise _wrong("gateway", f"{why}: gpuctl's context names the scheduler alone")
        url = url or f"http://127.0.0.1:{GATEWAY_PORT}"
    if token and not is_token(token):
        raise _wrong("token", "this is not a gpufleet token, which begins with gf_")
    try:
        origin = parse_url(url, ca_file=ca_file)
    except ValueError as problem:
        raise _wrong("gateway", str(problem)) from None
    if token and not origin.is_tls and not is_loopback(origin.host) and not is_insecure:
        raise GpufleetError(
            Reason.TLS_REQUIRED,
            f"the token would leave this machine without encryption, to {origin.url}",
            next_step="Give an https address, or say insecure=True if the network is trusted.",
        )
    return _Gateway(url, token, origin)


def _wrong(key: str, why: str) -> GpufleetError:
    return config_error([Problem("InferenceClient", key, why)])
