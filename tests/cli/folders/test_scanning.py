"""What of a folder goes along: what people left out stays here, and what cannot go is named with a line that helps."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.folders.scanning import Limits, ScannedFolder, ignore_line, scan

ENOUGH = Limits(10**9, 1_000)


def made(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def paths(found: ScannedFolder) -> list[str]:
    return [each.path for each in found.files]


IGNORED: dict[str, tuple[dict[str, str], list[str]]] = {
    "what .gitignore names": (
        {".gitignore": "*.log\n/build/\n", "a.log": "", "d/b.log": "", "build/x": "", "d/build/x": "", "c": ""},
        [".gitignore", "c", "d/build/x"],
    ),
    "what an inner .gitignore takes back": (
        {".gitignore": "*.log\n", "d/.gitignore": "!keep.log\n", "d/keep.log": "", "d/a.log": "", "keep.log": ""},
        [".gitignore", "d/.gitignore", "d/keep.log"],
    ),
    "what .gpufleetignore takes along though it is not in git": (
        {".gitignore": "data/\n", ".gpufleetignore": "!data/\ndata/raw/\n", "data/a": "", "data/raw/b": ""},
        [".gitignore", ".gpufleetignore", "data/a"],
    ),
    "what .gpufleetignore leaves here though it is in git": (
        {".gpufleetignore": "docs\n", "docs/a": "", "sub/docs": "", "b": ""},
        [".gpufleetignore", "b"],
    ),
    "histories, environments and caches": (
        {
            **{f"{folder}/x": "" for folder in (".git", ".hg", ".venv", "d/node_modules", "d/__pycache__", ".tox")},
            "mine/pyvenv.cfg": "",
            "conda/conda-meta/history": "",
            "a": "",
        },
        ["a"],
    ),
    "an environment that somebody wants, but never a history": (
        {".gpufleetignore": "!venv/\n!mine/\n!.git/\n", "venv/x": "", "mine/pyvenv.cfg": "", ".git/x": ""},
        [".gpufleetignore", "mine/pyvenv.cfg", "venv/x"],
    ),
}


@pytest.mark.parametrize("what", IGNORED)
def test_what_stays_here(tmp_path: Path, what: str) -> None:
    files, going = IGNORED[what]
    assert paths(scan(made(tmp_path, files), ENOUGH)) == going


def test_a_folder_of_a_repository_keeps_to_what_stands_above_it_unless_it_is_itself_left_out(tmp_path: Path) -> None:
    made(tmp_path, {".git/x": "", ".gitignore": "*.log\n/out/\n", "src/.gitignore": "*.tmp\n"})
    made(tmp_path, {"src/p/a.log": "", "src/p/b.tmp": "", "src/p/c": "", "out/a.log": ""})
    assert paths(scan(tmp_path / "src/p", ENOUGH)) == ["c"]
    assert paths(scan(tmp_path / "out", ENOUGH)) == ["a.log"]


def test_what_is_no_file_stays_here_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, {"a": "", "__pycache__/b": ""})
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        found = scan(Path(), ENOUGH)
    assert paths(found) == ["a"]
    assert sorted(found.left_out) == ["__pycache__/", "pipe (no plain file)", "socket (no plain file)"]


@pytest.mark.parametrize(
    ("name", "line"),
    [(b"a\nb", "echo 'a?b' >> "), (b"\xff.bin", "echo '?.bin' >> ")],
)
def test_an_odd_name_is_refused_and_the_line_that_is_told_leaves_it_out(tmp_path: Path, name: bytes, line: str) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    with pytest.raises(GpufleetError) as caught:
        scan(tmp_path, ENOUGH)
    assert caught.value.reason is Reason.INVALID_ARGUMENT
    assert f"{line}{tmp_path}/.gpufleetignore" in caught.value.next_step
    (tmp_path / ".gpufleetignore").write_text(line.split("'")[1] + "\n")
    assert paths(scan(tmp_path, ENOUGH)) == [".gpufleetignore"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/etc/passwd", "is not relative"),
        ("../outside", "leads out of the folder"),
        ("missing", "does not go along"),
        ("left.log", "does not go along"),
        ("d/inner/a", "leads through another one"),
    ],
)
def test_a_link_that_would_lead_elsewhere_there_is_refused_and_named(tmp_path: Path, target: str, why: str) -> None:
    root = made(tmp_path / "root", {"d/a": "", "left.log": "", ".gitignore": "*.log\n"})
    (root / "d/inner").symlink_to("../d")
    (root / "link").symlink_to(target)
    with pytest.raises(GpufleetError) as caught:
        scan(root, ENOUGH)
    assert f"link is a link to {target!r}, and " in caught.value.message
    assert why in caught.value.message
    assert f"echo /link >> {root}/.gpufleetignore" in caught.value.next_step


def test_a_link_that_stays_inside_goes_along_as_a_link(tmp_path: Path) -> None:
    root = made(tmp_path, {"d/a": ""})
    (root / "x").symlink_to("d/a")
    (root / "d/y").symlink_to("../d")
    assert scan(root, ENOUGH).links == {"x": "d/a", "d/y": "../d"}


def test_too_much_is_refused_before_anything_is_read_with_what_is_largest(tmp_path: Path) -> None:
    root = made(tmp_path, {"data/a": "x" * 600, "data/b": "x" * 500, "c": "x" * 100})
    (root / "data" / "a").chmod(0)
    with pytest.raises(GpufleetError) as caught:
        scan(root, Limits(1_000, 10))
    assert caught.value.reason is Reason.FILE_TOO_LARGE
    assert "holds 1.2kB, of which 1.1kB in data/; at most 1kB go along" in caught.value.message
    assert "Largest: data/a 600B, data/b 500B, c 100B" in caught.value.message
    assert f"echo /data/ >> {root}/.gpufleetignore" in caught.value.next_step
    assert "GPUCTL_UPLOAD_BYTES_MAX=1200" in caught.value.next_step
    with pytest.raises(GpufleetError, match="more than 2 files") as caught:
        scan(root, Limits(10_000, 2))
    assert f"echo /data/ >> {root}/.gpufleetignore" in caught.value.next_step


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    made(tmp_path, {"a": "", "bad/.gitignore": "a\n", "bad/b": ""})
    with pytest.raises(GpufleetError, match="no folder") as caught:
        scan(tmp_path / "a", ENOUGH)
    assert "--file" in caught.value.next_step
    with pytest.raises(GpufleetError, match="there is no folder"):
        scan(tmp_path / "missing", ENOUGH)
    (tmp_path / "bad/.gitignore").write_text("!\n")
    with pytest.raises(GpufleetError, match="no pattern"):
        scan(tmp_path / "bad", ENOUGH)


def test_the_line_that_leaves_something_out_runs_nothing_whatever_a_name_says() -> None:
    line = ignore_line(Path(), "it's; touch $(pwned)")
    assert shlex.split(line) == ["echo", "/it's; touch $(pwned)", ">>", ".gpufleetignore"]


@pytest.mark.parametrize("name", ["*", "a*[b]?", "trail ", " two  ", "!x", "#x", "-n", "b\\nc", "it's $(x)", "é"])
@pytest.mark.parametrize("where", ["", "my project"])
def test_the_line_that_is_told_leaves_out_what_it_names_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    """As it is typed where the person stands, which may be elsewhere than in the folder."""
    made(tmp_path / where, {"kept": ""})
    (tmp_path / where / name).symlink_to("/nowhere")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GpufleetError) as caught:
        scan(Path(where), ENOUGH)
    line = caught.value.next_step.removeprefix("Leave it out: ").partition(" \N{MIDDLE DOT} ")[0]
    subprocess.run(["/bin/sh", "-c", line], check=True)
    found = scan(Path(where), ENOUGH)
    assert (paths(found), found.links) == ([".gpufleetignore", "kept"], {})


def test_a_line_that_means_nothing_is_passed_over_as_git_does(tmp_path: Path) -> None:
    made(tmp_path, {".gitignore": "[z-a]\n[a\n*.log\n", "a.log": "", "b": ""})
    assert paths(scan(tmp_path, ENOUGH)) == [".gitignore", "b"]


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_what_is_ignored_is_not_waited_for(tmp_path: Path) -> None:
    made(tmp_path, {"a": ""})
    os.mkfifo(tmp_path / ".gitignore")
    assert paths(scan(tmp_path, ENOUGH)) == ["a"]


def test_what_is_ignored_in_too_many_words_is_told_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("a" * 1_000_001)
    with pytest.raises(GpufleetError, match=r"1,000,000 bytes") as caught:
        scan(tmp_path, ENOUGH)
    assert "Shorten it" in caught.value.next_step
