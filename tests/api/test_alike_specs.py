"""What many specs of one submit have in common is checked once, and what they have of their own each time."""

from __future__ import annotations

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from scheduler.api.validate import wanted_job, wanted_jobs


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
