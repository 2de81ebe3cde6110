"""Measures the CPU time of tests by area, and fails a run of a whole ring that costs more than its budget.

A test's CPU time is what its process and the children that it waited for took, from set-up to teardown. What leaves
its parent, as a keeper with its jobs does, is not in it. Budgets are seconds of a machine on which the reference loop
takes REFERENCE_S; each worker times that loop in the same run, so that a slow or a shared machine does not count.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from _pytest.terminal import TerminalReporter

CPU_SECONDS = "cpu_seconds"
REFERENCE = "reference_seconds"
REFERENCE_S = 0.025
"""What the reference loop takes on the machine that budgets were measured on."""

REFERENCE_ROUNDS = 400_000
EXCESS_MAX = 1.2
"""A ring fails when an area costs more than its budget by this factor."""

SLOWEST_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Area:
    """Folders and files of tests that are alike, and the CPU seconds that `make test` may spend on them."""

    name: str
    budget_s: float
    paths: tuple[str, ...]

    def has(self, nodeid: str) -> bool:
        return nodeid.startswith(tuple(f"{path}/" for path in self.paths)) or nodeid.partition("::")[0] in self.paths


def reference_loop() -> float:
    """The CPU seconds of a fixed piece of work: calls, dictionary look-ups and arithmetic of the interpreter."""
    begin, table, total = time.process_time(), {number: number for number in range(64)}, 0
    for number in range(REFERENCE_ROUNDS):
        total += table[number & 63]
    return time.process_time() - begin


def cpu_seconds() -> float:
    """The CPU time of this process and of the children that it has waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class Meter:
    """In each process that runs tests: adds to the last report of a test what it cost."""

    def __init__(self) -> None:
        self._begin = 0.0
        self._reference: float | None = reference_loop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._begin = cpu_seconds()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Add to the teardown's report, the last one, what the process that sums up reads there."""
        if call.when == "teardown":
            item.user_properties.append((CPU_SECONDS, cpu_seconds() - self._begin))
            if self._reference is not None:
                item.user_properties.append((REFERENCE, self._reference))
                self._reference = None


@dataclass
class Sums:
    """In the process that sums up: CPU time by area, and the time of each test."""

    areas: Sequence[Area]
    enforces: bool
    cpu: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    references: list[float] = field(default_factory=list)
    exceeded: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == CPU_SECONDS and isinstance(value, float):
                self.cpu[area_of(self.areas, report.nodeid)] += value
            elif name == REFERENCE and isinstance(value, float):
                self.references.append(value)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that costs too much."""
        budgets = {area.name: area.budget_s for area in self.areas}
        self.exceeded = [
            name for name, spent in self.cpu.items() if spent / self.slowness() > budgets.get(name, 0) * EXCESS_MAX
        ]
        if self.enforces and self.exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def slowness(self) -> float:
        """How much longer this machine takes than the one of the budgets."""
        return statistics.median(self.references or [REFERENCE_S]) / REFERENCE_S

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """The slowest tests, and what each area cost beside its budget."""
        say, slowness = terminalreporter.write_line, self.slowness()
        terminalreporter.section("slowest tests")
        for nodeid, seconds in sorted(self.seconds.items(), key=lambda each: -each[1])[:SLOWEST_SHOWN]:
            say(f"{seconds:7.1f} s  {nodeid}")
        terminalreporter.section("CPU time")
        say(f"reference loop: {slowness:.2f} of the budgets' machine; measured CPU seconds are divided by that")
        for area in self.areas:
            spent = self.cpu[area.name] / slowness
            note = f" of {area.budget_s:.0f}" if self.enforces else ""
            say(f"{spent:7.0f} s{note}  {area.name}", red=self.enforces and area.name in self.exceeded)
        say(f"{sum(self.cpu.values()) / slowness:7.0f} s  in all")
        if self.enforces and self.exceeded:
            say(
                f"too much CPU time: {', '.join(self.exceeded)}. Make these tests cheaper, mark long ones `nightly`, or"
                " raise the budget in tests/rings/areas.py and say why.",
                red=True,
            )


def area_of(areas: Sequence[Area], nodeid: str) -> str:
    """The name of the first area that has the test."""
    return next((area.name for area in areas if area.has(nodeid)), "other")
