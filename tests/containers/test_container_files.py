"""The container files are built and run as docs/install.md says, by an engine, without a network."""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.containers.engine import driver_for_many_files, running_engine, skip_without_podman
from tests.containers.python_image import import_base_image
from tests.containers.shell import PodmanShell, podman_shell
from tests.packaging.installing import build_wheel, copy_tree
from tests.packaging.source_tree import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1500)]

DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "install.md"
LINE = re.compile(r"^box# (.+)$", re.MULTILINE)
BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
EXTRAS = re.compile(r"^ARG EXTRAS=(\S+)$", re.MULTILINE)
NEEDED = ("tls", "secrets", "gateway", "node", "uvloop")
"""Extras without whose packages the page cannot be typed; the images of this test lack the others'."""

ADMIN = "podman exec scheduler gpuctl --token-file /var/lib/gpufleet/admin.token"
HELLO = f"{ADMIN} run --cwd / -- echo hello"
STOP = "podman stop --time 120 agent gateway scheduler"
ASK = "python -P -m gpufleet.net.health_check"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PodmanShell]:
    """One in a checkout with a wheel in dist/, whose engine has an image for that of the Python project."""
    skip_without_podman()
    copy_tree(tmp_path)
    build_wheel(tmp_path, tmp_path / "dist")
    (base,) = {found for file in DEPLOY.glob("*.Containerfile") for found in BASE.findall(file.read_text())}
    with ExitStack() as stack:
        # Podman takes no folder whose name is long.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp")))
        engine, _ = stack.enter_context(running_engine(folder, driver=driver_for_many_files(folder)))
        import_base_image(engine, base, NEEDED)
        yield stack.enter_context(podman_shell(engine, tmp_path))


def test_the_page_can_be_typed_and_leaves_nothing(shell: PodmanShell) -> None:
    lines = LINE.findall(PAGE.read_text())
    assert {HELLO, STOP} <= set(lines)
    for line in lines:
        said = shell.type(line)
        if line == HELLO:
            assert "hello" in said.splitlines()
            what_holds_while_they_run(shell)
        if line == STOP:
            ended = "podman inspect --format '{{.State.ExitCode}}' agent gateway scheduler"
            assert shell.type(ended).split() == ["0", "0", "0"]
    assert shell.type("podman ps --all --quiet; podman volume ls --quiet; podman secret ls --quiet") == ""
    shell.type("podman build --format docker --file deploy/worker.Containerfile --tag gpufleet-worker .")
    assert "Serve live sessions with a model" in shell.type("podman run --rm --network host gpufleet-worker --help")


def what_holds_while_they_run(shell: PodmanShell) -> None:
    """Who is what, who may write what, and what says that it is not well."""
    for name in ("scheduler", "gateway"):
        status = shell.type(f"podman exec {name} cat /proc/1/status")
        assert re.search(r"^Uid:\s+10001\s", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        assert "Read-only file system" in shell.type(f"podman exec --user 0 {name} mkdir /new", code=1)
    told = shell.type(f"{ADMIN} run --cwd / -- cat /proc/self/status")
    assert re.search(r"^Uid:\s+1900000000\s", told, re.MULTILINE), told
    assert re.search(r"^CapEff:\s+0+$", told, re.MULTILINE), told
    assert "does not serve" in shell.type(f"podman exec gateway {ASK} http://127.0.0.1:7860/nothing", code=1)
    assert "does not serve" in shell.type(f"podman exec gateway {ASK} 127.0.0.1:7860", code=1)
    for image in ("scheduler", "gateway", "agent"):
        history = shell.type(f"podman history --no-trunc gpufleet-{image}")
        assert "gf_" not in history and "admin.token" not in history


def test_each_program_that_is_installed_has_a_container_file_whose_extras_there_are() -> None:
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    files = {file.name.partition(".")[0]: file.read_text() for file in DEPLOY.glob("*.Containerfile")}
    assert files.keys() == {"scheduler", "gateway", "agent", "worker"}
    for text in files.values():
        (extras,) = EXTRAS.findall(text)
        assert set(extras.split(",")) <= known
        assert "USER " in text and "ENTRYPOINT [" in text and "org.opencontainers.image.title" in text
