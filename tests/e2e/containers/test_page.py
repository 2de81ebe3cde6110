"""docs/containers.md as it is typed: every line of it, in its order, with images of its names."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.containers.engine import EngineOfTests, import_image
from tests.e2e.fleet import Fleet
from tests.e2e.output.test_terminals import environment, gpuctl, job_of

pytestmark = pytest.mark.nightly

PAGE = (Path(__file__).parents[3] / "docs/containers.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
LINES = [line for language, block in BLOCKS if not language for line in block.splitlines()]
PROGRAMS = {"python": 'echo "python $1 in $PWD"', "serve": "echo served"}
"""What the images of the page have beside a shell, as scripts of it."""


def import_images(engine: EngineOfTests) -> None:
    """Give the engine an image of each name that is typed, so that nothing is pulled."""
    names = {shlex.split(line)[shlex.split(line).index("--image") + 1] for line in LINES if "--image" in line.split()}
    busybox = shutil.which("busybox")
    assert busybox is not None
    for name in names:
        files = engine.folder / "image-of-page"
        for folder in ("bin", "etc", "tmp", "work"):
            (files / folder).mkdir(parents=True)
        (files / "tmp").chmod(0o1777)
        shutil.copy(busybox, files / "bin" / "busybox")
        for applet in ("sh", "cat"):
            (files / "bin" / applet).symlink_to("busybox")
        for program, script in PROGRAMS.items():
            file = files / ("work" if program == "serve" else "bin") / program
            file.write_text(f"#!/bin/sh\n{script}\n")
            file.chmod(0o755)
        (files / "etc" / "os-release").write_text(f"NAME={name}\n")
        import_image(
            engine,
            files,
            name if "." in name.partition("/")[0] else f"docker.io/library/{name}",
            "ENV=PATH=/bin",
            "WORKDIR=/work",
        )
        shutil.rmtree(files)


def said(fleet: Fleet, folder: Path, line: str, data: bytes = b"") -> str:
    done = gpuctl(fleet, *shlex.split(line)[1:], input=data, cwd=folder)
    assert done.returncode == 0, f"{line}: {done.stderr.decode()}"
    return done.stdout.decode()


def shell(fleet: Fleet, line: str) -> str:
    with closing(Terminal(*shlex.split(line)[1:], environment=environment(fleet))) as terminal:
        job_of(terminal)  # keys go to it from now on
        terminal.type("cat /etc/os-release\n")
        terminal.wait_for("NAME=")
        terminal.type("exit\n")
        assert terminal.end() == 0
        return terminal.shown.decode()


async def test_every_line_of_the_page_does_what_it_says(
    container_fleet: Fleet, engine: EngineOfTests, tmp_path: Path
) -> None:
    await asyncio.to_thread(import_images, engine)
    (tmp_path / "train.py").write_text("print(1)\n")
    typed = iter(LINES)

    async def types(data: bytes = b"") -> str:
        return await asyncio.to_thread(said, container_fleet, tmp_path, next(typed), data)

    assert await types() == "NAME=ubuntu:24.04\n"
    assert await types() == "python train.py in /run/gpufleet/files\n"
    assert "NAME=ubuntu:24.04" in await asyncio.to_thread(shell, container_fleet, next(typed))
    await types(b"ann:password\n")
    assert await types() == "served\n"
    assert next(typed, None) is None, "a line of the page is not typed"
