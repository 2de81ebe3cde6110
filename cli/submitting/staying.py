"""Submit and stay: the job is on its way while what stays with it is still being imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpufleet.v1 import scheduler_pb2

from gpufleet.fleet.client import BegunCall
from gpufleet.fleet.settings import Settings

from .interrupted import tell_interrupted
from .tracing import is_traced

if TYPE_CHECKING:
    from gpufleet.fleet.inside.ports import Listening


def stay(
    settings: Settings,
    request: scheduler_pb2.SubmitRequest,
    ports: Sequence[Listening] = (),
    *,
    page: str | None = None,
    opens: bool = False,
) -> int:
    """Submit one job, follow it to its end and answer its exit code; see `run_attached`."""
    begun: BegunCall[scheduler_pb2.SubmitResponse] | None = None
    if not is_traced():  # whose span is to begin before the call does
        begun = BegunCall(settings, "Submit", request)
    try:
        import asyncio

        from .attached import run_attached
    except KeyboardInterrupt:
        if begun is not None:
            begun.close()
        tell_interrupted()
        raise
    staying = run_attached(settings, request, settings.time_outs, ports, begun=begun, page=page, opens=opens)
    return asyncio.run(staying)
