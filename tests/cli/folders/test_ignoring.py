"""What ignore files leave out: as git reads them, whatever wrote them, and people hear how much that is."""

from __future__ import annotations

import codecs
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.folders import git_excludes, ignored
from gpufleet.fleet.folders.scanning import scan
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.folders.test_scanning import ENOUGH, made, paths


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def as_git_has_it(folder: Path) -> list[str]:
    """The files of a folder that git would take."""
    listed = git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    return sorted(filter(None, listed.split("\0")))


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, of somebody whose settings of git are in the test's own folder."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    made(tmp_path / "home", {".gitconfig": ""})
    git(tmp_path, "init", "-q", "project")
    return tmp_path / "project"


FILES = {"a.py": "", "secret/key": "", "d/secret/key": "", "d/x.swp": "", "notes.txt": "", "d/notes.txt": ""}

EXCLUDES: dict[str, tuple[dict[str, str], str]] = {
    "info/exclude": ({"project/.git/info/exclude": "secret/\n/notes.txt\n"}, ""),
    "the usual global file": ({"config/git/ignore": "*.swp\nsecret/\n"}, ""),
    "a global file that is set": ({"home/mine": "*.swp\nsecret/\n", "config/git/ignore": "*\n"}, "~/mine"),
    "a global file that is set to none": ({"config/git/ignore": "*\n"}, "EMPTY"),
    "all three, where .gitignore counts first": (
        {
            "project/.gitignore": "!secret/\n!x.swp\n",
            "project/d/.gitignore": "notes.txt\n",
            "project/.git/info/exclude": "secret/\n!notes.txt\n",
            "config/git/ignore": "*.swp\nnotes.txt\n",
        },
        "",
    ),
}


@pytest.mark.parametrize("what", EXCLUDES)
@pytest.mark.parametrize("folder", ["", "d"])
def test_the_excludes_of_a_repository_and_of_git_count_as_git_counts_them(
    tmp_path: Path, repository: Path, what: str, folder: str
) -> None:
    files, global_file = EXCLUDES[what]
    made(tmp_path, files)
    if global_file:
        git(repository, "config", "--global", "core.excludesFile", "" if global_file == "EMPTY" else global_file)
    made(repository, FILES)
    going = paths(scan(repository / folder, ENOUGH))
    assert going == as_git_has_it(repository / folder)
    assert going


def test_a_worktree_and_a_repository_within_have_their_own_excludes(tmp_path: Path, repository: Path) -> None:
    made(repository, {"a.py": "", ".git/info/exclude": "secret/\n"})
    git(repository, "add", "a.py")
    author = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    git(repository, *author, "commit", "-qm", "first")
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    made(tmp_path / "tree", FILES)
    assert paths(scan(tmp_path / "tree", ENOUGH)) == as_git_has_it(tmp_path / "tree")
    git(repository, "init", "-q", "inner")
    made(repository, {"inner/b.py": "", "inner/hidden": "", "inner/.git/info/exclude": "hidden\n", "hidden": ""})
    assert paths(scan(repository, ENOUGH)) == ["a.py", "hidden", "inner/b.py"]


def test_without_git_its_usual_places_count(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    made(tmp_path, {"config/git/ignore": "*.swp\n", "project/.git/info/exclude": "secret/\n"})
    assert paths(scan(made(repository, FILES), ENOUGH)) == ["a.py", "d/notes.txt", "notes.txt"]


def test_settings_that_git_cannot_read_are_refused_and_nothing_is_uploaded(repository: Path) -> None:
    made(repository, {"a.py": "", ".git/config": "[core\n"})
    with pytest.raises(GpufleetError, match="git cannot say which files it ignores: fatal: bad config") as caught:
        scan(repository, ENOUGH)
    assert caught.value.reason is Reason.CONFIG_INVALID
    assert "git config --get core.excludesFile" in caught.value.next_step


WRITTEN: Mapping[str, bytes] = {
    "with a byte order mark": codecs.BOM_UTF8 + b"secret/\n",
    "with a latin-1 comment": b"# geh\xf6rt nicht hierher\nsecret/\n",
    "with the ends of lines of Windows": codecs.BOM_UTF8 + b"secret/\r\n\r\n",
    "with what only Python takes for the end of a line": b"# one\x0cx\xc2\x85y\nsecret/\n",
}


@pytest.mark.parametrize("file", [".gitignore", ".gpufleetignore", ".git/info/exclude"])
@pytest.mark.parametrize("how", WRITTEN)
def test_a_file_that_another_program_wrote_leaves_out_what_it_says(repository: Path, file: str, how: str) -> None:
    made(repository, {"a.py": "", "secret/key": "", "x": "", "y": ""})
    (repository / file).write_bytes(WRITTEN[how])
    assert [each for each in paths(scan(repository, ENOUGH)) if each != file] == ["a.py", "x", "y"]


def test_a_pattern_in_latin_1_leaves_out_the_name_with_the_same_bytes(repository: Path) -> None:
    (repository / ".gitignore").write_bytes(b"gr\xf6\xdfe\n")
    Path(os.fsdecode(os.fsencode(repository) + b"/gr\xf6\xdfe")).write_bytes(b"")
    assert paths(scan(repository, ENOUGH)) == [".gitignore"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf_16_is_refused(repository: Path, encoding: str) -> None:
    (repository / ".gitignore").write_bytes(
        (codecs.BOM_UTF16_BE if encoding[-1] == "e" else b"") + "secret/\n".encode(encoding)
    )
    with pytest.raises(GpufleetError, match="is UTF-16") as caught:
        scan(repository, ENOUGH)
    assert "in UTF-8" in caught.value.next_step


def test_what_is_ignored_is_counted_with_its_size_and_its_largest_files(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    made(Path(), {".gitignore": "data/\n*.log\n", "train.py": "", "d/x.log": "x" * 40, ".venv/pip": "x" * 9_000})
    made(Path(), {f"data/{name}/part": "x" * size for name, size in (("a", 3_000), ("b", 2_000), ("c", 500))})
    Path("data/link").symlink_to("/")
    expected = (
        "gpuctl: not uploaded, as ignored: 5 files, 5.54kB; largest: data/a/part 3kB, data/b/part 2kB, data/c/part 500B"
    )
    for words in (["submit"], ["submit", "--dry-run"]):
        done = gpuctl(*words, "--upload", ".", "--", "true")
        assert done.code == 0, done.err
        assert expected in done.err.splitlines()
        assert "gpuctl: left out: '.venv/'" in done.err.splitlines()
    Path(".gitignore").write_text("")
    assert "not uploaded" not in gpuctl("submit", "--dry-run", "--upload", "d", "--", "true").err


@pytest.mark.parametrize(("bound", "value"), [("COUNTED_MAX", 3), ("SECONDS_MAX", 0.0)])
def test_counting_what_is_ignored_has_a_bound(
    repository: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    monkeypatch.setattr(ignored, bound, value)
    made(repository, {".gitignore": "data/\n", **{f"data/{number}": "x" for number in range(5)}})
    found = scan(repository, ENOUGH).ignored
    assert not found.is_complete
    assert str(found).startswith("at least ")
    assert found.count == (3 if bound == "COUNTED_MAX" else 0)


def test_git_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, {"bin/git": "#!/bin/sh\nexec sleep 60\n"})
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(git_excludes, "GIT_SECONDS_MAX", 0.05)
    with pytest.raises(GpufleetError, match=r"git cannot say which files it ignores: .*timed out"):
        scan(repository, ENOUGH)
