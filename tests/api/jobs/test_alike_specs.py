"""What many specs have in common is checked once, and what they have of their own each time."""

from __future__ import annotations

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from scheduler.wire import alike_specs
from scheduler.wire.alike_specs import CheckedSpec, KnownSpecs
from scheduler.wire.validate import wanted_job, wanted_jobs


def spec(number: int, **others: object) -> job_pb2.JobSpec:
    fields: dict[str, object] = {
        "argv": ["train", str(number)],
        "name": f"train-{number}",
        "cwd": "/",
        "env": {"B": "2", "A": "1"},
        "trace_context": f"trace-{number}",
    }
    return job_pb2.JobSpec(**{**fields, **others})  # type: ignore[arg-type]


def test_each_is_what_it_would_be_alone() -> None:
    specs = [spec(1), spec(2), spec(3, cpus=4), spec(4, argv=["other"], name=""), spec(5, band=3), spec(6, cpus=4)]
    together = wanted_jobs(scheduler_pb2.SubmitRequest(specs=specs))
    assert together == [wanted_job(each, "specs[0]") for each in specs]


def test_what_is_alike_is_kept_once() -> None:
    first, second = wanted_jobs(scheduler_pb2.SubmitRequest(specs=[spec(1), spec(2)]))
    assert first.spec.resources is second.spec.resources
    assert first.spec.env is second.spec.env


@pytest.mark.parametrize(
    ("others", "field"),
    [
        ({"argv": []}, "specs[1].argv"),
        ({"argv": ["a\0b"]}, "specs[1].argv[0]"),
        ({"name": "a\nb"}, "specs[1].name"),
        ({"cwd": "here"}, "specs[1].cwd"),
        ({"cpus": -1}, "specs[1].cpus"),
    ],
)
def test_what_is_wrong_with_a_later_one_is_found(others: dict[str, object], field: str) -> None:
    with pytest.raises(GpufleetError) as caught:
        wanted_jobs(scheduler_pb2.SubmitRequest(specs=[spec(1), spec(2, **others)]))
    assert [violation.field for violation in caught.value.violations] == [field]


def submitted(known: KnownSpecs, *specs: job_pb2.JobSpec) -> list[CheckedSpec]:
    return wanted_jobs(scheduler_pb2.SubmitRequest(specs=specs), known)


def test_what_comes_again_in_another_request_is_kept_once() -> None:
    known = KnownSpecs()
    (first,), (second,) = submitted(known, spec(1)), submitted(known, spec(2))
    assert second == wanted_job(spec(2), "specs[0]")
    assert first.spec.env is second.spec.env
    assert first.spec.asked is second.spec.asked


def test_what_is_wrong_with_one_of_a_known_kind_is_found() -> None:
    known = KnownSpecs()
    submitted(known, spec(1))
    with pytest.raises(GpufleetError) as caught:
        submitted(known, spec(2, name="a\nb"))
    assert [violation.field for violation in caught.value.violations] == ["specs[0].name"]


def test_what_was_refused_is_not_known() -> None:
    known = KnownSpecs()
    for _ in range(2):
        with pytest.raises(GpufleetError):
            submitted(known, spec(1, cwd="here"))


def test_the_kinds_that_came_last_are_known_and_no_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_specs, "KEPT", 2)
    known = KnownSpecs()
    long = {"env": {"A": "x" * alike_specs.KEPT_BYTES_MAX}}
    submitted(known, spec(1, cpus=1))
    (second,) = submitted(known, spec(2, cpus=2))
    submitted(known, spec(3, cpus=1), spec(3, cpus=3), spec(3, **long))
    assert [known.get(alike_specs.key_of(spec(0, cpus=cpus))) is None for cpus in (1, 2, 3)] == [False, True, False]
    assert known.get(alike_specs.key_of(spec(0, **long))) is None
    assert submitted(known, spec(4, cpus=2))[0].spec.resources is not second.spec.resources
