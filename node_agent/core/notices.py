"""Which notices of an attempt are due, and what they say: `--notify`, as a pure function of facts and the clock.

    start ── time_80 ── time_90 ── warning ── preemption ── end

An attempt's notices are told one after the other. Those that only its running makes worth telling are left out once
it is told to stop or has ended; the start and the end never are. An end that the scheduler may have a warning of
waits for its word, and not for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gpufleet.jobs.runs import Cause, ExitCode, ExitSignal, RankKey, StopCause

from .outcome import AttemptEnd, AttemptView

MESSAGE_CHARS_MAX = 1_000
"""What a notice says in a sentence is cut behind so many characters."""


WARNINGS_MAX = 20
"""Warnings of one attempt that are told."""

END_WAITS_US_MAX = 5_000_000
"""How long an end is not told for the scheduler's word, counted from the end. Of ranks on several nodes the others
may end a moment later, and only then the scheduler knows.
"""


FAILURES_TOLD_MAX = 20
"""Notices of one attempt that were not delivered and are told to the scheduler; others are in the agent's log."""


LAST_FAILURE = "; further failures of this attempt are in the agent's log alone"


class Notice(StrEnum):
    """What an attempt is told of."""

    START = "start"
    TIME_80 = "time_80"
    TIME_90 = "time_90"
    WARNING = "warning"
    PREEMPTION = "preemption"
    END = "end"


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of the scheduler: the how-manieth of its attempt, its kind, and a sentence."""

    number: int
    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A notice that was not delivered: the how-manieth of its attempt, which notice, and why."""

    number: int
    notice: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """An attempt whose course is told. `told` was delivered or given up, and is not told again.

    `warnings` are those of the scheduler as they came, and `warned` the numbers of those that were told.
    `may_be_warned_at_end`: it held devices, which are judged then. `is_settled`: no more warnings will come. `failures`
    are those of `failure_count` that the scheduler has not stored yet.
    """

    key: RankKey
    time_limit_us: int | None = None
    started_us: int | None = None
    stop_cause: Cause | None = None
    end: AttemptEnd | None = None
    told: frozenset[Notice] = frozenset()
    warnings: tuple[Warned, ...] = ()
    warned: frozenset[int] = frozenset()
    may_be_warned_at_end: bool = False
    is_settled: bool = False
    failures: tuple[Failure, ...] = ()
    failure_count: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more will ever be told of it, to whom it names or to the scheduler."""
        return Notice.END in self.told and not self.failures


def next_notice(facts: Notified, now_us: int) -> Notice | None:
    """The notice to tell at this moment, the earliest first; None when there is none. `now_us` is CLOCK_BOOTTIME."""
    if Notice.END in facts.told:
        return None
    due = (notice for notice in Notice if notice not in facts.told and _is_due(notice, facts, now_us))
    return next(due, None)


def with_failure(facts: Notified, notice: Notice, why: str) -> Notified:
    """Return the facts with a notice that was not delivered; one too many changes nothing."""
    number = facts.failure_count + 1
    if number > FAILURES_TOLD_MAX:
        return facts
    why = why[:MESSAGE_CHARS_MAX]
    if number == FAILURES_TOLD_MAX:
        why = f"{why[: MESSAGE_CHARS_MAX - len(LAST_FAILURE)]}{LAST_FAILURE}"
    failure = Failure(number, notice.value, why)
    return replace(facts, failures=(*facts.failures, failure), failure_count=number)


def without_failure(facts: Notified, number: int) -> Notified:
    """Return the facts once the scheduler has stored this failure."""
    return replace(facts, failures=tuple(each for each in facts.failures if each.number != number))


def with_warning(facts: Notified, warning: Warned) -> Notified:
    """The facts with a warning more; one that is known, or one too many, changes nothing."""
    is_known = any(each.number == warning.number for each in facts.warnings)
    if is_known or len(facts.warnings) >= WARNINGS_MAX:
        return facts
    return replace(facts, warnings=(*facts.warnings, warning))


def with_time_limit(facts: Notified, time_limit_us: int | None) -> Notified:
    """The facts with another time limit. That a raised one is near is told again."""
    before_us = facts.time_limit_us
    is_raised = before_us is not None and (time_limit_us is None or time_limit_us > before_us)
    told = facts.told - {Notice.TIME_80, Notice.TIME_90} if is_raised else facts.told
    return replace(facts, time_limit_us=time_limit_us, told=told)


def after_telling(facts: Notified, notice: Notice) -> Notified:
    """The facts once the notice that was next is told."""
    warning = next_warning(facts)
    if notice is Notice.WARNING and warning is not None:
        return replace(facts, warned=facts.warned | {warning.number})
    return replace(facts, told=facts.told | {notice})


def next_warning(facts: Notified) -> Warned | None:
    """The first warning that was not told."""
    return next((each for each in facts.warnings if each.number not in facts.warned), None)


def next_due_us(facts: Notified, now_us: int) -> int | None:
    """When time alone will make a notice due; None: only something that happens will."""
    word_us = _word_until_us(facts, now_us)
    if word_us is not None:
        return word_us
    if not _runs(facts):
        return None
    moments = (_moment_of(notice, facts) for notice in (Notice.TIME_80, Notice.TIME_90) if notice not in facts.told)
    return min((moment for moment in moments if moment is not None and moment > now_us), default=None)


def with_view(facts: Notified, view: AttemptView) -> Notified:
    """The facts with what a keeper knows of the attempt; what was known is never forgotten."""
    end = view.end or facts.end
    ran = not (end is not None and end.failure is not None)
    return replace(
        facts,
        started_us=(view.started_us or facts.started_us) if ran else None,
        # An end knows whether it came of being told to stop; a stop may have come too late.
        stop_cause=end.stop_cause if end is not None else view.stop_cause or facts.stop_cause,
        end=end,
    )


def fields_of(facts: Notified, notice: Notice, reason: str, message: str) -> Mapping[str, str | int | bool]:
    """What a notice says, by name, in the order in which it is written. `reason` and `message` are of an end."""
    fields: dict[str, str | int | bool] = {
        "notice": notice.value,
        "job_id": facts.key.job,
        "attempt": facts.key.attempt,
    }
    if facts.time_limit_us is not None:
        fields["time_limit_seconds"] = facts.time_limit_us // 1_000_000
    if notice in (Notice.END, Notice.PREEMPTION) and facts.stop_cause is not None:
        fields["stop_cause"] = facts.stop_cause.value
    warning = next_warning(facts)
    if notice is Notice.WARNING and warning is not None:
        fields["warning"] = warning.kind
        fields["message"] = warning.sentence[:MESSAGE_CHARS_MAX]
    if notice is Notice.END and facts.end is not None:
        match facts.end.status:
            case ExitCode(code=code):
                fields["exit_code"] = code
            case ExitSignal(signal=number):
                fields["exit_signal"] = number
            case None:
                pass
        fields["reason"] = reason
        fields["message"] = message[:MESSAGE_CHARS_MAX]
        if facts.stop_cause in (StopCause.REQUEUED, StopCause.PREEMPTED):
            fields["is_requeued"] = True
    return fields


def variables_of(fields: Mapping[str, str | int | bool]) -> dict[str, str]:
    """The same for a command's environment: `job_id` is GPUFLEET_JOB_ID, and what is true is 1."""
    return {
        f"GPUFLEET_{name.removeprefix('is_').upper()}": "1" if value is True else str(value)
        for name, value in fields.items()
    }


def _is_due(notice: Notice, facts: Notified, now_us: int) -> bool:
    match notice:
        case Notice.START:
            return facts.started_us is not None
        case Notice.TIME_80:
            # An agent that was away for both tells the later one alone.
            return _has_come(notice, facts, now_us) and not (
                Notice.TIME_90 in facts.told or _has_come(Notice.TIME_90, facts, now_us)
            )
        case Notice.TIME_90:
            return _has_come(notice, facts, now_us)
        case Notice.WARNING:
            return next_warning(facts) is not None
        case Notice.PREEMPTION:
            return facts.stop_cause is StopCause.PREEMPTED and facts.end is None
        case Notice.END:
            return facts.end is not None and _word_until_us(facts, now_us) is None


def _word_until_us(facts: Notified, now_us: int) -> int | None:
    """Until when an end still waits for the scheduler's word of it; None: it does not. Only one as wished is judged."""
    end = facts.end
    if end is None or end.ended_us is None or not facts.may_be_warned_at_end or facts.is_settled:
        return None
    if not end.ended_us <= now_us < end.ended_us + END_WAITS_US_MAX:
        return None  # also where it lies ahead: then it is of an earlier boot, whose clock says nothing now
    is_judged = end.status == ExitCode(code=0) or end.stop_cause is StopCause.TIME_LIMIT
    return end.ended_us + END_WAITS_US_MAX if is_judged else None


def _has_come(notice: Notice, facts: Notified, now_us: int) -> bool:
    moment_us = _moment_of(notice, facts)
    return _runs(facts) and moment_us is not None and now_us >= moment_us


def _runs(facts: Notified) -> bool:
    return facts.started_us is not None and facts.end is None and facts.stop_cause is None


def _moment_of(notice: Notice, facts: Notified) -> int | None:
    if facts.time_limit_us is None or facts.started_us is None:
        return None
    percent = 80 if notice is Notice.TIME_80 else 90
    return facts.started_us + facts.time_limit_us * percent // 100
