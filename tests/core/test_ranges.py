"""The range beside an estimate holds for nine of ten, follows what changes, stays bounded, and is learned again."""

from __future__ import annotations

import random

import pytest

from scheduler.policy.forecast import Estimate, estimates
from scheduler.policy.ranges import BOUND_RANGES_MAX, SCORES_LEAST, Range, Ranges, helps
from scheduler.state.ids import JobId, UserName
from scheduler.state.jobs import Job, Queued
from scheduler.state.live import Live, learn
from scheduler.state.programs import program_of
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.units import HOUR, MINUTE, SECOND, Instant, Span, after
from scheduler.state.waits import FORECASTS_KEPT, SCORES_KEPT, Forecast, Waits
from tests.core.transcript import Transcript

NOW = Instant(1_000_000 * SECOND)


def a_job(number: int = 1, gpus: int = 1) -> Job:
    spec = JobSpec(argv=("true",), name="job", cwd="/", resources=Resources(gpus=gpus), time_limit=Span(HOUR))
    user = UserName("alice")
    return Job(id=JobId(number), user=user, spec=spec, band=Band.NORMAL, submitted_at=NOW, state=Queued())


def follow(waits: Waits, chance: random.Random, count: int, factor: float) -> list[bool]:
    """Jobs that wait about so many times as long as expected: who started by the end of their range."""
    held: list[bool] = []
    for _ in range(count):
        job, expected = a_job(gpus=chance.choice((1, 2, 4))), Span(chance.randint(2 * MINUTE, 2 * HOUR))
        likely = Ranges(waits, NOW).of(job, expected)
        placed_at = after(NOW, round(expected * factor * chance.lognormvariate(0, 0.5)))
        waits.learn(
            job.spec,
            job.band,
            Forecast(at=NOW, wait=expected, latest=None if likely is None else likely.latest),
            placed_at,
        )
        if likely is not None:
            held.append(placed_at <= likely.latest)
    return held


@pytest.mark.parametrize("seed", range(5))
def test_nine_of_ten_start_by_the_upper_end_also_when_waits_become_longer(seed: int) -> None:
    waits, chance = Waits(), random.Random(seed)
    first = follow(waits, chance, 1_000, 1.0)
    then = follow(waits, chance, 1_000, 3.0)
    assert 0.86 <= sum(first) / len(first) <= 0.96
    assert 0.84 <= sum(then) / len(then) <= 0.96


def test_where_little_is_known_there_is_no_range_and_then_a_wide_one() -> None:
    waits = Waits()
    expected = Span(10 * MINUTE)
    for _ in range(SCORES_LEAST):
        assert Ranges(waits, NOW).of(a_job(), expected) is None
        waits.learn(a_job().spec, Band.NORMAL, Forecast(at=NOW, wait=expected), after(NOW, expected))
    few = Ranges(waits, NOW).of(a_job(), expected)
    for _ in range(SCORES_KEPT):
        waits.learn(a_job().spec, Band.NORMAL, Forecast(at=NOW, wait=expected), after(NOW, expected))
    many = Ranges(waits, NOW).of(a_job(), expected)
    assert few is not None and many == Range(earliest=after(NOW, expected), latest=after(NOW, expected))
    assert few.earliest < many.earliest and few.latest > after(NOW, 2 * expected)


def test_what_is_learned_is_bounded() -> None:
    waits = Waits()
    for number in range(FORECASTS_KEPT + 10):
        waits.expect(JobId(number), Forecast(at=NOW, wait=Span(0)))
    follow(waits, random.Random(1), 3 * SCORES_KEPT, 1.0)
    assert len(waits.forecasts) == FORECASTS_KEPT and JobId(0) not in waits.forecasts
    assert max(map(len, waits.scores.values())) == SCORES_KEPT


def test_a_bound_is_shown_where_it_is_at_most_five_times_the_range() -> None:
    likely = Range(earliest=NOW, latest=after(NOW, 10 * MINUTE))
    far = after(NOW, BOUND_RANGES_MAX * 10 * MINUTE)
    assert helps(far, likely, NOW) and not helps(after(far, 1), likely, NOW)
    assert helps(after(far, HOUR), None, NOW), "without a range the bound is all that there is"


def test_a_wait_that_is_over_is_learned_from_by_its_attempt_also_after_a_restart() -> None:
    transcript = Transcript()
    fleet = transcript.fleet
    for line in (
        "node n1 gpus=1",
        "submit alice gpus=1 time-limit=10m",
        "started 1/1",
        "submit alice gpus=1 time-limit=10m",
    ):
        transcript.answer(line)
    told = estimates(fleet.state, fleet.now).of(JobId(2))
    assert isinstance(told, Estimate) and told.at is not None
    forecast = Forecast(at=fleet.now, wait=Span(told.at - fleet.now))
    fleet.state.live.waits.expect(JobId(2), forecast)
    for line in ("advance 2m", "exited 1/1 code=0", "started 2/1", "exited 2/1 code=0"):
        transcript.answer(line)
    learned = fleet.state.live
    assert learned.waits.forecasts == {} and len(learned.waits.scores) == 4
    ended = fleet.store.finished[JobId(2)]
    assert ended.past[-1].forecast == forecast
    anew = Live()
    for job in fleet.store.finished.values():
        learn(anew, job)
    assert (anew.waits, anew.runs) == (learned.waits, learned.runs)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py --epochs 3", "python train.py"),
        ("/usr/bin/python3.11 -u src/train.py", "python3.11 src/train.py"),
        ("python -m pkg.train --lr 1", "python -m pkg.train"),
        ("env A=1 B=2 bash -e run.sh", "bash -e run.sh"),
        ("./train --epochs 3", "train"),
        ("python", "python"),
        ("", ""),
    ],
)
def test_what_runs_is_the_script_and_not_its_interpreter(command: str, program: str) -> None:
    assert program_of(command.split()) == program


def test_runs_of_another_script_say_nothing_of_this_one() -> None:
    transcript = Transcript()
    fleet = transcript.fleet
    transcript.answer("node n1 gpus=1")
    spec = a_job().spec

    def submit(script: str) -> None:
        fleet.submit(
            JobSpec(
                argv=("python", script), name="python", cwd="/", resources=spec.resources, time_limit=spec.time_limit
            )
        )

    submit("short.py")
    for line in ("started 1/1", "advance 1m", "exited 1/1 code=0"):
        transcript.answer(line)
    submit("long.py")
    submit("short.py")
    transcript.answer("started 2/1")
    assert estimates(fleet.state, fleet.now).of(JobId(3)).at == after(fleet.now, HOUR)


def test_who_has_run_for_longer_than_expected_runs_as_long_again_up_to_the_limit() -> None:
    transcript = Transcript()
    fleet = transcript.fleet
    for line in (
        "node n1 gpus=1",
        "submit alice gpus=1 time-limit=1h",
        "started 1/1",
        "advance 5m",
        "exited 1/1 code=0",
        "submit alice gpus=1 time-limit=20m",
        "started 2/1",
        "submit alice gpus=1 time-limit=1h",
        "advance 4m",
    ):
        transcript.answer(line)

    def expected() -> int:
        at = estimates(fleet.state, fleet.now).of(JobId(3)).at
        assert at is not None
        return (at - fleet.now) // MINUTE

    assert expected() == 1, "as the last one did"
    transcript.answer("advance 4m")
    assert expected() == 8, "it has run for 8 minutes, and 5 were expected"
    transcript.answer("advance 7m")
    assert expected() == 5, "its limit comes first"
