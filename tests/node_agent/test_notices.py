"""Which notices of an attempt are due, when, and what they say: pure."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.jobs.runs import ExitCode, ExitSignal, JobId, RankKey, StopCause
from node_agent.core.commands import LaunchAttempt, TellWarning
from node_agent.core.environment import PATH_DEFAULT
from node_agent.core.expectations import Expectations
from node_agent.core.launch import FILES_PATH, ContainerAsked, Process
from node_agent.core.notices import (
    END_WAITS_US_MAX,
    FAILURES_TOLD_MAX,
    WARNINGS_MAX,
    Failure,
    Notice,
    Notified,
    Warned,
    after_telling,
    fields_of,
    next_due_us,
    next_notice,
    next_warning,
    variables_of,
    with_failure,
    with_time_limit,
    with_view,
    with_warning,
)
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, LaunchFailure, Offsets
from node_agent.isolation.accounts import Isolating
from node_agent.keeper.linux import boottime_us
from node_agent.launch import Launcher
from node_agent.notice_delivery import run_command
from node_agent.notice_records import NoticeRecords, Subject
from node_agent.notices import Notices, in_folder_if_there
from tests.e2e.processes import until

KEY = RankKey(JobId(7), 2, 0)
SECOND = 1_000_000
LIMIT = 100 * SECOND
BEGUN = 5_000 * SECOND
RUNS = Notified(key=KEY, time_limit_us=LIMIT, started_us=BEGUN, told=frozenset({Notice.START}))
VIEW = AttemptView(key=KEY, phase=AttemptPhase.RUNNING, keeper_id="k", directory="/spool", pid=42, started_us=BEGUN)
END = AttemptEnd(status=ExitCode(code=3), output_ends=Offsets(), started_us=BEGUN, ended_us=BEGUN + SECOND)


def after(seconds: float) -> int:
    return BEGUN + round(seconds * SECOND)


def told_by(facts: Notified, now_us: int) -> list[Notice]:
    """Everything that is told at one moment, in its order."""
    found: list[Notice] = []
    while (notice := next_notice(facts, now_us)) is not None:
        found.append(notice)
        facts = replace(facts, told=facts.told | {notice})
    return found


def test_what_is_not_started_has_no_notice() -> None:
    facts = Notified(key=KEY, time_limit_us=LIMIT)
    assert told_by(facts, after(99)) == []
    assert next_due_us(facts, after(99)) is None


def test_a_started_attempt_is_told_of_once() -> None:
    facts = with_view(Notified(key=KEY), VIEW)
    assert told_by(facts, after(0)) == [Notice.START]
    assert next_due_us(facts, after(0)) is None, "without a limit no time comes"


@pytest.mark.parametrize(
    ("seconds", "due", "then"),
    [(79.999, [], 80.0), (80, [Notice.TIME_80], 90.0), (90, [Notice.TIME_90], None), (100, [Notice.TIME_90], None)],
)
def test_the_limit_is_told_at_80_and_at_90_percent(seconds: float, due: list[Notice], then: float | None) -> None:
    assert told_by(RUNS, after(seconds)) == due
    assert next_due_us(RUNS, after(seconds)) == (None if then is None else after(then))


def test_after_90_percent_there_is_no_word_of_80() -> None:
    assert told_by(replace(RUNS, told=frozenset({Notice.START, Notice.TIME_90})), after(95)) == []


def test_who_is_told_to_stop_hears_no_more_of_time() -> None:
    assert told_by(replace(RUNS, stop_cause=StopCause.CANCELLED), after(95)) == []
    assert next_due_us(replace(RUNS, stop_cause=StopCause.CANCELLED), after(1)) is None


def test_a_preemption_is_told_before_the_end_and_never_after_it() -> None:
    preempted = with_view(RUNS, replace(VIEW, stop_cause=StopCause.PREEMPTED))
    assert told_by(preempted, after(1)) == [Notice.PREEMPTION]
    ended = with_view(preempted, replace(VIEW, end=replace(END, stop_cause=StopCause.PREEMPTED)))
    assert told_by(ended, after(2)) == [Notice.END]


def test_a_quick_attempt_is_told_of_from_its_start_to_its_end() -> None:
    facts = with_view(Notified(key=KEY, time_limit_us=LIMIT), replace(VIEW, end=END))
    assert told_by(facts, after(95)) == [Notice.START, Notice.END]
    assert replace(facts, told=frozenset({Notice.END})).is_over


def test_a_command_that_never_ran_has_an_end_only() -> None:
    end = replace(END, status=ExitCode(code=127), failure=LaunchFailure.COMMAND_NOT_FOUND)
    assert told_by(with_view(Notified(key=KEY), replace(VIEW, end=end)), after(1)) == [Notice.END]


def test_a_stop_that_came_too_late_is_no_cause() -> None:
    ended = with_view(replace(RUNS, stop_cause=StopCause.CANCELLED), replace(VIEW, end=END))
    assert "stop_cause" not in fields_of(ended, Notice.END, "EXITED", "")


def test_an_end_says_how_and_that_it_is_requeued() -> None:
    ended = with_view(
        RUNS, replace(VIEW, end=replace(END, status=ExitSignal(signal=15), stop_cause=StopCause.REQUEUED))
    )
    fields = fields_of(ended, Notice.END, "SIGNALLED", "the command was ended by signal 15")
    assert fields == {
        "notice": "end",
        "job_id": 7,
        "attempt": 2,
        "time_limit_seconds": 100,
        "stop_cause": "REQUEUED",
        "exit_signal": 15,
        "reason": "SIGNALLED",
        "message": "the command was ended by signal 15",
        "is_requeued": True,
    }
    assert variables_of(fields)["GPUFLEET_REQUEUED"] == "1"
    assert variables_of(fields)["GPUFLEET_EXIT_SIGNAL"] == "15"
    assert variables_of(fields)["GPUFLEET_NOTICE"] == "end"


def told_in_order(facts: Notified, now_us: int) -> list[Notice | int]:
    """Everything that is told at one moment, in its order; of warnings their numbers."""
    found: list[Notice | int] = []
    while (notice := next_notice(facts, now_us)) is not None:
        warning = next_warning(facts)
        found.append(warning.number if notice is Notice.WARNING and warning is not None else notice)
        facts = after_telling(facts, notice)
    return found


def test_each_warning_is_told_once_and_before_the_end() -> None:
    facts = with_warning(Notified(key=KEY), Warned(1, "DEVICES_IDLE", "GPU 0 is idle."))
    facts = with_warning(with_warning(facts, Warned(3, "THROTTLED", "Hot.")), Warned(1, "DEVICES_IDLE", "Again."))
    ended = with_view(facts, replace(VIEW, end=END))
    assert told_in_order(ended, after(1)) == [Notice.START, 1, 3, Notice.END]
    assert told_in_order(replace(ended, warned=frozenset({1})), after(1)) == [Notice.START, 3, Notice.END]


WELL = replace(END, status=ExitCode(code=0), ended_us=after(1))


def test_an_end_waits_for_what_the_scheduler_may_warn_of_but_not_for_long() -> None:
    facts = with_view(replace(RUNS, may_be_warned_at_end=True), replace(VIEW, end=WELL))
    assert told_in_order(facts, after(2)) == [] and next_due_us(facts, after(2)) == after(1) + END_WAITS_US_MAX
    warned = with_warning(facts, Warned(1, "MEMORY_UNUSED", "Little was used."))
    assert told_in_order(warned, after(2)) == [1]
    assert told_in_order(replace(warned, is_settled=True), after(2)) == [1, Notice.END]
    assert told_in_order(facts, after(1) + END_WAITS_US_MAX) == [Notice.END]
    assert told_in_order(facts, after(0.9)) == [Notice.END], "the machine was started again, and its clock with it"


@pytest.mark.parametrize(
    ("holds", "end", "waits"),
    [
        (True, WELL, True),
        (True, replace(WELL, status=ExitSignal(signal=15), stop_cause=StopCause.TIME_LIMIT), True),
        (False, WELL, False),
        (True, replace(WELL, status=ExitCode(code=3)), False),
        (True, replace(WELL, status=ExitSignal(signal=15), stop_cause=StopCause.CANCELLED), False),
        (True, replace(WELL, ended_us=None), False),
    ],
)
def test_only_an_end_that_may_be_warned_of_waits(holds: bool, end: AttemptEnd, waits: bool) -> None:
    facts = with_view(replace(RUNS, may_be_warned_at_end=holds), replace(VIEW, end=end))
    assert told_in_order(facts, after(2)) == ([] if waits else [Notice.END])


async def test_a_warning_of_the_end_is_told_before_it_and_the_end_as_soon_as_all_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent in between was killed: what it wrote down says that the end waits."""
    monkeypatch.setattr("node_agent.core.notices.END_WAITS_US_MAX", 3_600 * SECOND)
    told, records = tmp_path / "told", NoticeRecords(tmp_path / "notices")
    ended = replace(VIEW, phase=AttemptPhase.ENDED, end=replace(WELL, ended_us=boottime_us()))
    before = Notified(key=KEY, told=frozenset({Notice.START}), may_be_warned_at_end=True)
    subject = Subject(facts=before, target=f"echo $GPUFLEET_NOTICE $GPUFLEET_WARNING >> {told}", cwd="/", env={})
    for is_gang in (False, True):
        told.unlink(missing_ok=True)
        records.begin(replace(subject, spans_nodes=is_gang))
        records.note(replace(before, told=frozenset()), before)
        notices = Notices("n1", records)
        try:
            notices.adopt([ended])
            notices.warn(TellWarning(key=KEY, number=1, kind="MEMORY_UNUSED", sentence="Little was used."))
            await until("the warning is told", lambda: told.exists() and told.read_text())  # made, and then written
            assert told.read_text() == "warning MEMORY_UNUSED\n"
            notices.settle(KEY)
            if not is_gang:  # else another rank may end later
                await until("the end is told", lambda: told.read_text() == "warning MEMORY_UNUSED\nend\n")
                await until("nothing is kept of it", lambda: not records.all())
            else:
                assert not records.all()[0].facts.is_settled
        finally:
            await notices.close()


def test_no_more_warnings_are_kept_than_a_job_has() -> None:
    facts = RUNS
    for number in range(1, 100):
        facts = with_warning(facts, Warned(number, "THROTTLED", "Hot."))
    assert len(facts.warnings) == WARNINGS_MAX


def test_a_warning_says_its_kind_and_its_sentence() -> None:
    facts = with_warning(RUNS, Warned(1, "DEVICES_IDLE", "GPU 0 is idle." * 100))
    fields = fields_of(facts, Notice.WARNING, "", "")
    assert (fields["notice"], fields["warning"], len(str(fields["message"]))) == ("warning", "DEVICES_IDLE", 1_000)
    assert variables_of(fields)["GPUFLEET_WARNING"] == "DEVICES_IDLE"
    assert "warning" not in fields_of(facts, Notice.TIME_80, "", "")


def test_what_was_warned_of_and_what_was_told_of_it_is_known_after_a_restart(tmp_path: Path) -> None:
    records = NoticeRecords(tmp_path / "notices")
    facts = Notified(key=KEY)
    records.begin(Subject(facts=facts, target="true", cwd="/", env={}))
    for changed in (
        with_warning(facts, Warned(1, "DEVICES_IDLE", "GPU 0 is idle.")),
        after_telling(with_warning(facts, Warned(1, "DEVICES_IDLE", "GPU 0 is idle.")), Notice.WARNING),
    ):
        records.note(facts, changed)
        facts = changed
    (known,) = records.all()
    assert known.facts == facts and known.facts.warned == {1}


def test_a_long_message_is_cut() -> None:
    ended = with_view(RUNS, replace(VIEW, end=END))
    assert len(str(fields_of(ended, Notice.END, "EXITED", "x" * 5_000)["message"])) == 1_000


def test_a_raised_time_limit_is_told_of_anew_and_a_lowered_one_is_not() -> None:
    told = replace(RUNS, told=RUNS.told | {Notice.TIME_80, Notice.TIME_90})
    raised = with_time_limit(told, 2 * LIMIT)
    assert raised.told == RUNS.told
    assert next_due_us(raised, BEGUN + LIMIT) == BEGUN + 2 * LIMIT * 80 // 100
    assert with_time_limit(told, LIMIT // 2).told == told.told
    assert next_notice(with_time_limit(RUNS, None), BEGUN + LIMIT) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other accounts")
def test_a_command_of_a_job_in_a_container_runs_on_the_node_as_the_jobs_user(tmp_path: Path) -> None:
    launcher = Launcher(
        cast(Any, SimpleNamespace(devices={})),
        live=lambda: (),
        spool_bytes=lambda: 1,
        for_workers=dict,
        folder_of=lambda key: tmp_path / key.name,
        isolating=Isolating(IsolationSettings(users="range"), tmp_path),
    )
    command = LaunchAttempt(
        key=KEY,
        process=Process(argv=("true",), env={"WORD": "sesame"}, cwd="src"),
        expectations=Expectations(device_uuids=()),
        user="alice",
        results=("out",),
        container=ContainerAsked(image="busybox"),
    )
    beside = launcher.beside(command, launcher.complete(command, None, heartbeat_sent_us=1, traceparent=""))
    assert beside.isolation is not None and beside.isolation.uid != 0
    assert (beside.isolation.files, beside.cwd) == (str(tmp_path / KEY.name), f"{FILES_PATH}/src")
    assert (beside.env["WORD"], beside.env["PATH"]) == ("sesame", PATH_DEFAULT)


async def test_a_command_runs_in_a_containers_folder_where_the_node_has_one_of_that_name(tmp_path: Path) -> None:
    inside = tmp_path / "in' a container"
    line = in_folder_if_there(str(inside), "pwd")
    assert await run_command(line, "/", {}) == "/"
    inside.mkdir()
    assert await run_command(line, "/", {}) == str(inside)


def test_the_folder_of_an_attempts_files_is_kept_for_a_command_until_its_end_is_told_and_for_no_url() -> None:
    told = replace(RUNS, told=frozenset({Notice.START, Notice.END}))
    command = Subject(facts=RUNS, target="date", cwd="/", env={})
    assert command.needs_folder and not replace(command, facts=told).needs_folder
    assert not replace(command, target="https://hooks.example.com/1").needs_folder


async def test_an_agent_that_starts_again_keeps_the_folder_until_the_end_is_told(tmp_path: Path) -> None:
    records, released = NoticeRecords(tmp_path / "notices"), list[RankKey]()
    records.begin(Subject(facts=Notified(key=KEY), target="test -e go", cwd=str(tmp_path), env={}))
    notices = Notices("n1", records)
    notices.listen(released.append)
    try:
        notices.adopt([replace(VIEW, phase=AttemptPhase.ENDED, end=END)])
        assert notices.keys_with_folder() == (KEY,) and notices.needs_folder(KEY)
        await until("the end is told", lambda: released == [KEY])
        assert not notices.needs_folder(KEY)
    finally:
        await notices.close()


async def test_a_failure_is_told_to_the_scheduler_until_it_has_stored_it(tmp_path: Path) -> None:
    """Also by an agent that starts again: until then what is written down of the attempt stays."""
    records, told = NoticeRecords(tmp_path / "notices"), list[tuple[RankKey, Failure, Callable[[], None]]]()

    def tell(key: RankKey, failure: Failure, stored: Callable[[], None]) -> None:
        told.append((key, failure, stored))

    ended = replace(VIEW, phase=AttemptPhase.ENDED, end=END)
    records.begin(Subject(facts=Notified(key=KEY), target="echo oh no; exit 5", cwd="/", env={}))
    first = Notices("n1", records, tell_failure=tell)
    first.adopt([ended])
    await until("both notices failed", lambda: len(told) == 2)
    await first.close()
    assert [failure.notice for _, failure, _ in told] == ["start", "end"]
    assert told[0][1] == Failure(1, "start", "it did not reach the command: it ended with code 5: 'oh no'")
    again, told = told, []
    second = Notices("n1", records, tell_failure=tell)
    try:
        second.adopt([])  # its end is stored, and it is forgotten
        assert [each[:2] for each in told] == [each[:2] for each in again], "none was stored"
        assert second.keys_with_folder() == (), "nothing runs any more"
        for _, _, stored in told:
            stored()
        await until("nothing is kept of it", lambda: not records.all())
    finally:
        await second.close()


def test_no_more_failures_of_an_attempt_are_told_than_are_kept() -> None:
    facts = RUNS
    for _ in range(FAILURES_TOLD_MAX + 5):
        facts = with_failure(facts, Notice.WARNING, "x" * 2_000)
    assert [each.number for each in facts.failures] == list(range(1, FAILURES_TOLD_MAX + 1))
    assert {len(each.message) for each in facts.failures} == {1_000}
    assert facts.failures[-1].message.endswith("in the agent's log alone")
    assert not replace(facts, told=frozenset({Notice.END})).is_over


def test_another_time_limit_survives_the_agent(tmp_path: Path) -> None:
    records = NoticeRecords(tmp_path / "notices")
    subject = Subject(facts=RUNS, target="true", cwd="/", env={})
    records.begin(subject)
    records.note(subject.facts, with_time_limit(subject.facts, 2 * LIMIT))
    (found,) = records.all()
    assert found.facts.time_limit_us == 2 * LIMIT
