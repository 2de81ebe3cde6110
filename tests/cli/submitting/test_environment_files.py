"""An environment that is made of a file which does not go with the job is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.folders.test_scanning import made

FILES = {"train.py": "", "deps/requirements.txt": "", "environment.yml": "", "pyproject.toml": "", "hidden.txt": ""}

REFUSED = {
    "--requirements other.txt": ("--requirements: there is no other.txt in the folder .", "by its path"),
    "--requirements requirements.txt": ("there is deps/requirements.txt", "by its path"),
    "--requirements hidden.txt": ("hidden.txt is there, but ignored", "echo '!/hidden.txt' >> .gpufleetignore"),
    "--conda environment.yaml": ('did you mean "environment.yml"?', "by its path"),
    "--conda deps": ("--conda: there is no deps", "by its path"),
    "--uv": ("--uv: there is no uv.lock in the folder .", "uv lock"),
}


@pytest.fixture(autouse=True)
def folder() -> Path:
    """The folder in which gpuctl is."""
    return made(Path(), {**FILES, ".gitignore": "hidden.txt\n"})


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.parametrize("command", [["submit"], ["submit", "--dry-run"], ["run"]])
def test_a_file_that_is_not_uploaded_is_refused_with_its_option(
    fake: FakeScheduler, gpuctl: Gpuctl, command: list[str], words: str
) -> None:
    done = gpuctl(*command, "--upload", ".", *words.split(), "--", "true")
    assert done.code != 0
    for part in REFUSED[words]:
        assert part in done.err
    assert not fake.asked("UploadBlob") and not fake.asked("Submit")


def test_what_the_refusal_says_to_type_helps(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path(".gpufleetignore").write_text("!/hidden.txt\n")
    for words in ("--requirements hidden.txt", "--requirements deps/requirements.txt", "--conda environment.yml"):
        done = gpuctl("submit", "--upload", ".", *words.split(), "--", "true")
        assert done.code == 0, done.err


def test_a_file_behind_a_link_is_left_to_the_node(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("linked").symlink_to("deps")
    Path("requirements.txt").symlink_to("deps/requirements.txt")
    for name in ("linked/requirements.txt", "requirements.txt"):
        assert gpuctl("submit", "--upload", ".", "--requirements", name, "--", "true").code == 0


@pytest.mark.parametrize("file", ["deps/requirements.txt=requirements.txt", f"sha256:{'ab' * 32}:5=requirements.txt"])
def test_a_file_of_its_own_counts_by_the_name_that_it_has_there(fake: FakeScheduler, gpuctl: Gpuctl, file: str) -> None:
    submit = ("submit", "--dry-run", "--file", file, "--requirements")
    assert gpuctl(*submit, "requirements.txt", "--", "true").code == 0
    done = gpuctl(*submit, "deps/requirements.txt", "--", "true")
    assert done.code != 0
    assert "there is no deps/requirements.txt in the files of --file; there is requirements.txt" in done.err
