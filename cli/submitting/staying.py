"""Submit and stay: simple things at once, and what else there is by `attached.py`, which takes a while to import."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import grpc
from gpufleet.v1 import scheduler_pb2

from gpufleet.fleet.client import BegunCall
from gpufleet.fleet.settings import Settings

from .interrupted import tell_interrupted
from .progress import bring_back, code_of_end, how_to_follow
from .tracing import is_traced

if TYPE_CHECKING:
    from gpufleet.fleet.inside.ports import Listening

    from .first_moments import FirstMoments


def stay(
    settings: Settings,
    request: scheduler_pb2.SubmitRequest,
    ports: Sequence[Listening] = (),
    *,
    page: str | None = None,
    opens: bool = False,
) -> int:
    """Submit one job, follow it to its end and answer its exit code; see `run_attached`."""
    if is_traced():  # whose span is to begin before the call does
        return _stay_attached(settings, request, ports, page=page, opens=opens)
    is_simple = not (ports or request.specs[0].input)
    begun = None
    try:
        begun = BegunCall[scheduler_pb2.SubmitResponse](settings, "Submit", request)
        from .first_moments import FirstMoments

        answer = begun.result() if is_simple else None
    except grpc.RpcError:  # it is asked for again, where that may pass
        return _stay_attached(settings, request, ports, begun, page=page, opens=opens)
    except KeyboardInterrupt:  # perhaps in the middle of the call's beginning, when it was sent already
        if begun is not None:
            begun.close()
        tell_interrupted()
        raise
    if answer is None:
        return _stay_attached(settings, request, ports, begun, page=page, opens=opens)
    first = FirstMoments(answer.job)
    say = first.streams.note
    with first.keeping_signals():
        for note in answer.notes:
            say(note)
        try:
            with closing(begun):
                has_ended = first.follow(begun.client, settings)
        except Exception:
            say(how_to_follow(first.job.id, "left", has_input=False))
            raise
        if not has_ended or first.signals:
            return _go_on(settings, request, first)
        code = code_of_end(first.job, say)
    if request.specs[0].results:
        return bring_back(settings, first.job.id, code, say)
    return code


def _go_on(settings: Settings, request: scheduler_pb2.SubmitRequest, first: FirstMoments) -> int:
    import asyncio

    from .attached import go_on

    return asyncio.run(go_on(settings, request, settings.time_outs, first))


def _stay_attached(
    settings: Settings,
    request: scheduler_pb2.SubmitRequest,
    ports: Sequence[Listening] = (),
    begun: BegunCall[scheduler_pb2.SubmitResponse] | None = None,
    *,
    page: str | None = None,
    opens: bool = False,
) -> int:
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
