"""`upgrade --check`: what it finds in a wheel, what stands in the way, and what it says to what is no wheel."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from gpufleet.v1 import scheduler_pb2, sessions_pb2

from cli.admin.upgrade_check import VersionContents, compare, in_lines, work_together
from tests.cli import cluster
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

ROOT = Path(__file__).resolve().parents[3]
MIGRATIONS = "scheduler/store/migrations/versions"


@pytest.fixture(autouse=True)
def _versions(fake: FakeScheduler) -> None:
    fake.nodes = cluster.nodes()
    for node in fake.nodes:
        node.info.agent_version = "0.1.0"
    fake.server = scheduler_pb2.GetServerInfoResponse(version="0.1.0", user="ada", store_kind="sqlite")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The next version: a change of the database more."""
    file = tmp_path / "gpufleet-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted((ROOT / "gpufleet").rglob("*.py")):
            archive.write(path, path.relative_to(ROOT))
        for path in sorted((ROOT / MIGRATIONS).glob("*.py")):
            archive.write(path, Path("gpufleet") / path.relative_to(ROOT))
        archive.writestr(f"gpufleet/{MIGRATIONS}/9999_next.py", "")
    return file


def test_the_installed_version_changes_nothing(gpuctl: Gpuctl) -> None:
    shown = gpuctl("upgrade", "--check")
    assert shown.code == 0
    assert shown.text == "from 0.1.0 to 0.1.0\ndatabase  as it is\nsettings  as they are\n"


def test_a_wheel_is_read_and_not_installed(gpuctl: Gpuctl, wheel: Path) -> None:
    shown = gpuctl("upgrade", "--check", "--to", str(wheel))
    assert shown.code == 0
    assert "from 0.1.0 to 0.2.0" in shown.text
    assert "changed when the scheduler starts: 9999_next" in shown.text
    assert "gpuctl scheduler backup FILE" in shown.text
    found = json.loads(gpuctl("upgrade", "--check", "--to", str(wheel), "-o", "json").out)
    assert found["migrations"] == ["9999_next"] and found["in_the_way"] == []


def test_an_agent_of_too_old_a_version_is_in_the_way(gpuctl: Gpuctl, fake: FakeScheduler, wheel: Path) -> None:
    fake.nodes[0].info.agent_version = "0.0.9"
    shown = gpuctl("upgrade", "--check", "--to", str(wheel))
    assert shown.code == 1
    assert f"IN THE WAY  node {fake.nodes[0].name} has version 0.0.9" in shown.text


def test_every_program_that_is_to_be_upgraded_is_named(gpuctl: Gpuctl, fake: FakeScheduler, wheel: Path) -> None:
    fake.server.gateways.add(gateway="edge", gateway_version="0.2.0")
    fake.server.gateways.add(address="10.0.0.9")
    model = sessions_pb2.Model(name="canvas")
    model.workers.add(worker_start="4f2a9c01d3", job_id=12)
    model.workers.add(job_id=13)
    fake.models = [model]
    found = json.loads(gpuctl("upgrade", "--check", "--to", str(wheel), "-o", "json").out)
    nodes = {f"node {node.name}": "0.1.0" for node in fake.nodes}
    others = {"gateway at 10.0.0.9": "0.1.0", "worker 4f2a9c01 of canvas (job 12)": "0.1.0"}
    assert found["to_upgrade"] == {"the scheduler": "0.1.0"} | nodes | others
    shown = gpuctl("upgrade", "--check", "--to", str(wheel)).text
    assert "programs  to be upgraded: the scheduler (0.1.0), node " in shown
    model.workers[0].worker_version = "0.0.1"
    shown = gpuctl("upgrade", "--check", "--to", str(wheel)).text
    assert "IN THE WAY  worker 4f2a9c01 of canvas (job 12) has version 0.0.1" in shown


def test_settings_that_come_and_go_are_named() -> None:
    installed = VersionContents("0.1.0", ("0004_a",), {"scheduler": ["port", "old"], "agent": ["cpus"]})
    new = VersionContents("0.2.0", ("0004_a",), {"scheduler": ["port"], "agent": ["cpus", "young"]})
    found = compare("0.1.0", {}, installed, new)
    assert "settings  new: agent: young; gone: scheduler: old" in in_lines(found)


def test_a_version_that_lacks_a_change_of_the_database_is_in_the_way() -> None:
    installed, older = VersionContents("0.2.0", ("0004_a", "0005_b"), {}), VersionContents("0.1.0", ("0004_a",), {})
    (sentence,) = compare("0.2.0", {}, installed, older).in_the_way
    assert "does not know every change of the database" in sentence


@pytest.mark.parametrize(
    "one, other, do",
    [
        ("0.1.0", "0.2.5", True),
        ("0.2.5", "0.1.0", True),
        ("0.1.0", "0.3.0", False),
        ("0.9.0", "1.0.0", False),
        ("unknown", "0.1.0", False),
        ("unknown", "unknown", True),
    ],
)
def test_versions_work_together_within_one_minor_version(one: str, other: str, do: bool) -> None:
    assert work_together(one, other) is do


def test_what_is_no_wheel_is_refused(gpuctl: Gpuctl, tmp_path: Path) -> None:
    assert "is not named as a wheel" in gpuctl("upgrade", "--check", "--to", "some.zip").err
    named = tmp_path / "gpufleet-0.2.0-py3-none-any.whl"
    assert gpuctl("upgrade", "--check", "--to", str(named)).code == 3
    named.write_bytes(b"nothing")
    assert gpuctl("upgrade", "--check", "--to", str(named)).code == 2
    with zipfile.ZipFile(named, "w") as archive:
        archive.writestr("gpufleet/__init__.py", "raise SystemError('broken')")
    refused = gpuctl("upgrade", "--check", "--to", str(named))
    assert refused.code == 2 and "broken" in refused.err
    assert gpuctl("upgrade").code == 2
