"""Folders whose jobs begin in an environment, made of wheels that lie in them: no network is needed."""

from __future__ import annotations

import zipfile
from pathlib import Path

REQUIREMENTS = "--no-index\n--find-links wheels\ngreeting==1.0\n"
PROGRAM = "import greeting, os, sys; print(greeting.WORDS, sys.prefix == os.environ['VIRTUAL_ENV'])\n"


def wheel(folder: Path, words: str, name: str = "greeting", version: str = "1.0") -> Path:
    """A wheel of one module, which says `words`."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}.py"), f"WORDS = {words!r}\n")
        archive.writestr(
            zipfile.ZipInfo(f"{about}/METADATA"), f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            zipfile.ZipInfo(f"{about}/WHEEL"), "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            zipfile.ZipInfo(f"{about}/RECORD"), f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n"
        )
    return path


def project(folder: Path, words: str) -> Path:
    """A folder with a requirements file, the wheel that it needs, and a program that uses it."""
    wheel(folder / "wheels", words)
    (folder / "requirements.txt").write_text(REQUIREMENTS)
    (folder / "train.py").write_text(PROGRAM)
    return folder
