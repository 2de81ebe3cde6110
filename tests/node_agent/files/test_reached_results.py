"""What somebody else reaches of a running job's folder: plain files that its --download chooses, by no detour more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.errors import Reason
from node_agent.files.reached_folder import NotReached, ReachedFile, ResultsAlone, listed

NOTHING = "is no file that the job's --download chooses"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with chosen files, others, and every way from the one to the other that a name may take."""
    root = tmp_path / "folder"
    for path in ("out/model.pt", "out/deep/a", "out/a.tmp", "secret/key", "code.py", "only/secrets/b"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (tmp_path / "outside").write_text("outside")
    (root / "out/link").symlink_to("../secret/key")
    (root / "out/away").symlink_to(tmp_path / "outside")
    (root / "out/folder").symlink_to("../secret")
    (root / "linked").symlink_to("out")
    (root / "out/empty").mkdir()
    os.mkfifo(root / "out/pipe")
    return root


@pytest.fixture
def top(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def alone(*lines: str, owner: int | None = None) -> ResultsAlone:
    return ResultsAlone(lines or ("out/**", "!*.tmp"), os.geteuid() if owner is None else owner)


def test_nothing_but_chosen_files_is_listed_and_of_other_names_nothing_is_said(top: int) -> None:
    left_out: list[str] = []
    assert [each.path for each in listed(top, "", left_out, alone())] == ["out/deep/a", "out/model.pt"]
    assert [each.partition(" ")[0] for each in left_out] == ["'out/away'", "'out/folder'", "'out/link'", "'out/pipe'"]
    assert [each.path for each in listed(top, "out/deep", [], alone())] == ["out/deep/a"]
    assert [each.path for each in listed(top, "out/model.pt/", [], alone())] == ["out/model.pt"]
    assert list(listed(top, "", [], alone("nothing"))) == []


@pytest.mark.parametrize(
    "path",
    [
        "code.py",
        "secret",
        "secret/key",
        "absent",
        "absent/b",
        "out/a.tmp",
        "out/empty",
        "only",
        "code.py/x",
        "out/link",
    ],
)
def test_of_a_path_without_chosen_files_the_same_is_said_whether_it_is_there_or_not(top: int, path: str) -> None:
    for reach in (lambda: list(listed(top, path, [], alone())), lambda: ReachedFile(top, path, alone())):
        with pytest.raises(NotReached) as refused:
            reach()
        assert (refused.value.reason, str(refused.value)) == (Reason.FILE_NOT_FOUND, f"{path!a} {NOTHING}")


@pytest.mark.parametrize(
    "path",
    ["linked/model.pt", "out/../secret/key", "../outside", "out/folder/key", "out/away", "out//../code.py", "out/pipe"],
)
def test_no_link_no_dots_and_no_folder_behind_a_link_lead_to_another_file(top: int, path: str) -> None:
    for lines in (("out/**",), ("**",), ("linked/**", "*.pt", "key")):
        with pytest.raises(NotReached):
            ReachedFile(top, path, alone(*lines))
        with pytest.raises(NotReached):
            assert list(listed(top, path, [], alone(*lines))) == []


def test_a_chosen_file_is_read_and_one_of_another_account_is_not(top: int) -> None:
    file = ReachedFile(top, "out/model.pt", alone())
    assert file.read(100) == b"out/model.pt"
    file.close()
    with pytest.raises(NotReached) as refused:
        ReachedFile(top, "out/model.pt", alone(owner=os.geteuid() + 1))
    assert NOTHING in str(refused.value)
    assert not list(listed(top, "", [], alone(owner=os.geteuid() + 1)))
