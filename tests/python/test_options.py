"""What `submit` takes in Python is what gpuctl takes, word for word."""

from __future__ import annotations

import typing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.api.options import SubmitOptions, in_words, job_options
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.submitting.job_options import JobOptions, option_table
from tests.fields.asked import typed


def test_every_option_that_sets_a_field_of_a_job_is_there_by_its_word_and_no_other() -> None:
    assert set(typing.get_type_hints(SubmitOptions)) == {each.name for each in option_table()} | {"config"}


@pytest.mark.parametrize("name", [each.name for each in option_table()])
def test_each_option_comes_to_what_gpuctl_would_be_given(name: str) -> None:
    assert job_options({name: typed(name)}) == JobOptions(**{name: typed(name)})


@pytest.mark.parametrize(
    ("name", "value", "as_typed"),
    [
        ("time_limit", timedelta(minutes=90), "1h30m"),
        ("time_limit", 90, "1m30s"),
        ("time_limit", "90m", "90m"),
        ("memory", 8_000_000_000, "8000000000"),
        ("gpu_share", 0.5, "0.5"),
        ("env", {"A": "1", "B": "x=y"}, ["A=1", "B=x=y"]),
        ("env", "A", ["A"]),
        ("label", {"team": "vision"}, ["team=vision"]),
        ("nodelist", "n1,n2", ["n1,n2"]),
        ("nodelist", ("n1", "n2"), ["n1", "n2"]),
        ("after", 41, ["41"]),
        ("after", SimpleNamespace(id=41), ["41"]),
        ("after", [41, "42:any"], ["41", "42:any"]),
        ("array", range(10), "0-9"),
        ("array", range(0, 10, 3), "0-9:3"),
        ("array", [1, 5, 9], "1,5,9"),
        ("array", "1-100%10", "1-100%10"),
        ("upload", Path("/code"), "/code"),
        ("file", Path("a.csv"), ["a.csv"]),
        ("download", "out/**", ["out/**"]),
        ("cpu_command", ["./small", "talk one.mp3"], "./small 'talk one.mp3'"),
        (
            "begin",
            datetime(2030, 1, 31, 18, 30, tzinfo=UTC),
            datetime(2030, 1, 31, 18, 30, tzinfo=UTC).astimezone().isoformat(),
        ),
        ("requeue", False, False),
        ("config", Path("model.json"), "model.json"),
    ],
)
def test_values_of_python_are_taken_as_they_are_meant(name: str, value: Any, as_typed: Any) -> None:
    assert getattr(job_options({name: value}), name) == as_typed


@pytest.mark.parametrize("name", [each.name for each in option_table()])
def test_none_is_as_if_it_were_not_said(name: str) -> None:
    assert job_options({name: None}) == JobOptions()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gpu": 1}, 'gpu: there is no such option of a job; did you mean "gpus"?'),
        ({"config": {"parameters": {}}}, "config: {'parameters': {}} is not a file"),
        ({"gpus": "2"}, "gpus: '2' is not a whole number"),
        ({"gpus": True}, "gpus: True is not a whole number"),
        ({"hold": 1}, "hold: 1 is not True or False"),
        ({"name": 5.5}, "name: 5.5 is not a text"),
        ({"nodelist": object}, "nodelist: <class 'object'> is not a text, or several"),
        ({"array": []}, "array: [] is not indices: a range, numbers, or a text such as 1-100%10"),
        ({"time_limit": True}, "time_limit: True is not a text"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_word_and_what_to_do(given: dict[str, Any], says: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        job_options(given)
    assert refused.value.message == says
    assert refused.value.reason is Reason.INVALID_ARGUMENT
    assert refused.value.violations[0].field == next(iter(given))
    assert refused.value.next_step


def test_a_refusal_names_options_as_they_are_called_in_python_and_commands_as_they_are_typed() -> None:
    told = in_words(invalid("--gpus-per-node", "it goes with --nodes", next_step="Add --nodes N."))
    assert (told.message, told.next_step) == ("gpus_per_node: it goes with nodes", "Add nodes N.")
    assert told.violations[0].field == "gpus_per_node"
    kept = in_words(GpufleetError(Reason.JOB_NOT_FOUND, next_step="See it with: gpuctl queue --name x"))
    assert kept.next_step == "See it with: gpuctl queue --name x"


@pytest.mark.parametrize("value", [-5, timedelta(seconds=-1), float("inf"), float("nan")])
def test_a_span_that_is_none_is_refused_by_its_option(value: object) -> None:
    with pytest.raises(GpufleetError, match="a span of time") as refused:
        job_options({"time_limit": value})
    assert refused.value.violations[0].field == "time_limit"
