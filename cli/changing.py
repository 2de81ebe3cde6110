"""Commands that change jobs: what they name, whether they are sure, and what came of it for each job."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc
import typer
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.spelling import did_you_mean

from . import screen
from .chosen import selectors_of
from .client import connected
from .errors import REFUSED, Declined
from .job_spec import BANDS, band
from .options import Connection, Output
from .render import words
from .render.as_json import print_message
from .selectors import Selection, read_selection
from .settings import resolve

if TYPE_CHECKING:
    from gpufleet.v1.scheduler_pb2_grpc import SchedulerStub

SIGNAL_MAX = 64

RUNS = frozenset({job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_STOPPING})

Q = TypeVar("Q")


class Changed(Protocol):
    """An answer that says what happened to each job."""

    @property
    def changes(self) -> Sequence[scheduler_pb2.JobChange]: ...


A = TypeVar("A", bound=Changed)


@dataclass(frozen=True, slots=True)
class Change(Generic[Q]):
    """One kind of change: its verb, the call, and the request for some jobs.

    `reaches` says from the state that is left whether a job that was not changed is as it was wanted to be.
    """

    verb: str
    method: Callable[[SchedulerStub], grpc.UnaryUnaryMultiCallable[Q, Any]]
    request: Callable[[scheduler_pb2.JobSelector], Q]
    reaches: Callable[[job_pb2.JobState.ValueType], bool] = lambda state: True


def change_jobs(
    connection: Connection, output: Output, given: Sequence[str], change: Change[Q], *, is_sure: bool
) -> None:
    """Change the jobs that the words name, and print a line for each.

    A job that was named and cannot be changed so, as one that runs cannot be held, gives exit code 4. Of `all`, those
    that can be changed are meant.
    """
    settings = resolve(connection, output)
    selection = read_selection(given)
    if selection.all_mine and not is_sure:
        _be_sure(change.verb, selection)
    changes: list[scheduler_pb2.JobChange] = []
    with connected(settings) as client:
        for selector in selectors_of(client, selection):
            answer = client.call_again(change.method(client.scheduler), change.request(selector))
            changes += answer.changes
    for each in changes:
        if settings.format in ("json", "jsonl"):
            print_message(each, "jsonl")
        elif settings.format == "name":
            print(each.job_id)
        else:
            screen.print_lines([_in_words(each)])
    if not changes:
        screen.tell("Nothing to change: no job of yours waits or runs.")
    if not selection.all_mine and any(not (each.changed or change.reaches(each.state)) for each in changes):
        raise typer.Exit(REFUSED)


def holding(verb: str, *, is_held: bool) -> Change[scheduler_pb2.UpdateJobRequest]:
    """The change that holds or releases."""

    def request(selector: scheduler_pb2.JobSelector) -> scheduler_pb2.UpdateJobRequest:
        change = scheduler_pb2.UpdateJobRequest(jobs=selector, is_held=is_held)
        change.update_mask.paths.append("is_held")
        return change

    if not is_held:
        return Change(verb, lambda stub: stub.UpdateJob, request)
    return Change(verb, lambda stub: stub.UpdateJob, request, lambda state: state == job_pb2.JOB_STATE_HELD)


def band_number(word: str, jobs: Sequence[str]) -> job_pb2.Band.ValueType:
    """The band by its word. Raises INVALID_ARGUMENT, also where it stands behind the jobs."""
    if jobs[-1].lower() in BANDS and word.lower() not in BANDS:
        raise _comes_first("BAND", "band", word, jobs)
    return band(word, "BAND")


def signal_number(word: str, jobs: Sequence[str]) -> int:
    """The number of `USR1`, `SIGUSR1` or `10`. Raises INVALID_ARGUMENT, also where it stands behind the jobs."""
    if word.isdigit() and _signal_name(jobs[-1]) in signal.Signals.__members__:
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


def _be_sure(verb: str, selection: Selection) -> None:
    if not sys.stdin.isatty():
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"this would {verb} all your jobs, and there is no terminal to ask on",
            next_step="Say --yes if that is meant.",
        )
    print(f"{verb.capitalize()} all your jobs? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was changed")


def _in_words(change: scheduler_pb2.JobChange) -> str:
    return change.message or f"job {change.job_id}: {words.job_state(change.state).text}"
