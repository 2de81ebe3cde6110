"""The trial container: its program, its image, and what is made of an engine that starts nothing."""

from __future__ import annotations

import io
import os
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from node_agent.containers import containers as module
from node_agent.containers.containers import Containers, ContainerSettings
from node_agent.containers.engine import EngineFacts
from node_agent.containers.engine_probe import PROGRAM, image_of, problem_of_trial, program_of

LABELS = {"agent": "a"}


class FakeEngine:
    """An engine that takes an image, and starts what it is told to or not."""

    def __init__(self, trouble: str = "", code: int = 0, answer: str = '{"status":"sha256:1"}\n') -> None:
        self.trouble, self.code, self.answer = trouble, code, answer
        self.images: list[str] = []
        self.containers: list[dict[str, Any]] = []

    def import_image_from_data(self, data: bytes, **names: str) -> str:
        self.images.append("sha256:1")
        return self.answer

    def create_container(self, image: str, **settings: Any) -> dict[str, str]:
        self.containers.append(settings)
        return {"Id": "c"}

    def start(self, container: str) -> None:
        if self.trouble:
            raise docker.errors.APIError(self.trouble)

    def wait(self, container: str, timeout: int) -> dict[str, int]:
        return {"StatusCode": self.code}

    def remove_container(self, container: str, **how: bool) -> None:
        self.containers.clear()

    def remove_image(self, image: str, **how: bool) -> None:
        self.images.remove(image)


def test_the_program_runs_on_this_machine_and_exits_with_0(tmp_path: Path) -> None:
    program = program_of(platform.machine())
    if program is None:
        pytest.skip(f"no program is known for {platform.machine()}")
    path = tmp_path / "trial"
    path.write_bytes(program)
    path.chmod(0o700)
    assert subprocess.run([path], env={}).returncode == 0


def test_the_image_holds_the_program_alone() -> None:
    for machine in ("x86_64", "aarch64"):
        program = program_of(machine)
        assert program is not None and len(program) < 256
        with tarfile.open(fileobj=io.BytesIO(image_of(program))) as tar:
            (about,) = tar.getmembers()
            assert (f"/{about.name}", about.mode & os.X_OK) == (PROGRAM, os.X_OK)


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        (FakeEngine(), ""),
        (FakeEngine(trouble="crun: mount proc: Operation not permitted"), "it starts no containers: crun: mount proc"),
        (FakeEngine(code=139), "it starts no containers: one that exits with 0 exited with 139"),
    ],
)
def test_what_an_engine_says_is_told_and_nothing_of_the_trial_is_left(engine: FakeEngine, problem: str) -> None:
    found = problem_of_trial(engine, LABELS, lambda: "x86_64")
    assert found.startswith(problem) and bool(found) == bool(problem)
    assert not engine.images and not engine.containers


def test_a_machine_without_a_program_of_its_own_is_not_tried() -> None:
    engine = FakeEngine(trouble="never asked")
    assert problem_of_trial(engine, LABELS, lambda: "riscv64") == ""


def test_an_engine_that_starts_nothing_is_none_until_it_starts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = Containers(ContainerSettings, tmp_path, "a", list, lambda: None, lambda *told: None)
    found, problems = EngineFacts(socket="/s", name="podman 4"), ["it starts no containers: no space", ""]
    monkeypatch.setattr(containers._engine, "look", lambda: found)
    monkeypatch.setattr(containers._engine, "client", lambda socket: None)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(module, "problem_of_trial", lambda client, labels: problems.pop(0))
    broken = containers._look()
    assert (broken.name, broken.socket) == ("", "/s")
    assert broken.problem == "podman 4: it starts no containers: no space" and broken.fix
    assert containers._look() == found
    assert containers._look() == found and not problems, "it is tried once more only where another engine is there"
