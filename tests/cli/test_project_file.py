"""`gpufleet.toml`: what is typed each time, said once in the folder; what the line says wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError
from gpufleet.fleet.folders.ignoring import IgnoreRules
from gpufleet.fleet.submitting.job_options import option_table
from gpufleet.fleet.submitting.project_file import TYPED_ALONE, ignored_lines, keys, project_file, project_lines
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler


def words_of(folder: Path, text: str) -> list[str]:
    (folder / "gpufleet.toml").write_text(text)
    return [word for _, words in project_lines(folder / "gpufleet.toml") for word in words]


def test_every_option_of_a_job_is_a_key() -> None:
    flags = {each.flag.removeprefix("--").removeprefix("no-") for each in option_table()}
    assert {key.removeprefix("no-") for key in keys()} == flags | {"config"}
    assert {"env-all", "secret"} <= set(TYPED_ALONE) & set(keys())


def test_a_key_becomes_the_words_of_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        'gpus = 2\ntime_limit = "4h"\ngpu-share = 0.5\nupload = "."\ndownload = ["out/**", "!*.tmp"]\nuv = true\n'
        'preemptible = false\nrequeue = false\nenv = { A = "1", B = 2 }\n[label]\nteam = "vision"\n'
    )
    assert words_of(Path(), text) == [
        *("--gpus=2", "--time-limit=4h", "--gpu-share=0.5", "--upload=.", "--download=out/**", "--download=!*.tmp"),
        *("--uv", "--no-requeue", "--env=A=1", "--env=B=2", "--label=team=vision"),
    ]


def test_a_byte_order_mark_and_a_latin_1_comment_are_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "gpufleet.toml"
    file.write_bytes(b'\xef\xbb\xbfignore = ["secret/"]\ngpus = 2 # f\xfcr uns\n')
    assert project_lines(file) == [(f"{file}:2", ["--gpus=2"])]
    assert ignored_lines(file) == ["secret/"]
    file.write_bytes(b"name = 'f\xfcr'\n")
    with pytest.raises(GpufleetError, match=r"gpufleet\.toml:1: this is not UTF-8"):
        project_lines(file)


def test_the_file_in_the_folder_of_upload_counts_and_its_paths_lie_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "more.txt").touch()
    assert project_file(["--upload", "mine"]) is None
    assert words_of(Path("mine"), 'file = ["more.txt=a.txt"]\n') == ["--file=mine/more.txt=a.txt"]
    assert project_file(["--upload=mine"]) == Path("mine/gpufleet.toml")
    assert project_file(["--gpus", "1"]) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpu = 2", "gpu is no option of a job"),
        ("timelimit = '1h'", "time-limit"),
        ("env-all = true", "env-all: it would pass on all variables"),
        ("env_all = false", "env_all: it would pass on all variables"),
        ("secret = ['HF_TOKEN']", "secret: it would give a secret"),
        ("env = ['HOME']", "env: HOME has no value"),
        ("file = ['/etc/passwd']", "lies outside of the folder"),
        ("file = ['../other']", "lies outside of the folder"),
        ("file = ['link=inside.txt']", "lies outside of the folder"),
        ("upload = '~/all'", "lies outside of the folder"),
        ("uv = 'yes'", "uv is said or not"),
        ("gpus = true", "gpus is no text"),
        ("gpus = [[1]]", "gpus holds something"),
        ("ignore = 'data'", "ignore is no list"),
    ],
)
def test_a_wrong_key_is_named_with_its_line(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(GpufleetError) as refused:
        words_of(tmp_path, f"# ours\n{line}\n")
    assert said in str(refused.value) + refused.value.next_step
    assert "gpufleet.toml:2" in str(refused.value)


def test_what_is_no_toml_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(GpufleetError, match=r"gpufleet\.toml:1: this is not TOML"):
        words_of(tmp_path, "gpus = = 2\n")


def test_its_ignore_leaves_out_and_gpufleetignore_goes_before_it(tmp_path: Path) -> None:
    (tmp_path / "gpufleet.toml").write_text('ignore = ["data/", "*.ckpt"]\n')
    (tmp_path / ".gpufleetignore").write_text("!last.ckpt\n")
    assert ignored_lines(tmp_path / "gpufleet.toml") == ["data/", "*.ckpt"]
    rules = IgnoreRules().inside(tmp_path, "", frozenset({"gpufleet.toml", ".gpufleetignore"}))
    left_out = {
        name: rules.leaves_out(name, name, is_folder=name == "data") for name in ("data", "a.ckpt", "last.ckpt", "a.py")
    }
    assert left_out == {"data": True, "a.ckpt": True, "last.ckpt": False, "a.py": False}
    (tmp_path / "gpufleet.toml").write_text('ignore = ["!"]\n')
    with pytest.raises(GpufleetError, match="ignore holds a line that is no pattern"):
        IgnoreRules().inside(tmp_path, "", frozenset({"gpufleet.toml"}))


def test_what_it_says_is_told_and_what_is_typed_wins(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("gpufleet.toml").write_text('gpus = 2\ntime-limit = "1h"\nnodelist = ["n1"]\n')
    done = gpuctl("submit", "--gpus", "4", "--nodelist", "n2", "--", "true")
    assert done.code == 0, done.err
    assert "gpuctl: gpufleet.toml: --gpus=2 --time-limit=1h --nodelist=n1\n" in done.err
    asked = fake.asked("Submit")[0].specs[0]
    assert (asked.devices[0].count, asked.time_limit.seconds, [*asked.nodelist]) == (4, 3600, ["n2"])


def test_a_dry_run_says_where_each_value_stands(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("gpufleet.toml").write_text('gpus = 2\n\ntime-limit = "1h"\n')
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --cpus 4\n")
    done = gpuctl("submit", "--dry-run", "--gpus", "4", "--", "sh", "train.sh")
    assert done.code == 0, done.err
    assert done.err.splitlines() == [
        "gpuctl: gpufleet.toml:1: --gpus=2 (the command line says it, too)",
        "gpuctl: gpufleet.toml:3: --time-limit=1h",
        "gpuctl: train.sh:2: --cpus 4",
    ]


def test_a_value_that_is_wrong_is_named_with_its_line(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("gpufleet.toml").write_text('# ours\ngpus = "many"\n')
    done = gpuctl("submit", "--", "true")
    assert done.code != 0
    assert "gpufleet.toml:2" in done.err and "many" in done.err
    Path("gpufleet.toml").write_text('\ntime-limit = "soon"\n')
    done = gpuctl("submit", "--", "true")
    assert "gpufleet.toml:2" in done.err and "soon" in done.err
    assert not fake.asked("Submit")
