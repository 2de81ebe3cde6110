"""What a spec says of its time limit beside how long it is: a signal before it, and another attempt behind it."""

import signal

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.runs import SIGNAL_MAX

from ..state.specs import LimitSignal
from ..state.units import SECOND, Span
from .convert import duration

BEFORE_DEFAULT = Span(60 * SECOND)
NOBODY_CATCHES = (signal.SIGKILL, signal.SIGSTOP)


def limit_signal_of(spec: job_pb2.JobSpec, path: str, time_limit: Span | None) -> LimitSignal | None:
    """The checked signal before the time limit, None where none is asked for."""
    if not spec.HasField("limit_signal"):
        return None
    asked, path = spec.limit_signal, f"{path}.limit_signal"
    if not 1 <= asked.signal <= SIGNAL_MAX:
        raise invalid(f"{path}.signal", f"is {asked.signal}; it must be 1 to {SIGNAL_MAX}")
    if asked.signal in NOBODY_CATCHES:
        name = signal.Signals(asked.signal).name
        raise invalid(f"{path}.signal", f"is {name}, which no program can catch", next_step="choose another: USR1@5m")
    if time_limit is None:
        raise invalid(path, "comes before the time limit, and there is none", next_step="add --time-limit")
    given = asked.before
    before = Span(given.seconds * SECOND + given.nanos // 1000) if asked.HasField("before") else BEFORE_DEFAULT
    if not 0 < before < time_limit:
        why = f"is {before / SECOND:g} s; it must be more than 0 and less than the limit of {time_limit / SECOND:g} s"
        raise invalid(f"{path}.before", why, next_step="give a shorter time (USR1@30s), or a longer --time-limit")
    return LimitSignal(signal=asked.signal, before=before, is_for_leader=asked.leader_only)


def requeue_on_timeout_of(spec: job_pb2.JobSpec, path: str, time_limit: Span | None) -> bool:
    """Whether the job waits again where its time limit would end it."""
    if not spec.requeue_on_timeout:
        return False
    path = f"{path}.requeue_on_timeout"
    if time_limit is None:
        raise invalid(path, "says what the time limit does, and there is none", next_step="add --time-limit")
    if spec.no_requeue:
        raise invalid(
            path,
            "does not go with no_requeue: it is run again at its time limit",
            next_step="leave out --no-requeue (what is typed to is never run again, either), or --requeue-on-timeout",
        )
    return True


def limit_signal_proto(asked: LimitSignal | None) -> job_pb2.LimitSignal | None:
    """The signal on the wire, in a spec and in a launch."""
    if asked is None:
        return None
    return job_pb2.LimitSignal(signal=asked.signal, before=duration(asked.before), leader_only=asked.is_for_leader)
