"""Reads histories: which levels answer a span, and how their points come together. It runs on a thread of its own."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..state.ids import NodeName
from ..state.units import SECOND, Span
from .courses import DAY_SECONDS, FIVES, LEVELS, SECONDS, SECONDS_KEPT, Course
from .history_file import CourseFacts, HistoryFile, kind_of
from .points import Point, Reading, Steps

POINTS_DEFAULT, POINTS_MAX = 600, 1_000
ANSWER_POINTS_MAX = 120_000
"""Points of one answer, all devices together: with more devices the steps are longer."""

_MINUTE, _HOUR = 60, 3_600
STEP_LENGTHS = (
    *(1, 2, 5, 10, 20, 30),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, DAY_SECONDS),
)
"""How long a step may be, in seconds; then come whole days. From 10 s on each holds whole points of the 10 s level, and
from 5 min on of the 5 min level."""

Readings = list[tuple[Reading, ...] | None]
"""What the counters did, step by step; None where nothing was read."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """What a course had in memory when somebody asked, to be unpacked elsewhere."""

    facts: CourseFacts
    levels: tuple[tuple[bytes, Point | None], ...]

    @classmethod
    def of(cls, facts: CourseFacts, course: Course | None, least_level: int) -> "InMemory":
        """The levels of a course from one on; of coarser ones everything."""
        if course is None:
            return cls(facts, ((b"", None),) * len(LEVELS))
        seconds = bytes(course.seconds) if least_level == SECONDS.number else b""
        return cls(facts, ((seconds, None), course.tens.snapshot(), course.fives.snapshot()))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long points of 10 s and of 5 min are kept; those of 1 s are kept for 10 minutes."""

    tens: Span
    fives: Span

    def spans(self) -> tuple[Span, Span, Span]:
        """Level by level."""
        return (Span(SECONDS_KEPT * SECOND), self.tens, self.fives)


def steps_for(begin: int, end: int, points: int, now: int, kept: Retention) -> Steps:
    """Steps of the finest level that is kept so far back, or longer ones, so that there are no more than `points`.

    They are as long as people count time, and begin where such a step does.
    """
    age = now - begin
    fitting = (level.step_seconds for level, span in zip(LEVELS, kept.spans(), strict=True) if age * SECOND <= span)
    least = next(fitting, FIVES.step_seconds)
    for length in itertools.chain(STEP_LENGTHS, itertools.count(2 * DAY_SECONDS, DAY_SECONDS)):
        first = begin // length * length
        count = -(-(end - first) // length)
        if length >= least and count <= points:
            return Steps(first, length, max(1, count))
    raise AssertionError("days go on for ever")


def steps_from(begin: int, end: int, points: int, now: int, kept: Retention) -> Steps:
    """The same, from `begin` on to the second: nothing of before is told."""
    step = steps_for(begin, end, points, now, kept).length
    return Steps(begin, step, max(1, -(-(end - begin) // step)))


def least_level(steps: Steps) -> int:
    """The coarsest level that is fine enough for such steps; finer ones are not looked at."""
    fitting = [level.number for level in LEVELS if level.step_seconds <= steps.length]
    return max(fitting, default=SECONDS.number)


def read(file: HistoryFile | None, asked: Iterable[InMemory], steps: Steps) -> list[tuple[CourseFacts, Readings]]:
    """The history of each course; without a file, what is in memory. Errors: those of the file."""
    return [(each.facts, _read_one(file, each, steps)) for each in asked]


def _read_one(file: HistoryFile | None, course: InMemory, steps: Steps) -> Readings:
    points: list[Point] = []
    until = steps.end
    for level in LEVELS[least_level(steps) :]:
        if until <= steps.begin:
            break
        found = _points(file, course, level.number, steps.begin, until)
        # A coarse one that reaches into what is known finer says nothing of that.
        points += [point if point.end <= until else point._replace(end=until) for point in found]
        if found:
            until = min(until, found[0].begin)
    return steps.sum_up(points, len(kind_of(course.facts.key).counters))


def _points(file: HistoryFile | None, course: InMemory, level: int, begin: int, end: int) -> list[Point]:
    """Points of a level that touch a span: those in memory, and older ones of the file."""
    kind = kind_of(course.facts.key)
    entries, unfinished = course.levels[level]
    known = [*kind.unpack(entries), *([] if unfinished is None else [unfinished])]
    in_memory_from = known[0].begin if known else end
    if file is not None and level != SECONDS.number and in_memory_from > begin:
        stored = file.entries(course.facts.key, level, begin, min(end, in_memory_from))
        known = [point for point in kind.unpack(stored) if point.end <= in_memory_from] + known
    return [point for point in known if point.end > begin and point.begin < end]


def by_node(found: Sequence[tuple[CourseFacts, Readings]]) -> list[tuple[NodeName, int, Readings]]:
    """Each node's devices taken together, with their memory: utilisation and temperature as means, the rest as sums."""
    nodes: dict[NodeName, list[tuple[CourseFacts, Readings]]] = {}
    for each in found:
        nodes.setdefault(each[0].key.node, []).append(each)
    return [
        (node, sum(facts.memory_bytes for facts, _ in devices), _together([readings for _, readings in devices]))
        for node, devices in sorted(nodes.items())
    ]


IS_SUM = (False, True, True, False)
"""Of each counter of a device, whether those of a node are summed up."""


def _together(courses: Sequence[Readings]) -> Readings:
    told: Readings = []
    for step in zip(*courses, strict=True):
        known = [each for each in step if each is not None]
        told.append(tuple(_combined(known, at, is_sum) for at, is_sum in enumerate(IS_SUM)) if known else None)
    return told


def _combined(known: Sequence[tuple[Reading, ...]], counter: int, is_sum: bool) -> Reading:
    values = [each[counter] for each in known if each[counter][0] >= 0]
    if not values:
        return (-1.0, -1.0, -1.0)
    parts = 1 if is_sum else len(values)
    low, high, mean = (sum(each) for each in zip(*values, strict=True))
    return (low / parts, high / parts, mean / parts)
