"""Options that a command does not have: what is meant, by whole words, and what Slurm's are here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cli.scripts import slurm
from cli.unknown_options import options_alike
from tests.cli.conftest import Gpuctl, run_here
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.test_conventions import options_of_every_command

PAGE = (Path(__file__).resolve().parents[2] / slurm.PAGE).read_text()
KNOWN = options_of_every_command()["submit"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--gpu", ["--gpus"]),
        ("--gpsu", ["--gpus"]),
        ("--timelimit", ["--time-limit"]),
        ("--limit", ["--blame-limit", "--time-limit"]),
        ("--gpu-ids", ["--node-gpu-ids"]),
        ("--node-list", ["--nodelist"]),
        ("--labels", ["--label"]),
        ("--xyzzy", []),
    ],
)
def test_what_is_suggested_has_the_words_that_were_typed(typed: str, meant: list[str]) -> None:
    assert [each for each in options_alike(typed, KNOWN) if each in meant] == meant
    assert bool(options_alike(typed, KNOWN)) == bool(meant)


def test_a_suggestion_stands_in_the_refusal_of_every_command() -> None:
    assert "no such option: --gpu; did you mean --gpus?\nSee: gpuctl submit --help" in run_here("submit", "--gpu").err
    assert "did you mean --reason?" in run_here("cancel", "--reasons", "x", "1").err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--gres=gpu:2", "--gpus 2 (on one node where one could ever hold it)"),
        ("--gres gpu:h100:1", "--gpus 1 --gpu-model h100"),
        ("--gres=gpu", "--gpus 1"),
        ("--mem 32G", "--memory 32GB (units are written out: 32GB or 32GiB)"),
        ("--mem=4096", "--memory 4096MB"),
        ("--time=2:30:00", "--time-limit 2h30m (jobs with a limit pass others that wait)"),
        ("--time=90", "--time-limit 1h30m"),
        ("-t 1-12", "--time-limit 1d12h"),
        ("--partition gpu", "there are no partitions"),
        ("-p gpu", "there are no partitions"),
        ("--account=lab", "a token is a user"),
        ("--mail-type=END", "--notify 'mail -s done me' (any command or URL)"),
        ("--exclusive", "ask for all its GPUs and CPUs"),
        ("--reservation x", "there are no reservations"),
        ("--dependency=afterok:4:5,afterany:6", "--after 4,5,6:any"),
        ("-c 8", "--cpus 8"),
        ("-N 2", "--nodes 2"),
        ("--output train-%j.log", "for the job's output: "),
        ("-o logs/train.log", "for the job's output: "),
    ],
)
def test_an_option_of_slurms_gets_the_line_of_the_table(line: str, hint: str) -> None:
    refused = run_here("submit", *line.split(), "--", "true")
    assert refused.code == 2
    first, second = refused.err.splitlines()
    assert hint in first, first
    assert second == "All of Slurm's options: docs/coming-from-slurm.md"


def test_signal_is_explained_or_is_there() -> None:
    assert "--signal" in KNOWN or "it is Slurm's" in run_here("submit", "--signal=USR1@300", "--", "true").err


@pytest.mark.parametrize("command", ["queue", "cancel"])
def test_only_what_makes_jobs_speaks_of_slurms_options(command: str) -> None:
    assert "Slurm" not in run_here(command, "--gres=gpu:2").err


def test_a_wrong_output_format_stays_one(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    refused = gpuctl("submit", "-o", "yaml", "--", "true")
    assert refused.code == 2 and "Slurm" not in refused.err and "yaml" in refused.err


def rows() -> list[tuple[str, str, str]]:
    table = PAGE.partition("## Options")[2].partition("\n## ")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:4] for line in table.splitlines() if line.startswith("| `")]
    return [
        (
            typed,
            re.findall(r"`gpuctl submit (.*?)(?:-- \./train\.sh)?`", ours)[0] if "`" in ours else "",
            remark.strip(),
        )
        for theirs, ours, remark in cells
        for typed in re.findall(r"`([^`]*)`", theirs)
    ]


def test_each_row_of_the_page_is_what_the_hint_says() -> None:
    said = rows()
    assert len(said) > 25
    named: set[str] = set()
    for typed, ours, remark in said:
        words = shlex.split(typed)
        assert all(slurm.option_of(word) for word in words if word.startswith("-")), typed
        found = slurm.translated(words)
        named.update(slurm.option_of(word) for word in words)
        told = [word for each in found for word in each.ours]
        assert told == shlex.split(ours.replace("zone=", "NAME=")), typed
        if len(found) == 1 and found[0].remark:
            assert found[0].remark == re.sub(r"`|\[|\]\([^)]*\)", "", remark), typed
    assert {"--gres", "--partition", "--account", "--mail-type", "--exclusive", "--time", "--mem"} <= named
