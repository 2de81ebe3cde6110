"""`submit --shared-root`: what every node can read there is named and not uploaded; all else is uploaded, and told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from gpufleet.v1 import files_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.shared_root import MARKER, is_probe
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

DATA, OWN = b"in the folder\n", b"elsewhere\n"
LINE = ("submit", "--shared-root", "mnt", "--file", "team/data", "--file", "own.txt", "--", "true")


@pytest.fixture(autouse=True)
def team() -> Path:
    """A folder with a file, which people here know by a link, too."""
    folder = Path("team")
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.txt").write_bytes(DATA)
    Path("mnt").symlink_to(folder)
    Path("own.txt").write_bytes(OWN)
    return folder


def seen(node: str, **said: object) -> files_pb2.FilesOnNode:
    return files_pb2.FilesOnNode(node=node, is_same_root=True, **said)  # type: ignore[arg-type]


def test_what_every_node_reads_there_is_named_and_only_the_rest_is_uploaded(
    fake: FakeScheduler, gpuctl: Gpuctl, team: Path
) -> None:
    fake.files_on_nodes = [seen("n1"), files_pb2.FilesOnNode(node="n2", is_lost=True, root_problem="lost")]
    while_asked: list[bytes] = []
    fake.before["CheckFiles"] = lambda asked: while_asked.append((team / asked.probe).read_bytes())
    done = gpuctl(*LINE)
    assert (done.code, done.err) == (0, "")
    (asked,) = fake.asked("CheckFiles")
    assert (asked.root, list(asked.paths)) == ((team / MARKER).read_text().strip(), ["data/a.txt"])
    assert is_probe(asked.probe)
    assert [hashlib.sha256(each).hexdigest() for each in while_asked] == [asked.digest]
    assert sorted(each.name for each in team.iterdir()) == [MARKER, "data"], "the probe is gone"
    first, second = fake.asked("Submit")[0].specs[0].files
    assert (first.path, first.shared_root, first.shared_path) == ("data/a.txt", asked.root, "data/a.txt")
    assert (second.path, second.shared_root, second.shared_path) == ("own.txt", "", "")
    assert list(fake.blobs.values()) == [OWN]


@pytest.mark.parametrize(
    ("nodes", "said", "is_named"),
    [
        ([], "no node sees mnt: the files are uploaded", False),
        ([files_pb2.FilesOnNode(node="n1", root_problem="no root")], "no node sees mnt: the files are uploaded", False),
        ([seen("n1"), files_pb2.FilesOnNode(node="n2", root_problem="another")], "(n2: another)", True),
        ([seen("n1"), seen("n2", unreadable=[0], unreadable_reason="is shut")], "as data/a.txt is shut", True),
        ([seen("n1", unreadable=[0], unreadable_reason="is shut")], "1 file uploaded, as data/a.txt is shut", False),
    ],
)
def test_where_one_node_cannot_read_a_file_it_is_uploaded_and_that_is_told(
    fake: FakeScheduler, gpuctl: Gpuctl, nodes: list[files_pb2.FilesOnNode], said: str, is_named: bool
) -> None:
    fake.files_on_nodes = nodes
    done = gpuctl(*LINE)
    assert done.code == 0 and said in done.err
    assert bool(fake.asked("Submit")[0].specs[0].files[0].shared_path) is is_named
    assert sorted(fake.blobs.values()) == [OWN, DATA]


def test_the_same_bytes_elsewhere_are_uploaded(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.files_on_nodes = [seen("n1")]
    Path("own.txt").write_bytes(DATA)
    assert gpuctl(*LINE).code == 0
    assert list(fake.blobs.values()) == [DATA]


def test_what_cannot_be_shared_is_uploaded_and_why_is_told(fake: FakeScheduler, gpuctl: Gpuctl, team: Path) -> None:
    (team / MARKER).write_text("no id")
    done = gpuctl(*LINE)
    assert done.code == 0 and "does not hold the id of a shared folder" in done.err
    assert not fake.asked("CheckFiles")
    (team / MARKER).unlink()
    fake.faults["CheckFiles"].append(GpufleetError(Reason.METHOD_UNKNOWN, "no such call"))
    done = gpuctl(*LINE)
    assert done.code == 0 and "knows no shared folders" in done.err
    done = gpuctl("submit", "--shared-root", "mnt", "--file", "own.txt", "--", "true")
    assert done.code == 0 and "none of the files lies in mnt" in done.err
    assert len(fake.blobs) == 2


def test_a_folder_that_is_none_is_refused_and_a_dry_run_writes_nothing(
    fake: FakeScheduler, gpuctl: Gpuctl, team: Path
) -> None:
    done = gpuctl("submit", "--shared-root", "none", "--file", "own.txt", "--", "true")
    assert done.code == 3 and "--shared-root: there is no folder none" in done.err
    assert gpuctl("submit", "--dry-run", *LINE[1:]).code == 0
    assert [each.name for each in team.iterdir()] == ["data"] and not fake.asked("CheckFiles")


def test_a_job_that_is_submitted_again_names_the_folder_by_its_id(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    text = f"sha256:{'cd' * 32}:5=in/a.txt//{'ab' * 16}/data/a.txt"
    assert gpuctl("submit", "--file", text, "--", "true").code == 0
    (file,) = fake.asked("Submit")[0].specs[0].files
    assert (file.path, file.shared_root, file.shared_path) == ("in/a.txt", "ab" * 16, "data/a.txt")
    for wrong in (f"{text}/../b", text.replace("ab" * 16, "ab"), f"sha256:{'cd' * 32}:5=in/a.txt//"):
        assert gpuctl("submit", "--file", wrong, "--", "true").code == 2
