"""Commands that change jobs: what they name, whether they are sure, and what came of it for each job."""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.named_jobs import Selection, read_selection, selectors_of
from gpufleet.fleet.outcome import FINAL_STATES
from gpufleet.fleet.reading import read, wrong
from gpufleet.fleet.submitting.option_kinds import BANDS, band
from gpufleet.fleet.submitting.requests import in_options
from gpufleet.jobs.runs import SIGNAL_MAX
from gpufleet.text.spelling import did_you_mean
from gpufleet.text.units import counted, parse_duration

from .. import screen
from ..declaring import Exit
from ..errors import REFUSED, Declined
from ..options import Printing
from ..printing import print_message
from ..render import words
from .filter_options import Filters
from .filtered import Found, check_filters, find

if TYPE_CHECKING:
    from gpufleet.v1.scheduler_pb2_grpc import SchedulerStub


NO_LIMIT = "none"

TYPED = {"time_limit": "--time-limit", "name": "--name", "reason": "--reason", "signal": "SIGNAL"}
"""What people typed for a field that the server names."""

RUNS = frozenset({job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_STOPPING})
MAY_RUN = frozenset({job_pb2.JOB_STATE_STARTING, job_pb2.JOB_STATE_RUNNING})
"""States of a job that a requeue stops; one that stays in them must not run twice."""

Q = TypeVar("Q")


class Changed(Protocol):
    """An answer that says what happened to each job."""

    @property
    def changes(self) -> Sequence[scheduler_pb2.JobChange]: ...


A = TypeVar("A", bound=Changed)


@dataclass(frozen=True, slots=True)
class Change(Generic[Q]):
    """One kind of change: its verb, which is the command unless that is named, the call, and the request for some jobs.

    `is_as_wanted` says of the state that is left whether a job that was not changed is as it was wanted to be.
    """

    verb: str
    method: Callable[[SchedulerStub], grpc.UnaryUnaryMultiCallable[Q, Any]]
    request: Callable[[scheduler_pb2.JobSelector], Q]
    is_as_wanted: Callable[[job_pb2.JobState.ValueType], bool] = lambda state: True
    command: str = ""

    def typed(self, field: str) -> str:
        """What people typed for a field that the server names."""
        if field == "band":
            return "BAND" if self.command == "band" else "--band"
        return TYPED.get(field, field)


def change_jobs(
    options: Printing,
    given: Sequence[str] | None,
    filters: Filters,
    change: Change[Q],
    *,
    is_sure: bool,
) -> None:
    """Change the jobs that the words name, or the filters choose, and print a line for each.

    A job that was named and cannot be changed so, as one that runs cannot be held, gives exit code 4. Of `all`, and of
    those that are chosen by what they are, those that can be changed are meant.
    """
    settings = options.settings()
    check_filters(change.command or change.verb, filters, given or ())
    selection = read_selection(given or ())
    is_of_many = selection.all_mine or filters.are_given
    if is_of_many and not is_sure and not sys.stdin.isatty():
        raise _nobody_to_ask(change.verb, selection)
    changed = False
    must_be_changed = False
    with connected(settings) as client:
        for selector in _selectors(client, selection, filters, change.verb, is_sure=is_sure):
            try:
                answer = client.call_again(change.method(client.scheduler), change.request(selector))
            except GpufleetError as problem:
                raise in_options(problem, change.typed) from None
            _print_changes(settings.format, answer.changes)
            changed = changed or bool(answer.changes)
            must_be_changed |= any(not (each.changed or change.is_as_wanted(each.state)) for each in answer.changes)
    if not changed:
        like = "is like that" if filters.are_given else "waits or runs"
        screen.tell(f"Nothing to change: no job of yours {like}.")
    if not is_of_many and must_be_changed:
        raise Exit(REFUSED)


def _selectors(
    client: Client, selection: Selection, filters: Filters, verb: str, *, is_sure: bool
) -> Iterable[scheduler_pb2.JobSelector]:
    """The jobs that are meant, in lots; who is there is asked first where they are many."""
    if filters.are_given:
        found = find(client, filters)
        if found.count and not is_sure:
            _be_sure(verb, found)
        return found.lots()
    if selection.all_mine and not is_sure:
        found = find(client, Filters())
        if found.count:
            _be_sure(verb, found)
    return selectors_of(client, selection)


def _print_changes(form: str, changes: Iterable[scheduler_pb2.JobChange]) -> None:
    for each in changes:
        if form in ("json", "jsonl"):
            print_message(each, "jsonl")
        elif form == "name":
            print(each.job_id)
        else:
            screen.print_lines([_in_words(each)])


def cancelling(reason: str, *, abandon: bool) -> Change[scheduler_pb2.CancelRequest]:
    """The change that stops them."""
    return Change(
        "cancel",
        lambda stub: stub.Cancel,
        lambda jobs: scheduler_pb2.CancelRequest(jobs=jobs, reason=reason, abandon=abandon),
    )


def signalling(word: str, jobs: Sequence[str]) -> Change[scheduler_pb2.SignalJobRequest]:
    """The change that sends a signal. Raises INVALID_ARGUMENT."""
    number = signal_number(word, jobs)
    return Change(
        "signal",
        lambda stub: stub.SignalJob,
        lambda jobs: scheduler_pb2.SignalJobRequest(jobs=jobs, signal=number, request_id=uuid.uuid4().hex),
        lambda state: state in RUNS,
    )


def requeueing(reason: str) -> Change[scheduler_pb2.RequeueJobRequest]:
    """The change that queues them again."""
    return Change(
        "requeue",
        lambda stub: stub.RequeueJob,
        lambda jobs: scheduler_pb2.RequeueJobRequest(jobs=jobs, reason=reason),
        lambda state: has_not_ended(state) and state not in MAY_RUN,
    )


def has_not_ended(state: job_pb2.JobState.ValueType) -> bool:
    """Whether a job in this state waits or runs."""
    return state not in FINAL_STATES


def holding(verb: str, *, is_held: bool) -> Change[scheduler_pb2.UpdateJobRequest]:
    """The change that holds or releases."""
    return _update(verb, lambda state: not is_held or state == job_pb2.JOB_STATE_HELD, is_held=is_held)


def moving(word: str, jobs: Sequence[str]) -> Change[scheduler_pb2.UpdateJobRequest]:
    """The change to another band. Raises INVALID_ARGUMENT."""
    return _update("move", has_not_ended, "band", band=band_number(word, jobs))


def updating(time_limit: str | None, name: str | None, word: str | None) -> Change[scheduler_pb2.UpdateJobRequest]:
    """The change to another time limit (`none` for none), name or band. Raises INVALID_ARGUMENT, also for no change."""
    values: dict[str, Any] = {}
    if time_limit is not None:
        is_none = time_limit.strip().lower() == NO_LIMIT
        values["time_limit"] = None if is_none else read("--time-limit", parse_duration, time_limit)
    if name is not None:
        values["name"] = name
    if word is not None:
        values["band"] = band(word, "--band")
    if not values:
        raise invalid(
            "update",
            "nothing to change is named",
            next_step="Give --time-limit, --name or --band: gpuctl update --help",
        )
    return _update("update", has_not_ended, **values)


def _update(
    verb: str, is_as_wanted: Callable[[job_pb2.JobState.ValueType], bool], command: str = "", **values: Any
) -> Change[scheduler_pb2.UpdateJobRequest]:
    """The change of these fields to these values; None takes one away."""
    mask = FieldMask(paths=list(values))
    return Change(
        verb,
        lambda stub: stub.UpdateJob,
        lambda jobs: scheduler_pb2.UpdateJobRequest(jobs=jobs, update_mask=mask, **values),
        is_as_wanted,
        command,
    )


def band_number(word: str, jobs: Sequence[str]) -> job_pb2.Band.ValueType:
    """The band by its word. Raises INVALID_ARGUMENT, also where it stands behind the jobs."""
    if jobs and jobs[-1].lower() in BANDS and word.lower() not in BANDS:
        raise _comes_first("BAND", "band", word, jobs)
    return band(word, "BAND")


def signal_number(word: str, jobs: Sequence[str]) -> int:
    """The number of `USR1`, `SIGUSR1` or `10`. Raises INVALID_ARGUMENT, also where it stands behind the jobs."""
    if jobs and word.isdigit() and _signal_name(jobs[-1]) in signal.Signals.__members__:
        raise _comes_first("SIGNAL", "signal", word, jobs)
    if word.isascii() and word.isdigit():
        number = int(word)
        if 1 <= number <= SIGNAL_MAX:
            return number
        raise invalid("SIGNAL", f"{number} is not from 1 to {SIGNAL_MAX}", next_step="See the numbers with: kill -l")
    name = _signal_name(word)
    if name in signal.Signals.__members__:
        return int(signal.Signals[name])
    nearest = did_you_mean(name, signal.Signals.__members__)
    raise invalid("SIGNAL", f'there is no signal "{word}"{nearest}', next_step="See the names with: kill -l")


def _comes_first(what: str, command: str, word: str, jobs: Sequence[str]) -> GpufleetError:
    typed = " ".join([jobs[-1], word, *jobs[:-1]])
    return invalid(what, f'"{jobs[-1]}" comes before the jobs', next_step=f"Write: gpuctl {command} {typed}")


def _signal_name(word: str) -> str:
    return word.upper() if word.upper().startswith("SIG") else f"SIG{word.upper()}"


def _nobody_to_ask(verb: str, selection: Selection) -> GpufleetError:
    whom = "all your jobs" if selection.all_mine else "all jobs that are chosen so"
    return wrong(f"this would {verb} {whom}, and there is no terminal to ask on", "Say --yes if that is meant.")


def _be_sure(verb: str, found: Found) -> None:
    question = f"{verb.capitalize()} {counted(found.count, 'job')} {found.whose()}? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was changed")


def _in_words(change: scheduler_pb2.JobChange) -> str:
    return change.message or f"job {change.job_id}: {words.job_state(change.state).text}"
