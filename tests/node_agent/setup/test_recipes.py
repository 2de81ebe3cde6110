"""What the key of an environment is made of, and what its builder sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.commands import LaunchAttempt
from node_agent.core.expectations import Expectations
from node_agent.core.launch import EnvironmentTool, InputFile, InputFolder, JobEnvironment, Process
from node_agent.setup import tools
from node_agent.setup.recipes import NotMade, recipe_of
from node_agent.setup.requirements import needs_its_folder

DIGESTS = ("a" * 64, "b" * 64)


def launch(tool: EnvironmentTool, what: str = "", user: str = "ann", folder: str = DIGESTS[0]) -> LaunchAttempt:
    return LaunchAttempt(
        key=RankKey(JobId(1), 1, 0),
        process=Process(argv=("true",), env={}, cwd=""),
        expectations=Expectations(device_uuids=(), memory_free_bytes=0, allow_busy=False),
        user=user,
        folder=InputFolder(digest=folder, size_bytes=1, entry_count=1, content_bytes=1),
        environment=JobEnvironment(tool=tool, what=what),
    )


def key_of(command: LaunchAttempt, files: Path, *, is_shared: bool = True) -> str:
    return recipe_of(command, files, is_shared=is_shared).key


REQUIREMENTS = launch(EnvironmentTool.REQUIREMENTS, "requirements.txt")


def test_the_same_requirements_are_the_same_for_all_whatever_else_is_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==2.0\n")
    (tmp_path / "dev.txt").write_text("numpy==2.0\n")
    first = recipe_of(REQUIREMENTS, tmp_path, is_shared=True)
    assert first.files == {"requirements.txt": b"numpy==2.0\n"} and not first.has_folder and not first.user
    others = (
        replace(REQUIREMENTS, user="bob"),
        replace(REQUIREMENTS, folder=replace(REQUIREMENTS.folder, digest=DIGESTS[1])),  # type: ignore[type-var]
        launch(EnvironmentTool.REQUIREMENTS, "dev.txt"),
    )
    assert {key_of(each, tmp_path) for each in others} == {first.key}
    (tmp_path / "requirements.txt").write_text("numpy==2.0 \n")
    assert key_of(REQUIREMENTS, tmp_path) != first.key


def test_what_takes_something_of_the_folder_is_made_of_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("--find-links wheels\nnumpy\n")
    first = recipe_of(REQUIREMENTS, tmp_path, is_shared=True)
    assert first.has_folder
    changed = (
        launch(EnvironmentTool.REQUIREMENTS, "requirements.txt", folder=DIGESTS[1]),
        replace(REQUIREMENTS, files=(InputFile(path="w.whl", digest=DIGESTS[0], size_bytes=1),)),
    )
    assert len({first.key, *(key_of(each, tmp_path) for each in changed)}) == 3
    assert key_of(replace(REQUIREMENTS, user="bob"), tmp_path) == first.key


def test_a_line_is_its_users_alone_and_so_is_all_where_users_are_not_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    line = launch(EnvironmentTool.SETUP, "uv sync")
    assert key_of(line, tmp_path) != key_of(replace(line, user="bob"), tmp_path)
    assert key_of(line, tmp_path) != key_of(launch(EnvironmentTool.SETUP, "uv sync --dev"), tmp_path)
    assert key_of(line, tmp_path) != key_of(launch(EnvironmentTool.SETUP, "uv sync", folder=DIGESTS[1]), tmp_path)
    alone = key_of(REQUIREMENTS, tmp_path, is_shared=False)
    assert alone != key_of(replace(REQUIREMENTS, user="bob"), tmp_path, is_shared=False)
    assert alone != key_of(REQUIREMENTS, tmp_path)


def test_another_interpreter_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    found = set()
    for version in ("3.11", "3.12"):
        monkeypatch.setattr(tools, "interpreter", lambda version=version: tools.Tool("/usr/bin/python3", version))
        found.add(key_of(REQUIREMENTS, tmp_path))
    assert len(found) == 2


@pytest.mark.parametrize("tool", [EnvironmentTool.UV, EnvironmentTool.CONDA])
def test_a_tool_that_the_node_lacks_is_named(
    tool: EnvironmentTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, tool.value, lambda: None)
    with pytest.raises(NotMade, match=f"this node has no .*{tool.value}"):
        recipe_of(launch(tool, "environment.yml"), tmp_path, is_shared=True)


def test_a_file_behind_a_link_that_leads_out_is_not_read(tmp_path: Path) -> None:
    (folder := tmp_path / "files").mkdir()
    (tmp_path / "secret").write_text("secret\n")
    (folder / "requirements.txt").symlink_to(tmp_path / "secret")
    for name in ("requirements.txt", "../secret"):
        with pytest.raises(NotMade, match="is not among the job's files"):
            recipe_of(launch(EnvironmentTool.REQUIREMENTS, name), folder, is_shared=True)


@pytest.mark.parametrize(
    "line",
    [
        *("-r other.txt", "-c limits.txt", "-e .", "--editable=./pkg", ".", "./pkg", "../x", "/opt/x.whl", "pkg/x"),
        *("x-1.0-py3-none-any.whl", "x.tar.gz", "x @ file:///opt/x.whl", "file:///opt/x", "--find-links wheels"),
        *("-f wheels", "-fwheels", "--find-links=file:///opt", "-i ./simple", "--some-new-option x", "git+file:///x"),
        "numpy\n--find-links \\\n wheels",
    ],
)
def test_a_line_that_names_something_of_the_machine_needs_the_folder(line: str) -> None:
    assert needs_its_folder(f"torch\n{line}\n")


def test_usual_lines_need_no_folder() -> None:
    assert not needs_its_folder(
        "# wheels/ are elsewhere\n--index-url https://pypi.invalid/simple\n--extra-index-url=https://x.invalid/a/b\n"
        "--no-index\n-f https://x.invalid/links.html\n--only-binary :all:\n"
        "numpy==2.0 \\\n    --hash=sha256:ab/cd\n"
        "torch[cuda]>=2,<3; python_version > '3.8'  # the newest\nuvicorn~=0.30\n"
        "pkg @ https://x.invalid/pkg-1.0.tar.gz\ngit+https://x.invalid/a.git@main#egg=a\n\n"
    )


def test_the_scheduler_is_told_of_the_tools_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "PATH_DEFAULT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.here() == ("pip",)
    for name in ("uv", "mamba"):
        (tmp_path / name).touch(0o755)
    assert tools.here() == ("pip", "uv", "conda")
