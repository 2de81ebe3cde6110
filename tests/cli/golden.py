"""Texts that a person has looked at. `GOLDEN=1 pytest tests/cli` writes them anew; commit only what you understand."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """Compare with the text of that name, or write it when GOLDEN is set."""
    file = FOLDER / f"{name}.txt"
    if os.environ.get("GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"there is no {file.name} yet: look at the screen, then write it with GOLDEN=1"
    assert text == file.read_text(), f"{file.name} differs; if the new screen is right, write it with GOLDEN=1"
