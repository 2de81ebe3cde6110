"""An image with this interpreter, made without a network: each of its parts lies where it lies here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tests.containers.engine import EngineOfTests, import_image

SYSTEM = ("sh", "mkdir", "cat", "sleep", "id", "pwd", "ls", "rm")
LIBRARY_LINE = re.compile(r"(/\S+) \(0x")
LEFT_OUT = shutil.ignore_patterns("site-packages", "__pycache__", "test", "tests", "idlelib", "ensurepip", "*.a")


def import_python_image(engine: EngineOfTests, name: str, programs: Mapping[str, str]) -> None:
    """Give the engine an image with `python`, a shell, and these programs in PATH, by name: scripts of the shell."""
    files = engine.folder / "python-image"
    busybox = shutil.which("busybox")
    assert busybox is not None
    _copy(files, Path(busybox), Path("/bin/busybox"))
    for each in SYSTEM:
        (files / "bin" / each).symlink_to("busybox")
    for folder in ("tmp", "etc", "usr/local/bin"):
        (files / folder).mkdir(parents=True)
    (files / "tmp").chmod(0o1777)
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    _copy(files, program)
    for called in ("python", "python3"):
        (files / "usr/local/bin" / called).symlink_to(program)
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, files / library.relative_to("/"), ignore=LEFT_OUT, symlinks=True, dirs_exist_ok=True)
    for called, script in programs.items():
        (files / "bin" / called).write_text(f"#!/bin/sh\n{script}")
        (files / "bin" / called).chmod(0o755)
    for needed in _libraries(files, program):
        _copy(files, needed)
    import_image(engine, files, name, "ENV=PATH=/usr/local/bin:/bin")
    shutil.rmtree(files)


def _libraries(files: Path, program: Path) -> set[Path]:
    """What the program and every extension module in the image are linked with, outside of it."""
    linked = [program, *files.rglob("*.so")]
    said = subprocess.run(["ldd", *map(str, linked)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in LIBRARY_LINE.findall(said) if not Path(path).is_relative_to(files)}


def _copy(files: Path, source: Path, target: Path | None = None) -> None:
    place = files / (target or source).relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)
