"""Whether a model's workers can be asked at all, told before anything is: no gateway, no such model, no token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.client import ErrorKind, Result
from gpufleet.client.http import HttpAnswer, HttpOriginClient, RequestFailed
from gpufleet.client.protocol import ModelMetadata, error_text, failure_of_model, metadata_of
from gpufleet.client.routes import Route, routes_of
from gpufleet.client.settings import ClientSettings
from gpufleet.client.tensors import CannotDecode
from gpufleet.errors import GpufleetError, Reason

ANSWER_BYTES_MAX = 10_000_000
FINAL = frozenset({401, 403, 404})
"""Statuses that no wait changes."""

LOOK_AGAIN_S = 1.0
NO_TOKEN = frozenset({Reason.LOGIN_NEEDED, Reason.TOKEN_MISSING})


@dataclass(frozen=True, slots=True)
class Reached:
    """A worker, or the gateway in front of several, and what it says of the model; None of one that starts."""

    route: Route
    metadata: ModelMetadata | None


def check_reachable(settings: ClientSettings) -> None:
    """Return where anybody can be asked, be it that it still starts. Raises what `look` raises."""
    asyncio.run(look(settings, routes_of(settings, has_callable=False)))


def check_served(result: Result, next_step: str) -> None:
    """Raise MODEL_DOWN where an item has no answer as its model has failed: no further one will have any."""
    if result.error is not None and result.error.kind is ErrorKind.MODEL_DOWN:
        raise GpufleetError(Reason.MODEL_DOWN, result.error.message, next_step=next_step)


async def look(settings: ClientSettings, routes: Sequence[Route]) -> list[Reached]:
    """Those that answer. Raises MODEL_NOT_FOUND, MODEL_DOWN, WORKER_NOT_READY where nobody does, or what the gateway
    refuses itself."""
    found = await asyncio.gather(*(_asked(settings, route) for route in routes))
    reached = [each for each in found if isinstance(each, Reached)]
    problems = [each for each in found if isinstance(each, GpufleetError)]
    if not reached and problems:
        raise problems[0]
    return reached


async def wait_until_ready(settings: ClientSettings, routes: Sequence[Route]) -> list[Reached]:
    """The same, of those that are ready; waits `start_wait_s` for the first. Raises WORKER_NOT_READY."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + settings.start_wait_s
    while True:
        reached = await look(settings, routes)
        ready = [each for each in reached if each.metadata is not None]
        if ready:
            return ready
        if loop.time() + LOOK_AGAIN_S > until_s:
            names = ", ".join(each.route.origin.url for each in reached)
            why = f"no worker was ready within {settings.start_wait_s:g} s: {names}"
            raise GpufleetError(
                Reason.WORKER_NOT_READY, why, next_step=f"See why: gpuctl models -o wide --model {settings.model}"
            )
        await asyncio.sleep(LOOK_AGAIN_S)


async def _asked(settings: ClientSettings, route: Route) -> Reached | GpufleetError:
    http = HttpOriginClient(
        route.origin,
        connect_timeout_s=settings.connect_timeout_s,
        answer_bytes_max=ANSWER_BYTES_MAX,
        kept_max=1,
    )
    try:
        async with asyncio.timeout(settings.health_timeout_s):
            answer = await http.request("GET", route.path, route.headers)
    except TimeoutError:
        return Reached(route, None)  # it starts, or a gateway holds the question until a replica does
    except RequestFailed as problem:
        return _nobody(route, problem.failure.message)
    finally:
        http.close()
    if answer.status in FINAL or failure_of_model(answer.status, answer.body) is not None:
        return _refused(route, answer)
    if answer.status != 200:
        return Reached(route, None)
    try:
        return Reached(route, metadata_of(answer.body))
    except CannotDecode as problem:
        why = f"{route.origin.url} does not speak the Open Inference Protocol: {problem}"
        return GpufleetError(Reason.INVALID_ARGUMENT, why, next_step="See docs/inference-client.md.")


def _nobody(route: Route, why: str) -> GpufleetError:
    origin = route.origin
    step = "Check the address, and that the worker runs."
    if origin.prefix:
        step = "Start one with gpuctl up or gpuctl gateway, or say where it is: --gateway https://HOST:7860"
    what = "no gateway" if origin.prefix else "no worker"
    url = origin.url.removesuffix(origin.prefix) if origin.prefix else origin.url
    return GpufleetError(Reason.WORKER_NOT_READY, f"{what} answers at {url}: {why}", next_step=step)


def _refused(route: Route, answer: HttpAnswer) -> GpufleetError:
    """The gateway's own words, or a worker's."""
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        said = None
    error = said.get("error") if isinstance(said, dict) else None
    said = error if isinstance(error, dict) else {}
    reason = Reason.__members__.get(str(said.get("reason")))
    message, step = error_text(answer.body) or f"status {answer.status}", str(said.get("next_step") or "")
    if reason is None:
        reason = Reason.MODEL_NOT_FOUND if answer.status == 404 else Reason.PERMISSION_DENIED
        message = f"{route.origin.url}: {message}"
    if reason is Reason.MODEL_NOT_FOUND:
        step = "See what is served with: gpuctl models"
    elif reason in NO_TOKEN and not route.origin.token:
        message = (
            f"the gateway at {route.origin.url.removesuffix(route.origin.prefix)} wants a token, and none is named"
        )
        step = "Name yours: --token-file FILE, GPUCTL_TOKEN, or: gpuctl config context add"
    return GpufleetError(reason, message, next_step=step)
