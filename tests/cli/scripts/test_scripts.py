"""Scripts that are submitted: their `#gpuctl` lines in every form of giving them, and what `#SBATCH` lines would be."""

from __future__ import annotations

import codecs
import io
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from cli.scripts.finding import before, option_lines, script_of
from cli.scripts.standard_input import script_and_command
from gpufleet.errors import GpufleetError
from gpufleet.fleet.submitting.job_options import JobOptions
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.fields.asked import BESIDE, LOCAL
from tests.fields.asked import typed as typed_as


def test_options_of_a_script_come_before_those_of_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/sh\n#gpuctl --gpus 2 --name 'my run'\n# gpuctl --cpus 9\n#gpuctl --band low # quiet\necho\n"
    )
    lines = option_lines(script_of([str(script), "--gpus", "8"], Path()))
    assert before(["--gpus", "4"], lines) == ["--gpus", "2", "--name", "my run", "--band", "low"]


@pytest.mark.parametrize("command", [["./train.sh"], ["bash", "train.sh"]])
@pytest.mark.parametrize("beginning", [b"#!/bin/sh\n", b""])
def test_a_byte_order_mark_hides_no_option(tmp_path: Path, command: list[str], beginning: bytes) -> None:
    (tmp_path / "train.sh").write_bytes(codecs.BOM_UTF8 + beginning + b"#gpuctl --gpus 2 # f\xfcr uns\n")
    expected = [["--gpus", "2"]] if beginning or command[0] == "bash" else []
    assert [words for _, words in option_lines(script_of(command, tmp_path))] == expected


def test_a_byte_order_mark_of_standard_input_is_no_part_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(codecs.BOM_UTF8 + b"#gpuctl --gpus 2\necho 1\n")))
    script, command = script_and_command(["-"], None)
    assert script is not None and [words for _, words in option_lines(script)] == [["--gpus", "2"]]
    assert command == ["/bin/sh", "-c", "#gpuctl --gpus 2\necho 1\n"]


def test_a_script_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#gpuctl --name 'open\n")
    with pytest.raises(GpufleetError, match=r"train\.sh:2: the #gpuctl line cannot be read"):
        option_lines(script_of(["./train.sh"], tmp_path))


def test_a_program_that_is_no_script_carries_no_options(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\n#gpuctl --gpus 2\n")
    (tmp_path / "data.txt").write_text("#gpuctl --gpus 2\n")
    for command in (["./binary"], ["bash", "binary"], ["./data.txt"], ["missing"], ["./data.txt && ./data.txt"]):
        assert not option_lines(script_of(command, tmp_path)), command


FORMS = [
    "submit ./train.sh",
    "submit -- ./train.sh",
    "submit -- ./train.sh 3 --gpus 9",
    "submit bash train.sh",
    "submit -- bash train.sh 3",
    "submit -- /bin/bash -eu -o pipefail train.sh",
    "submit -- bash -euo pipefail train.sh",
    "submit -- env A=1 sh -x ./train.sh",
    "submit -- python3 -u -W error -Xutf8 train.sh",
    "submit -- perl -w train.sh",
    "submit './train.sh 3'",
    "submit -- 'exec bash train.sh'",
    "submit --cwd sub ../train.sh",
    "submit --interactive --dry-run ./train.sh",
    "submit -- -",
    "submit -- - a b",
]


@pytest.mark.parametrize("line", FORMS)
def test_the_lines_of_a_script_are_read_in_every_form_of_giving_it(
    line: str, fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#!/bin/sh\n#gpuctl --gpus 2 --time-limit 1h\necho hi\n"
    Path("train.sh").write_text(text)
    Path("sub").mkdir()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    done = gpuctl(*shlex.split(line))
    assert done.code == 0, done.err
    asked = fake.asked("Submit")[0].specs[0]
    assert (asked.devices[0].count, asked.time_limit.seconds) == (2, 3600)


@pytest.mark.parametrize(
    "line",
    [
        "submit -- bash -c 'echo train.sh' train.sh",
        "submit -- python3 -m http.server train.sh",
        "submit -- python3 -c pass train.sh",
        "submit -- cat train.sh",
        "submit -- './train.sh; ./train.sh'",
        "submit --cwd sub ./train.sh",
    ],
)
def test_a_file_that_is_no_script_of_the_command_is_not_read(line: str, fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --gpus 2\n")
    Path("sub").mkdir()
    assert gpuctl(*shlex.split(line)).code == 0
    assert not fake.asked("Submit")[0].specs[0].devices


def test_a_script_that_path_finds_is_read(fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bin").mkdir()
    Path("bin/train").write_text("#!/bin/sh\n#gpuctl --gpus 2\n")
    Path("bin/train").chmod(0o755)
    monkeypatch.setenv("PATH", str(Path("bin").absolute()))
    assert gpuctl("submit", "train").code == 0
    assert fake.asked("Submit")[0].specs[0].devices[0].count == 2


def test_the_command_of_a_script_stays_as_it_was_typed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --gpus 2\n")
    assert gpuctl("submit", "--name", "x", "bash", "train.sh", "--", "--gpus", "9").code == 0
    asked = fake.asked("Submit")[0].specs[0]
    assert list(asked.argv) == ["bash", "train.sh", "--", "--gpus", "9"]
    assert (asked.name, asked.devices[0].count) == ("x", 2)


def test_a_script_is_submitted_with_its_own_options(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --gpus 2 --name mine\n")
    assert gpuctl("submit", "--gpus", "4", "--", "./train.sh").code == 0
    submitted = fake.asked("Submit")[0].specs[0]
    assert (submitted.devices[0].count, submitted.name, list(submitted.argv)) == (4, "mine", ["./train.sh"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--gpu 2", "train.sh:3: no such option: --gpu"),
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


@pytest.mark.parametrize("option", [each.name for each in fields(JobOptions) if each.name not in LOCAL])
def test_every_option_of_a_job_works_in_a_script(fake: FakeScheduler, gpuctl: Gpuctl, option: str) -> None:
    given = {**BESIDE.get(option, {}), option: typed_as(option)}
    typed = [word for name, value in given.items() for word in words(name, value)]
    Path("train.sh").write_text(f"#!/bin/sh\n#gpuctl {shlex.join(typed)}\n")
    assert gpuctl("submit", "--", "train.sh").code == 0
    Path("plain.sh").write_text("#!/bin/sh\n")
    assert gpuctl("submit", *typed, "--", "plain.sh").code == 0
    by_script, by_hand = (MessageToDict(request.specs[0]) for request in fake.asked("Submit"))
    for each in (by_script, by_hand):
        each.pop("beginTime", None)  # a moment later
        each.pop("argv")
    if option == "env_all":
        by_hand["env"] = by_script["env"]
    assert by_hand == by_script


def words(option: str, value: Any) -> list[str]:
    """An option as it is typed."""
    flag = f"--{option.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [word for each in (value if isinstance(value, list) else [value]) for word in (flag, str(each))]


SBATCH = """#!/bin/bash
#SBATCH --gres=gpu:2 --time=2:30:00
#SBATCH -J resnet   # a name
#SBATCH --partition gpu
#SBATCH --mem=32G --dependency=afterok:4:5 --export=ALL,SEED=1
"""


def test_lines_of_slurms_get_one_line_that_names_what_they_would_be(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("job.sh").write_text(SBATCH)
    done = gpuctl("submit", "job.sh")
    assert done.out == b"1\n"
    assert done.err.splitlines() == [
        "gpuctl: job.sh: its #SBATCH lines are not read; here they would be: #gpuctl --gpus 2 --time-limit 2h30m "
        "--name resnet --memory 32GB --after 4,5 --env-all --env SEED=1; nothing stands for --partition gpu "
        "(see docs/coming-from-slurm.md)"
    ]
    assert not fake.asked("Submit")[0].specs[0].devices, "it is a warning, and changes nothing"


def test_what_slurms_lines_would_be_can_be_typed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("job.sh").write_text(SBATCH)
    told = gpuctl("submit", "job.sh").err.partition("#gpuctl ")[2].partition(";")[0]
    assert gpuctl("submit", *shlex.split(told), "--", "job.sh").code == 0
    asked = fake.asked("Submit")[1].specs[0]
    assert (asked.devices[0].count, asked.time_limit.seconds, asked.memory_bytes) == (2, 9000, 32 * 10**9)
    assert [each.job_id for each in asked.after] == [4, 5]


def test_a_script_for_both_is_told_only_what_its_own_lines_leave_out(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("job.sh").write_text(SBATCH + "#gpuctl --gpus 2 --time-limit 1h --name x --memory 1GB --after 4 --env-all\n")
    assert gpuctl("submit", "job.sh").err == ""
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 --time=10\n#gpuctl --gpus 1\n")
    assert "here they would be: #gpuctl --time-limit 10m\n" in gpuctl("submit", "job.sh").err
    assert gpuctl("submit", "--time-limit", "1h", "job.sh").err == ""


def of_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("text", "before_it", "behind_it"),
    [
        ("echo hi\n", ["/bin/sh", "-c"], ["sh"]),
        ("#!/bin/bash -e\necho hi\n", ["/bin/bash", "-e", "-c"], ["bash"]),
        ("#!/usr/bin/env python3\nprint(1)\n", ["/usr/bin/env", "python3", "-c"], []),
        ("#!/usr/bin/env -S python3 -u\nprint(1)\n", ["/usr/bin/env", "python3", "-u", "-c"], []),
    ],
)
def test_a_script_on_standard_input_becomes_an_argument_of_its_interpreter(
    text: str, before_it: list[str], behind_it: list[str],
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    of_standard_input(monkeypatch, text.encode())
    assert gpuctl("submit", "--", "-").out == b"1\n"
    of_standard_input(monkeypatch, text.encode())
    assert gpuctl("submit", "--", "-", "a", "b c").out == b"2\n"
    alone, with_arguments = (list(asked.specs[0].argv) for asked in fake.asked("Submit"))
    assert alone == [*before_it, text]
    assert with_arguments == [*before_it, text, *behind_it, "a", "b c"]


def test_a_script_on_standard_input_runs_as_its_file_would(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {
        "#!/bin/sh\nread x; echo $1 $# $x\n": "a 2 typed\n",
        "#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1], len(sys.argv) - 1, input())\n": "a 2 typed\n",
        "#!/usr/bin/perl -w\nprint $ARGV[0], ' ', scalar @ARGV, ' ', <STDIN>;\n": "a 2 typed\n",
    }
    for number, (text, written) in enumerate(scripts.items()):
        of_standard_input(monkeypatch, text.encode())
        assert gpuctl("submit", "--", "-", "a", "b").code == 0
        argv = list(fake.asked("Submit")[number].specs[0].argv)
        if shutil.which(argv[0]) is not None:
            done = subprocess.run(argv, input="typed\n", capture_output=True, text=True, check=False)
            assert (done.stdout, done.stderr) == (written, ""), text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"  \n", "standard input holds no script"),
        (b"\x7fELF\0", "it holds NUL bytes"),
        (b"#!/usr/bin/awk -f\n{ print }\n", "awk takes no script as an argument"),
        (b"x" * 131_072, "is longer than 131,071 bytes"),
    ],
)
def test_what_cannot_be_a_script_on_standard_input_is_refused(
    content: bytes, said: str, fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_standard_input(monkeypatch, content)
    refused = gpuctl("submit", "--", "-")
    assert refused.code == 2 and said in refused.err, refused.err
    assert len(refused.err.splitlines()) == 2 and not fake.asked("Submit")


def test_standard_input_is_not_both_the_script_and_the_jobs_own(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    refused = gpuctl("run", "-i", "--", "-")
    assert "cannot be the job's as well" in refused.err and not fake.asked("Submit")
