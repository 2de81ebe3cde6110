"""Commands that change jobs: what they name, whether they are sure, and what came of it for each job."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc
from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.spelling import did_you_mean

from . import screen
from .chosen import selectors_of
from .client import connected
from .options import Connection, Output
from .render import words
from .render.as_json import print_message
from .selectors import Selection, read_selection
from .settings import resolve

if TYPE_CHECKING:
    from gpufleet.v1.scheduler_pb2_grpc import SchedulerStub

SIGNAL_MAX = 64

Q = TypeVar("Q")


class Changed(Protocol):
    """An answer that says what happened to each job."""

    @property
    def changes(self) -> Sequence[scheduler_pb2.JobChange]: ...


A = TypeVar("A", bound=Changed)


@dataclass(frozen=True, slots=True)
class Change(Generic[Q]):
    """One kind of change: its verb, the call, and the request for some jobs."""

    verb: str
    method: Callable[[SchedulerStub], grpc.UnaryUnaryMultiCallable[Q, Any]]
    request: Callable[[scheduler_pb2.JobSelector], Q]


def change_jobs(
    connection: Connection, output: Output, given: Sequence[str], change: Change[Q], *, is_sure: bool
) -> None:
    """Change the jobs that the words name, and print a line for each."""
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


def holding(verb: str, *, is_held: bool) -> Change[scheduler_pb2.UpdateJobRequest]:
    """The change that holds or releases."""

    def request(selector: scheduler_pb2.JobSelector) -> scheduler_pb2.UpdateJobRequest:
        change = scheduler_pb2.UpdateJobRequest(jobs=selector, is_held=is_held)
        change.update_mask.paths.append("is_held")
        return change

    return Change(verb, lambda stub: stub.UpdateJob, request)


def signal_number(word: str) -> int:
    """The number of `USR1`, `SIGUSR1` or `10`. Raises INVALID_ARGUMENT."""
    if word.isascii() and word.isdigit():
        number = int(word)
        if 1 <= number <= SIGNAL_MAX:
            return number
        raise invalid("SIGNAL", f"{number} is not from 1 to {SIGNAL_MAX}", next_step="See the numbers with: kill -l")
    name = word.upper() if word.upper().startswith("SIG") else f"SIG{word.upper()}"
    if name in signal.Signals.__members__:
        return int(signal.Signals[name])
    nearest = did_you_mean(name, signal.Signals.__members__)
    raise invalid("SIGNAL", f'there is no signal "{word}"{nearest}', next_step="See the names with: kill -l")


def _be_sure(verb: str, selection: Selection) -> None:
    if not sys.stdin.isatty():
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"this would {verb} all your jobs, and there is no terminal to ask on",
            next_step="Say --yes if that is meant.",
        )
    print(f"{verb.capitalize()} all your jobs? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            "nothing was changed",
            next_step="Answer y, or say --yes, to change all your jobs.",
        )


def _in_words(change: scheduler_pb2.JobChange) -> str:
    return change.message or f"job {change.job_id}: {words.job_state(change.state).text}"
