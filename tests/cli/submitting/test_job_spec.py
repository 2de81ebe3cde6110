"""From what is typed to a spec, and back to a command that means the same."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from gpufleet.v1 import job_pb2
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.job_spec import argv_of, command_line_of, pins, spec_of, variables
from gpufleet.fleet.submitting.option_kinds import BANDS, begin_time
from gpufleet.jobs.names import name_of_command
from tests.cli.test_quoting import read_by_a_shell

ENVIRONMENT = {"PATH": "/bin", "LANG": "C.UTF-8", "TERM": "xterm", "HOME": "/home/ada", "SECRET": "s3cret"}


def spec(command: tuple[str, ...] = ("train",), **options: Any) -> job_pb2.JobSpec:
    return spec_of(JobOptions(**options), command, ENVIRONMENT, "/home/ada")


def test_of_the_submitters_environment_only_path_lang_and_term_go_by_themselves() -> None:
    assert dict(spec().env) == {"PATH": "/bin", "LANG": "C.UTF-8", "TERM": "xterm"}


def test_a_job_continues_the_trace_that_its_submitter_is_in() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    continued = spec_of(JobOptions(), ("train",), {**ENVIRONMENT, "TRACEPARENT": trace}, "/home/ada")
    assert continued.trace_context == trace
    assert spec().trace_context == ""


def test_further_variables_are_set_or_passed_on_by_name() -> None:
    given_env = dict(spec(env=["A=1=2", "EMPTY=", "SECRET"]).env)
    assert given_env == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "A": "1=2",
        "EMPTY": "",
        "SECRET": "s3cret",
    }


def test_the_whole_environment_goes_when_it_is_asked_for_and_env_wins_over_it() -> None:
    assert dict(spec(env_all=True, env=["HOME=/tmp"]).env) == {**ENVIRONMENT, "HOME": "/tmp"}
    kept_here = spec_of(JobOptions(env_all=True), ("train",), {**ENVIRONMENT, "GPUCTL_TOKEN": "gf_secret"}, "/home/ada")
    assert kept_here.env.keys() == ENVIRONMENT.keys() - {"HOME"}


@pytest.mark.parametrize(
    ("given_env", "why"),
    [("=x", "has no name"), ("NOPE", "is not set here"), ("", "has no name"), ("A=\udcff", "is not UTF-8")],
)
def test_a_variable_that_cannot_be_set_is_refused(given_env: str, why: str) -> None:
    with pytest.raises(GpufleetError, match=f"--env: .*{why}"):
        variables([given_env], ENVIRONMENT, pass_all=False)


def test_one_quoted_string_is_run_by_the_shell_and_words_are_not() -> None:
    assert argv_of(["python train.py | tee log"]) == ["/bin/sh", "-c", "python train.py | tee log"]
    assert argv_of(["python", "train.py | tee"]) == ["python", "train.py | tee"]
    assert argv_of(["nvidia-smi"]) == ["nvidia-smi"]


def test_a_program_whose_name_needs_quotes_is_a_program(tmp_path: Path) -> None:
    program = tmp_path / "my train"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert argv_of([str(program)]) == [str(program)]


@pytest.mark.parametrize("command", [[], [""]])
def test_an_empty_command_is_refused_with_an_example(command: list[str]) -> None:
    with pytest.raises(GpufleetError) as caught:
        argv_of(command)
    assert caught.value.reason is Reason.COMMAND_EMPTY and "--" in caught.value.next_step


def test_pins_are_read_and_imply_the_number_of_gpus() -> None:
    made = spec(node_gpu_ids="node001:0,1;node002:3")
    assert [(pin.node, list(pin.device_indices)) for pin in made.pins] == [("node001", [0, 1]), ("node002", [3])]
    assert made.devices[0].count == 3


@pytest.mark.parametrize("text", ["", "n1", "n1:", ":0", "n1:a", "n1:0,,1", "n1:-1", "n1:0;"])
def test_pins_that_name_nothing_are_refused(text: str) -> None:
    with pytest.raises(GpufleetError, match="--node-gpu-ids"):
        pins(text)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"gpus": -1}, "--gpus: -1 is less than 1"),
        ({"gpus": 0, "gpu_share": "0.5"}, "--gpus: 0 is none, and --gpu-share asks for some"),
        ({"gpus": 0, "node_gpu_ids": "n1:0"}, "--gpus: 0 is none, and --node-gpu-ids asks for some"),
        ({"gpus": 0, "gpus_per_node": 2}, "--gpus: 0 is none, and --gpus-per-node asks for some"),
        ({"gpus": 0, "min_memory": "8GB"}, "--min-memory: it says which GPUs, but no GPUs are asked for"),
        ({"env": ["A B=x"]}, "--env: the name in .* holds a space"),
        ({"env": ["A\t=x"]}, "--env: the name in .* holds a space"),
        ({"gpus": -2}, "--gpus: -2 is less than 1"),
        ({"gpus": 2**40}, "--gpus: .* more than any fleet"),
        ({"cpus": 0}, "--cpus"),
        ({"gpu_share": "0"}, "--gpu-share: 0 is not a part of a GPU"),
        ({"gpu_share": "1.5"}, "--gpu-share: 1.5 is not a part of a GPU"),
        ({"gpu_share": "nan"}, "--gpu-share: nan is not a part of a GPU"),
        ({"gpu_share": "half"}, '--gpu-share: "half" is not a number'),
        ({"gpu_share": "0.0005"}, "--gpu-share: 0.0005 has more than three decimals"),
        ({"min_memory": "8GB"}, "--min-memory: .* no GPUs are asked for"),
        ({"gpu_model": ["h100"]}, "--gpu-model: .* no GPUs are asked for"),
        ({"gpus": 1, "min_memory": "8"}, "--min-memory: 8 has no unit"),
        ({"gpus": 1, "min_memory": "8G"}, "--min-memory: .* two meanings"),
        ({"memory": "much"}, "--memory"),
        ({"time_limit": "90"}, "--time-limit: 90 has no unit"),
        ({"grace": "soon"}, "--grace"),
        ({"requeue_fence": "1y"}, "--requeue-fence"),
        ({"band": "hihg"}, '--band: .* did you mean "high"'),
        ({"retries": -1}, "--retries: -1 is not 0 or more"),
        ({"blame_limit": 0}, "--blame-limit"),
        ({"notify": " "}, "--notify"),
        ({"queue_timeout": "10"}, "--queue-timeout: 10 has no unit"),
        ({"begin": "soon"}, "--begin"),
        ({"begin": "2001-01-31T18:30"}, "--begin: .* is over"),
        ({"begin": "9999-12-31T23:59:59-12:00"}, "--begin: .* beyond"),
        ({"after": ["x"]}, '--after: "x" does not begin with a job id'),
        ({"after": ["4:k"]}, '--after: "k" is not ok, any or fail'),
        ({"label": ["x"]}, "--label"),
        ({"label": ["=x"]}, "--label"),
    ],
)
def test_a_wrong_value_is_refused_with_its_option(options: dict[str, Any], field: str) -> None:
    with pytest.raises(GpufleetError, match=field) as caught:
        spec(**options)
    assert caught.value.next_step


def test_a_part_of_a_gpu_is_of_one_unless_more_are_asked_for() -> None:
    half = spec(gpu_share="0.5").devices[0]
    assert (half.count, half.share.milli) == (1, 500)
    of_each = spec(gpu_share="0.125", gpus=2, min_memory="4GB").devices[0]
    assert (of_each.count, of_each.share.milli, of_each.min_memory_bytes) == (2, 125, 4 * 10**9)
    pinned = spec(gpu_share="0.5", node_gpu_ids="n1:0,1").devices[0]
    assert (pinned.count, pinned.share.milli) == (2, 500)
    whole = spec(gpu_share="1.0").devices[0]
    assert (whole.count, whole.HasField("share")) == (1, False)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("now+2hours", "It is Slurm's: here --begin 2h"),
        ("now+90", "It is Slurm's: here --begin 90s"),
        ("now+1week", "It is Slurm's: here --begin 7d"),
        ("now+x", "Write a time such as 18:30"),
        ("soon", "Write a time such as 18:30"),
        ("-2h", "Write a time such as 18:30"),
    ],
)
def test_a_begin_as_slurm_has_it_is_refused_with_what_it_is_here(text: str, step: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        begin_time(text, datetime.now().astimezone())
    assert refused.value.next_step.startswith(step)


def test_a_begin_is_a_time_of_day_a_date_or_a_span() -> None:
    now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).astimezone()
    today = now.date().isoformat()
    local = now.strftime("%H:%M")
    assert begin_time(local, now) == now.astimezone(UTC)
    assert begin_time("2h", now) == now + timedelta(hours=2)
    assert begin_time(f"{today}T{local}", now) == now
    before = (now - timedelta(minutes=1)).strftime("%H:%M:%S")
    assert timedelta(hours=22) < begin_time(before, now) - now < timedelta(hours=26), "the next one"
    assert begin_time("2026-03-01T13:30+01:00", now) == now + timedelta(minutes=30)


def test_no_gpus_can_be_asked_for_in_so_many_words() -> None:
    assert spec(gpus=0) == spec()
    assert spec(gpus=0, nodes=2).node_count == 2
    assert (spec(retries=0).retries, spec(retries=3).retries) == (0, 3)


def test_other_jobs_to_wait_for_are_read_with_the_end_that_counts() -> None:
    made = spec(after=["4,5:any", "6:FAIL"]).after
    assert [(each.job_id, each.condition) for each in made] == [
        (4, job_pb2.DEPENDENCY_CONDITION_OK),
        (5, job_pb2.DEPENDENCY_CONDITION_ANY),
        (6, job_pb2.DEPENDENCY_CONDITION_FAIL),
    ]


def test_the_working_directory_is_ours_or_relative_to_it() -> None:
    assert (spec().cwd, spec(cwd="runs/1").cwd, spec(cwd="/data").cwd) == ("/home/ada", "/home/ada/runs/1", "/data")


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
TRIED: dict[str, st.SearchStrategy[Any]] = {
    "gpus": st.integers(1, 64),
    "gpu_share": st.sampled_from(["0.5", "0.125", "1"]),
    "cpus": st.integers(2, 64),
    "memory": st.sampled_from(["1GB", "3GiB", "512MB"]),
    "name": TEXT,
    "env": st.lists(st.tuples(NAMES, TEXT).map("=".join), max_size=3),
    "label": st.lists(st.tuples(NAMES, TEXT).map("=".join), max_size=2),
    "nodelist": st.lists(NAMES, min_size=1, max_size=3),
    "exclude": st.lists(NAMES, min_size=1, max_size=3),
    "node_label": st.lists(st.tuples(NAMES, TEXT).map("=".join), max_size=2),
    "band": st.sampled_from(list(BANDS)),
    "time_limit": st.sampled_from(["90s", "2h30m", "250ms"]),
    "grace": st.sampled_from(["5s", "2m"]),
    "requeue_fence": st.sampled_from(["20s", "1h"]),
    "requeue": st.booleans(),
    "queue_timeout": st.sampled_from(["90s", "2h30m"]),
    "sample_every": st.sampled_from(["250ms", "1m"]),
    "retries": st.integers(0, 9),
    "blame_limit": st.integers(1, 9),
    "preemptible": st.booleans(),
    "notify": st.sampled_from(["https://example.com/hook?a=b", 'mail -s "$GPUFLEET_NOTICE" me </dev/null']),
    "after": st.lists(st.integers(1, 10**6), max_size=3, unique=True).flatmap(
        lambda ids: st.tuples(*(st.sampled_from([f"{job}", f"{job}:any", f"{job}:fail"]) for job in ids)).map(list)
    ),
    "signal": st.sampled_from(["USR1@5m", "B:TERM@90s", "12", "64@1h"]),
    "requeue_on_timeout": st.booleans(),
    "output_file": st.sampled_from(["train-%j.log", "/logs/%x of %u/%4a"]),
    "nice": st.integers(1, 19),
    "file": st.sampled_from([[f"sha256:{'ab' * 32}:7=a.csv"], [f"sha256:{'cd' * 32}:0:x=bin/run it"]]),
    "download": st.sampled_from([["out/**"], ["*.pt", "!a b.pt", "x,y"]]),
    "keep": st.sampled_from([["ckpt/**"], ["*.pt", "!a b.pt"]]),
    "input": st.sampled_from([["41:out/**"], ["41.3:*.pt=models", "7:a b,c.txt"]]),
    "upload": st.sampled_from([f"sha256:{'ab' * 32}:70:2:900", f"sha256:{'cd' * 32}:0:0:0"]),
    "secret": st.sampled_from([["HF_TOKEN"], ["hub.key=HF_TOKEN", "key=KEY", "key=AGAIN"]]),
    "rlimit": st.sampled_from([["NOFILE=4096"], ["CORE=unlimited", "AS=8GB:16GB"]]),
    "no_gpu_selection": st.booleans(),
    "gpu_mode": st.sampled_from(["preferred", "never", "AUTO"]),
    "content_type": st.sampled_from(["audio/mpeg", "text/html; charset=utf-8"]),
    "cpu_command": st.sampled_from(["./on-cpus 'a b'", "sh -c 'echo \"$1\" | wc'"]),
    "no_warnings": st.booleans(),
    "group": st.sampled_from(["ml", "vision-2"]),
    "hold": st.just(False),
}
OPTIONS = st.fixed_dictionaries({}, optional=TRIED)


@given(
    OPTIONS,
    # A first word of "-" reads a script from standard input: no command line names a program of that name.
    st.lists(TEXT, min_size=2, max_size=4).filter(lambda words: words[0] != "-")
    | st.sampled_from([["python train.py | tee log"], ["A=1 ./run.sh; echo"]]),
)
def test_the_command_shown_for_a_job_would_submit_the_same_job(options: dict[str, Any], command: list[str]) -> None:
    made = spec(tuple(command), **options)
    again = parsed(read_by_a_shell(command_line_of(made)))
    assert (made.submit_cwd, again.submit_cwd) == ("/home/ada", "/nowhere"), "that of who submits"
    again.submit_cwd = made.submit_cwd
    for each in (made, again):  # the server fills these in
        each.band = each.band or job_pb2.BAND_NORMAL
        each.name = each.name or name_of_command(each.argv)
    assert MessageToDict(again) == MessageToDict(made)


def test_every_option_is_tried_in_a_command_that_is_shown() -> None:
    elsewhere = {
        *("min_memory", "gpu_model", "nodes", "gpus_per_node", "no_span", "node_gpu_ids", "allow_busy", "max_fails"),
        *("array", "cwd", "env_all"),  # one by one in tests/fields/test_job_fields.py
        *("image", "mount", "image_secret"),  # there, too: two need the first
        *("requirements", "uv", "conda", "setup"),  # there, too: one of them goes with files
        *("begin", "config"),  # of now: they are not in the line
    }
    assert set(TRIED) | elsewhere == {each.name for each in fields(JobOptions)}


def parsed(words: list[str]) -> job_pb2.JobSpec:
    """The spec that gpuctl itself makes of a command line."""
    from cli.app import command_line

    assert words[:2] == ["gpuctl", "submit"]
    submit: Any = command_line().get_command(None, "submit")
    context = submit.make_context("submit", words[2:])
    options = {each.name: context.params[each.name] for each in fields(JobOptions)}
    return spec_of(JobOptions(**options), context.params["command"], ENVIRONMENT, "/nowhere")


def test_a_shell_line_is_submitted_again_without_the_name_that_it_has_by_itself() -> None:
    made = spec(("python train.py | tee log",))
    made.name = "python"  # as the scheduler fills it in
    assert "--name" not in command_line_of(made)
    made.name = "sh"
    assert "--name sh" in command_line_of(made)


@pytest.mark.parametrize(
    ("text", "number", "seconds", "leader_only"),
    [
        ("USR1@5m", 10, 300, False),
        ("SIGUSR1@300", 10, 300, False),
        ("10@1h30m", 10, 5400, False),
        ("B:usr2@60", 12, 60, True),
        ("TERM", 15, None, False),
    ],
)
def test_a_signal_before_the_limit_is_read_as_slurms_is(
    text: str, number: int, seconds: int | None, leader_only: bool
) -> None:
    asked = spec(signal=text).limit_signal
    assert (asked.signal, asked.leader_only) == (number, leader_only)
    assert (asked.before.seconds if asked.HasField("before") else None) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no signal"),
        ("USR3@5m", '"USR3" is no signal'),
        ("65", "not from 1 to 64"),
        ("USR1@", "not a duration"),
        ("USR1@soon", "not a duration"),
        ("R:USR1@5m", '"R:" is not B:'),
    ],
)
def test_a_signal_that_cannot_be_read_is_refused_with_its_form(text: str, why: str) -> None:
    with pytest.raises(GpufleetError) as caught:
        spec(signal=text)
    assert caught.value.violations[0].field == "--signal"
    assert why in caught.value.message
    assert "USR1@5m" in caught.value.next_step or "kill -l" in caught.value.next_step


@pytest.mark.parametrize(
    ("text", "soft", "hard", "again"),
    [
        ("NOFILE=4096", 4096, None, "NOFILE=4096"),
        ("rlimit_nofile=4096:8192", 4096, 8192, "NOFILE=4096:8192"),
        ("core=Unlimited", -1, None, "CORE=unlimited"),
        ("AS=8GB:unlimited", 8 * 10**9, -1, "AS=8000000000:unlimited"),
    ],
)
def test_a_limit_of_the_kernels_is_read_and_written(text: str, soft: int, hard: int | None, again: str) -> None:
    (asked,) = spec(rlimit=[text]).process.rlimits
    assert (asked.soft, asked.hard if asked.HasField("hard") else None) == (soft, hard)
    assert f"--rlimit {again} " in command_line_of(spec(rlimit=[text]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NOFILE", '"NOFILE" is not NAME=VALUE'),
        ("NOFLE=1", '"NOFLE" is not one of AS, CORE, FSIZE, MEMLOCK, NOFILE, STACK; did you mean "NOFILE"'),
        ("NOFILE=many", 'NOFILE: "many" is not a number of descriptors'),
        ("NOFILE=-1", 'NOFILE: "-1" is not a number of descriptors'),
        ("AS=8G", "AS: .* two meanings"),
        ("AS=", "AS: "),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused_with_its_form(text: str, why: str) -> None:
    with pytest.raises(GpufleetError, match=f"--rlimit: {why}") as caught:
        spec(rlimit=[text])
    assert "NOFILE=4096:8192" in caught.value.next_step
