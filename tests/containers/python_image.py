"""An image with this interpreter, made without a network: each of its parts lies where it lies here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.containers.engine import EngineOfTests, import_image

SYSTEM = ("sh", "mkdir", "cat", "sleep", "id", "pwd", "ls", "rm", "echo", "chown", "chmod")
LIBRARY_LINE = re.compile(r"(/\S+) \(0x")
LEFT_OUT = shutil.ignore_patterns(
    *(
        "site-packages",
        "test",
        "tests",
        "idlelib",
        "ensurepip",
        "lib2to3",
        "tkinter",
        "turtledemo",
        "*.a",
        "*.opt-?.pyc",
    )
)


def import_python_image(
    engine: EngineOfTests,
    name: str,
    programs: Mapping[str, str],
    *,
    fill: Callable[[Path], None] = lambda files: None,
    environment: Sequence[str] = (),
) -> None:
    """Give the engine an image with `python`, a shell, and these programs in PATH, by name: scripts of the shell.

    `fill` puts more into the folder that becomes the image, `environment` are its variables beside PATH.
    """
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
    fill(files)
    for needed in _libraries(files, program):
        _copy(files, needed)
    import_image(engine, files, name, "ENV=PATH=/usr/local/bin:/bin", *(f"ENV={each}" for each in environment))
    shutil.rmtree(files)


def import_base_image(engine: EngineOfTests, name: str, extras: Iterable[str]) -> None:
    """One that stands for that of the Python project, where pip finds gpufleet's dependencies installed already.

    They are those of the environment that runs the tests, so that nothing is fetched.
    """

    def fill(files: Path) -> None:
        program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        (files / "usr/local/pyvenv.cfg").write_text(f"home = {program.parent}\n")
        (files / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (files / "etc/group").write_text("root:x:0:\n")
        packages = files / "usr/local/lib" / Path(sysconfig.get_path("stdlib")).name / "site-packages"
        for each in _wanted("gpufleet", frozenset(extras)) - {"gpufleet"} | {"pip"}:
            _copy_distribution(packages, each)

    pip = {"pip": 'exec python -m pip "$@"\n'}
    import_python_image(engine, name, pip, fill=fill, environment=("PIP_NO_INDEX=1", "PIP_NO_DEPS=1"))


def _wanted(name: str, extras: frozenset[str], known: dict[str, frozenset[str]] | None = None) -> set[str]:
    """What that needs which is installed here, itself among it."""
    known = {} if known is None else known
    extras |= known.get(name, frozenset({""}))
    if known.get(name) == extras:
        return set(known)
    known[name] = extras
    for line in metadata.requires(name) or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
            with suppress(metadata.PackageNotFoundError):
                metadata.distribution(needed.name)
                _wanted(canonicalize_name(needed.name), frozenset(needed.extras), known)
    return set(known)


def _copy_distribution(packages: Path, name: str) -> None:
    found = metadata.distribution(name)
    for file in found.files or ():
        source = Path(str(found.locate_file(file)))
        if ".." not in file.parts and source.exists():
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, packages / file)  # with its times: what was compiled of it stays good


def _libraries(files: Path, program: Path) -> set[Path]:
    """What the program and every extension module in the image are linked with, outside of it."""
    linked = [program, *files.rglob("*.so")]
    said = subprocess.run(["ldd", *map(str, linked)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in LIBRARY_LINE.findall(said) if not Path(path).is_relative_to(files)}


def _copy(files: Path, source: Path, target: Path | None = None) -> None:
    place = files / (target or source).relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)
