"""The table of reasons, the exception tree, and errors as people read them."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from gpufleet.errors import (
    Code,
    FieldViolation,
    GpufleetError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    Reason,
    RefusedError,
    UnavailableError,
    as_lines,
    invalid,
)
from gpufleet.text.spelling import did_you_mean


def test_every_reason_says_what_happened_and_what_to_do() -> None:
    for reason in Reason:
        assert reason.name == reason.name.upper()
        assert reason.meaning.endswith("."), reason
        assert reason.next_step and not reason.next_step.endswith(" "), reason
        error = GpufleetError(reason)
        assert type(error) is not GpufleetError, f"{reason}: every code belongs to a family"
        assert error.code is reason.code, reason
        assert as_lines(error) == f"{reason.meaning}\n{reason.next_step}"


@pytest.mark.parametrize(
    ("reason", "family"),
    [
        (Reason.COMMAND_EMPTY, InvalidRequestError),
        (Reason.JOB_NOT_FOUND, NotFoundError),
        (Reason.NEVER_FITS, RefusedError),
        (Reason.TOKEN_MISSING, RefusedError),
        (Reason.STORE_UNAVAILABLE, UnavailableError),
        (Reason.STORE_CORRUPT, InternalError),
    ],
)
def test_the_reason_picks_the_class(reason: Reason, family: type[GpufleetError]) -> None:
    with pytest.raises(family, match="what happened") as caught:
        raise GpufleetError(reason, "what happened")
    assert type(caught.value) is family


def test_a_class_that_was_named_is_kept() -> None:
    class OwnError(GpufleetError):
        pass

    assert type(OwnError(Reason.JOB_NOT_FOUND)) is OwnError


def test_an_error_survives_pickle_and_copy() -> None:
    error = GpufleetError(
        Reason.JOB_NOT_FOUND,
        "there is no job 41",
        violations=[FieldViolation("job_id", "unknown")],
        next_step="look",
        retry_after_s=1.5,
        metadata={"job_id": "41"},
    )
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is NotFoundError
        assert vars(again) == vars(error)
        assert str(again) == "there is no job 41"


def test_people_read_each_wrong_field_once_and_then_the_next_step() -> None:
    one = invalid("gpus", "-1 is not a number of GPUs", next_step="Give --gpus 1 or more.")
    assert as_lines(one) == "gpus: -1 is not a number of GPUs\nGive --gpus 1 or more."
    two = GpufleetError(
        Reason.INVALID_ARGUMENT,
        "two fields are wrong",
        violations=[FieldViolation("gpus", "negative"), FieldViolation("name", "too long")],
    )
    assert as_lines(two).splitlines() == [
        "two fields are wrong",
        "  gpus: negative",
        "  name: too long",
        "Correct the field that is named.",
    ]
    assert two.code is Code.INVALID_ARGUMENT


def test_a_near_miss_is_named_and_a_far_one_is_not() -> None:
    assert did_you_mean("h10", ["a100", "h100"]) == '; did you mean "h100"?'
    assert did_you_mean("banana", ["a100", "h100"]) == ""


def test_the_table_costs_no_grpc() -> None:
    code = "import sys, gpufleet.errors, gpufleet.text.units; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)
