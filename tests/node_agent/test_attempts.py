"""An order that fails in a way nobody thought of is answered all the same: what waits for it must not stand still."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.jobs.runs import ExitCode, JobId, RankKey, StopCause
from gpufleet.telemetry.spans import OFF
from node_agent.attempts import Attempts
from node_agent.containers.containers import Containers, ContainerSettings
from node_agent.core.actions import Order
from node_agent.core.adoption import Verdict
from node_agent.core.commands import AttemptCommand, JudgeAttempt, LaunchAttempt, StopAttempt
from node_agent.core.delivery import Receipt
from node_agent.core.duties import Duties
from node_agent.core.expectations import Expectations
from node_agent.core.fence import CommandRefusal
from node_agent.core.launch import Process, Refusal, RefusalReason
from node_agent.core.leavings import Bounds
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, Offsets
from node_agent.files.job_files import JobFiles
from node_agent.files.results import Results
from node_agent.heartbeat import Report
from node_agent.keeper.client import Launched
from node_agent.keeping import Keeping
from node_agent.setup.preparing import Preparations
from tests.e2e.processes import until

KEY = RankKey(JobId(7), 1, 0)
LAUNCH = LaunchAttempt(
    key=KEY, process=Process(argv=("true",), env={}, cwd="/"), expectations=Expectations(device_uuids=())
)
RUNNING = AttemptView(key=KEY, phase=AttemptPhase.RUNNING, keeper_id="k", directory="/spool", pid=42, started_us=1_000)
END = AttemptEnd(status=ExitCode(code=0), output_ends=Offsets(), started_us=1_000, ended_us=2_000)
TOO_MANY_FILES = OSError(24, "Too many open files")


class Silent:
    """A collaborator that takes every call and does nothing; what a test names it does as told."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def answer(*given: Any, **named: Any) -> Any:
            self.asked.append(name)
            found = self.answers.get(name)
            if isinstance(found, Exception):
                raise found
            return found

        return answer


class SilentKeeping(Silent):
    """The same for requests to keepers, which are awaited."""

    def __getattr__(self, name: str) -> Any:
        answer = super().__getattr__(name)

        async def awaited(*given: Any, **named: Any) -> Any:
            return answer()

        return answer if name in ("listen", "follow") else awaited


BOUNDS = Bounds(seconds=60.0, bytes_max=0)


class Bench:
    """Attempts between a launcher and keepers that fail as told."""

    def __init__(self, launcher: Silent, keeping: Silent) -> None:
        self.reports: list[dict[str, Any]] = []
        self.done: list[Receipt] = []
        self.keeping = keeping
        self.refusal: CommandRefusal | None = None
        """What is found of a launch as its turn in its slot comes."""
        self.judged: list[tuple[RankKey, int]] = []
        self.attempts = Attempts(
            Duties(),
            keeping,  # type: ignore[arg-type]
            launcher,  # type: ignore[arg-type]
            Silent(),  # type: ignore[arg-type]
            Silent(),  # type: ignore[arg-type]
            Silent(),  # type: ignore[arg-type]
            JobFiles("n1", 1, Path("/nowhere"), lambda: 0),
            Results("n1", 1, Path("/nowhere"), lambda key: Path("/nowhere"), lambda: BOUNDS),
            SilentKeeping(),  # type: ignore[arg-type]
            Containers(ContainerSettings, Path("/nowhere"), "a", list, lambda: None, lambda *told: None),
            Preparations(),
            report=self._report,
            carried_out=self.done.append,
            judge=self._judge,
            traces=OFF,
        )

    def _judge(self, command: LaunchAttempt, sent_us: int) -> CommandRefusal | None:
        self.judged.append((command.key, sent_us))
        return self.refusal

    def _report(self, report: Report) -> None:
        self.reports.append(report(3_000))

    @property
    def told(self) -> list[tuple[str, int]]:
        """What was reported, and of which job."""
        return [(name, report.key.job_id) for each in self.reports for name, report in each.items()]

    async def order(self, number: int, command: AttemptCommand, *, heartbeat_sent_us: int = 0) -> None:
        """Give an order and wait until nothing is under way."""
        self.attempts.order(Order(command=command, receipt=(1, number), heartbeat_sent_us=heartbeat_sent_us))
        await self.settle()

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self.attempts._working:
            await asyncio.wait(self.attempts._working)
            await asyncio.sleep(0)


async def test_a_check_that_fails_refuses_the_launch() -> None:
    bench = Bench(Silent(is_surely_fit=False, misfit=TOO_MANY_FILES), SilentKeeping())
    await bench.order(1, LAUNCH)
    (report,) = bench.reports
    assert report["launch_refused"].reason == "SPAWN_FAILED"
    assert "Too many open files" in report["launch_refused"].message
    assert bench.done == [(1, 1)]
    assert "launch" not in bench.keeping.asked


async def test_a_launch_that_cannot_be_completed_is_refused_and_no_keeper_is_asked() -> None:
    bench = Bench(Silent(is_surely_fit=True, complete=TOO_MANY_FILES), SilentKeeping())
    await bench.order(1, LAUNCH)
    (report,) = bench.reports
    assert report["launch_refused"].reason == "SPAWN_FAILED"
    assert bench.done == [(1, 1)]
    assert "launch" not in bench.keeping.asked


async def test_a_stop_that_fails_holds_no_later_order_up() -> None:
    keeping = SilentKeeping(launch=Launched(RUNNING, was_known=False), stop=ValueError("what is this?"))
    bench = Bench(Silent(is_surely_fit=True), keeping)
    await bench.order(1, LAUNCH)
    await bench.order(2, StopAttempt(KEY, StopCause.CANCELLED, None))
    bench.attempts.changed(KEY, END)
    await bench.order(3, JudgeAttempt(KEY, Verdict.FORGET))
    assert bench.done == [(1, 1), (1, 2), (1, 3)]
    assert [name for report in bench.reports for name in report] == ["attempt_started", "attempt_exited"]


async def test_processes_that_outlive_their_attempt_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Silent(is_surely_fit=True), SilentKeeping(launch=Launched(RUNNING, was_known=False)))
    await bench.order(1, LAUNCH)
    bench.attempts.changed(KEY, replace(END, processes_left=2))
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "attempt 7/1 has ended and 2 of its processes outlive SIGKILL"
    ]


# --- slots

NEXT = replace(LAUNCH, key=RankKey(JobId(8), 1, 0), slot=KEY)


class LaunchingKeeping(SilentKeeping):
    """Keepers that start whatever they are told."""

    async def launch(self, launch: Any) -> Launched:
        self.asked.append("launch")
        return Launched(replace(RUNNING, key=launch.key), was_known=False)


def slot_bench() -> Bench:
    """A node whose launches are completed to what the keepers are asked for."""

    class Completing(Silent):
        def complete(self, command: LaunchAttempt, *given: Any, **named: Any) -> Any:
            launch: Any = Silent()
            launch.key = command.key
            return launch

    return Bench(Completing(is_surely_fit=True), LaunchingKeeping())


async def test_what_waits_in_a_slot_begins_at_the_end_of_the_one_before_if_it_is_recent_enough_then() -> None:
    bench = slot_bench()
    await bench.order(1, LAUNCH)
    await bench.order(2, NEXT, heartbeat_sent_us=900)
    assert (bench.told, bench.done) == ([("attempt_started", 7)], [(1, 1), (1, 2)])
    assert bench.judged == [] and list(bench.attempts._holds) == [NEXT.key]
    bench.attempts.changed(KEY, END)
    await bench.settle()
    assert bench.judged == [(NEXT.key, 900)]
    assert bench.told == [("attempt_started", 7), ("attempt_exited", 7), ("attempt_started", 8)]
    assert bench.keeping.asked.count("launch") == 2
    assert not bench.attempts._holds, "its time in the backlog is over"


@pytest.mark.parametrize("refusal", [CommandRefusal.TOO_OLD, CommandRefusal.UNKNOWN_HEARTBEAT])
async def test_what_waits_in_a_slot_is_refused_if_what_it_rests_on_is_too_old_by_then(refusal: CommandRefusal) -> None:
    bench = slot_bench()
    bench.refusal = refusal
    await bench.order(1, LAUNCH)
    await bench.order(2, NEXT, heartbeat_sent_us=900)
    await bench.order(3, replace(NEXT, key=RankKey(JobId(9), 1, 0)), heartbeat_sent_us=950)
    bench.attempts.changed(KEY, END)
    await bench.settle()
    assert bench.judged == [(NEXT.key, 900), (RankKey(JobId(9), 1, 0), 950)]
    assert bench.told[2:] == [("launch_refused", 8), ("launch_refused", 9)]
    assert {report["launch_refused"].reason for report in bench.reports[2:]} == {"COMMAND_TOO_OLD"}
    assert bench.keeping.asked.count("launch") == 1 and not bench.attempts._holds


async def test_what_waits_in_a_slot_for_too_long_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.attempts.BACKLOG_US_MAX", 1)
    bench = slot_bench()
    await bench.order(1, LAUNCH)
    await bench.order(2, NEXT)
    await until("it is handed back", lambda: len(bench.reports) > 1)
    assert bench.told == [("attempt_started", 7), ("launch_refused", 8)]
    assert bench.reports[1]["launch_refused"].reason == "TAKEN_BACK"
    bench.attempts.changed(KEY, END)
    await bench.settle()
    assert bench.told[2:] == [("attempt_exited", 7)]
    assert not bench.attempts._holds


async def test_an_agent_that_leaves_begins_nothing_of_what_waits() -> None:
    bench = slot_bench()
    await bench.order(1, LAUNCH)
    await bench.order(2, NEXT)
    await bench.attempts.close()
    assert not bench.attempts._holds
    assert bench.told == [("attempt_started", 7)], "the next start is told of it again"


class KeepersThatDoNotKnow:
    """Keepers whose answer to a launch leaves open whether it runs."""

    def __init__(self, *views: AttemptView) -> None:
        self.views = views

    async def launch(self, launch: object) -> Refusal:
        return Refusal(RefusalReason.INTERNAL, "a case that should not exist")

    async def inventory(self) -> tuple[AttemptView, ...]:
        return self.views


async def test_a_launch_of_which_the_keeper_cannot_say_whether_it_runs_is_looked_up() -> None:
    """Called refused, it would run a second time on another node."""
    launch: Any = Silent()
    launch.key = KEY
    other = AttemptView(key=RankKey(JobId(8), 1, 0), phase=AttemptPhase.RUNNING, keeper_id="k", directory="/other")
    found = await Keeping(KeepersThatDoNotKnow(other, RUNNING), Duties().inventory).launch(launch)  # type: ignore[arg-type]
    assert found == Launched(RUNNING, was_known=True)
    found = await Keeping(KeepersThatDoNotKnow(other), Duties().inventory).launch(launch)  # type: ignore[arg-type]
    assert isinstance(found, Refusal)


class KeepersWithAFullDisk:
    """Keepers that can forget nothing at first."""

    def __init__(self) -> None:
        self.answers: list[Refusal | None] = [Refusal(RefusalReason.SPOOL_UNAVAILABLE, "no room"), None]

    async def forget(self, key: RankKey) -> Refusal | None:
        return self.answers.pop(0)


async def test_a_forgetting_that_a_full_disk_refuses_is_tried_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("node_agent.keeping.FORGET_RETRY_SECONDS", 0)
    keepers = KeepersWithAFullDisk()
    await Keeping(keepers, Duties().inventory).forget(KEY)  # type: ignore[arg-type]
    assert not keepers.answers
