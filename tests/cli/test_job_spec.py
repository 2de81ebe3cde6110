"""From what is typed to a spec, and back to a command that means the same."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from gpufleet.v1 import job_pb2
from hypothesis import given
from hypothesis import strategies as st

from cli.job_options import JobOptions
from cli.job_spec import BANDS, argv_of, begin_time, command_line_of, pins, spec_of, variables
from cli.script import with_script_options
from cli.submission import OPTION_OF_FIELD
from gpufleet.errors import GpufleetError, Reason
from gpufleet.job_names import name_of_command
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

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
        ({"gpus": 0}, "--gpus: 0 is less than 1"),
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
        ({"retries": -1}, "--retries: -1 is less than 1"),
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


def test_other_jobs_to_wait_for_are_read_with_the_end_that_counts() -> None:
    made = spec(after=["4,5:any", "6:FAIL"]).after
    assert [(each.job_id, each.condition) for each in made] == [
        (4, job_pb2.DEPENDENCY_CONDITION_OK),
        (5, job_pb2.DEPENDENCY_CONDITION_ANY),
        (6, job_pb2.DEPENDENCY_CONDITION_FAIL),
    ]


def test_every_field_that_an_option_sets_is_named_as_that_option_when_it_is_refused() -> None:
    made = spec(
        gpus=2,
        node_gpu_ids="n1:0,1",
        no_gpu_selection=True,
        no_warnings=True,
        cpus=2,
        memory="1GB",
        nodelist=["n1"],
        exclude=["n2"],
        node_label=["zone=east"],
        name="x",
        label=["a=b"],
        band="high",
        hold=True,
        time_limit="1h",
        grace="1s",
        requeue=False,
        requeue_fence="1m",
        after=["1"],
        begin="1h",
        queue_timeout="1h",
        sample_every="5s",
        retries=1,
        preemptible=True,
        blame_limit=2,
        notify="true",
    )
    assert {field.name for field, _ in made.ListFields()} <= OPTION_OF_FIELD.keys()


def test_the_working_directory_is_ours_or_relative_to_it() -> None:
    assert (spec().cwd, spec(cwd="runs/1").cwd, spec(cwd="/data").cwd) == ("/home/ada", "/home/ada/runs/1", "/data")


def test_options_of_a_script_come_before_those_of_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/sh\n#gpuctl --gpus 2 --name 'my run'\n# gpuctl --cpus 9\n#gpuctl --band low # quiet\necho\n"
    )
    found = with_script_options(["--gpus", "4", "--", str(script), "--gpus", "8"])
    assert found[:6] == ["--gpus", "2", "--name", "my run", "--band", "low"]
    assert found[6:] == ["--gpus", "4", "--", str(script), "--gpus", "8"]


def test_a_script_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#gpuctl --name 'open\n")
    with pytest.raises(GpufleetError, match=r"train\.sh:2: the #gpuctl line cannot be read"):
        with_script_options(["--", str(script)])


def test_a_program_that_is_no_script_carries_no_options(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\n#gpuctl --gpus 2\n")
    assert with_script_options(["--", str(binary)]) == ["--", str(binary)]
    assert with_script_options(["--", str(tmp_path / "missing")]) == ["--", str(tmp_path / "missing")]


def test_a_script_is_submitted_with_its_own_options(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --gpus 2 --name mine\n")
    assert gpuctl("submit", "--gpus", "4", "--", "./train.sh").code == 0
    submitted = fake.asked("Submit")[0].specs[0]
    assert (submitted.devices[0].count, submitted.name, list(submitted.argv)) == (4, "mine", ["./train.sh"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--gpu 2", "train.sh:3: No such option: --gpu"),
        ("--gpus two", "train.sh:3: "),
        ("--gpus", "train.sh:3: "),
        ("gpus 2", "train.sh:3: 'gpus' is no option"),
        ("--time-limit 90", "train.sh:3: --time-limit: 90 has no unit"),
        ("--gpu-share 2", "train.sh:3: --gpu-share: 2 is not a part of a GPU"),
        ("-- --gpus 2", "train.sh:3: a #gpuctl line holds options only"),
    ],
)
def test_a_wrong_option_of_a_script_is_named_with_its_line(
    line: str, said: str, fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    Path("train.sh").write_text(f"#!/bin/sh\n#gpuctl --name mine\n#gpuctl {line}\n")
    refused = gpuctl("submit", "--", "train.sh")
    assert refused.code == 2
    assert said in refused.err, refused.err
    assert not fake.asked("Submit")


def test_a_wrong_value_of_the_command_line_is_not_put_down_to_the_script(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --time-limit 1h\n")
    refused = gpuctl("submit", "--time-limit", "90", "--", "train.sh")
    assert refused.code == 2
    assert "--time-limit: 90 has no unit" in refused.err
    assert "train.sh" not in refused.err


def test_lists_of_the_command_line_stand_in_place_of_the_scripts(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --nodelist n1 --exclude=n3 --env A=1 --env B=1\n")
    assert gpuctl("submit", "--nodelist", "n2", "--exclude", "n4", "--env", "B=2", "--", "train.sh").code == 0
    asked = fake.asked("Submit")[0].specs[0]
    assert (list(asked.nodelist), list(asked.exclude)) == (["n2"], ["n4"])
    assert (asked.env["A"], asked.env["B"]) == ("1", "2")


def test_every_option_of_a_job_works_in_a_script(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    lines = [
        "--gpus 2 --gpu-share 0.5 --min-memory 4GB --gpu-model h100 --allow-busy --no-gpu-selection",
        "--node-gpu-ids n1:0,1 --cpus 3 --memory 1GB --nodelist n1 --exclude n2 --node-label zone=east",
        "--name mine --env A=1 --env-all --cwd /data --label team=vision --band high --hold --time-limit 1h",
        "--grace 5s --no-requeue --requeue-fence 1m --after 1 --begin 2h --queue-timeout 1h --retries 2",
        "--preemptible --blame-limit 2 --notify true --no-warnings",
    ]
    Path("train.sh").write_text("#!/bin/sh\n" + "".join(f"#gpuctl {line}\n" for line in lines))
    assert gpuctl("submit", "--", "train.sh").code == 0
    typed = [word for line in lines for word in shlex.split(line)]
    Path("plain.sh").write_text("#!/bin/sh\n")
    assert gpuctl("submit", *typed, "--", "plain.sh").code == 0
    by_script, by_hand = (MessageToDict(request.specs[0]) for request in fake.asked("Submit"))
    for each in (by_script, by_hand):
        each.pop("beginTime")
        each.pop("argv")
    assert {**by_hand, "env": by_script["env"]} == by_script


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
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
        "no_gpu_selection": st.booleans(),
        "no_warnings": st.booleans(),
        "hold": st.just(False),
    },
)


@given(
    OPTIONS,
    st.lists(TEXT, min_size=2, max_size=4) | st.sampled_from([["python train.py | tee log"], ["A=1 ./run.sh; echo"]]),
)
def test_the_command_shown_for_a_job_would_submit_the_same_job(options: dict[str, Any], command: list[str]) -> None:
    made = spec(tuple(command), **options)
    again = parsed(shlex.split(command_line_of(made)))
    for each in (made, again):  # the server fills these in
        each.band = each.band or job_pb2.BAND_NORMAL
        each.name = each.name or name_of_command(each.argv)
    assert MessageToDict(again) == MessageToDict(made)


def parsed(words: list[str]) -> job_pb2.JobSpec:
    """The spec that gpuctl itself makes of a command line."""
    from dataclasses import fields

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
