"""What one version stores every later one reads: the format is pinned, one file for each FORMAT that ever was.

`GOLDEN=1 .venv/bin/python -m pytest tests/store/test_stored_format.py` writes the file of the present format anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scheduler.store.codec import FORMAT, Codec
from scheduler.store.decoding import Upgrade
from tests.store.stored_format import CLASSES, Line, lines, lost, parse

FOLDER = Path(__file__).parent / "golden"
PRESENT = FOLDER / f"format_{FORMAT}.txt"
REWRITE = "GOLDEN=1 .venv/bin/python -m pytest tests/store/test_stored_format.py"
HEAD = f"""\
# A payload of every kind that is stored in format {FORMAT}, the members of every enum in them, and what it means that a
# field is left out. Written by: {REWRITE}
"""
STEP_MISSING = f"""\
the stored format changed without a version step: what an earlier version stored could not be read any more.
Raise FORMAT in scheduler/store/codec.py by one, add to UPGRADES what an object of that class, written in format
{FORMAT}, looks like in the next one, leave format_{FORMAT}.txt as it is, and pin the new format beside it:
  {REWRITE}
While no release has written format {FORMAT} its own file may be rewritten, with the same command and without a step."""
NOT_PINNED = f"""\
there are kinds, fields or members that are not pinned yet. A new one with a default needs no version step; pin it:
  {REWRITE}"""


def pinned(file: Path) -> list[Line]:
    return parse(file.read_text())


def test_what_this_format_ever_stored_comes_back_as_it_was() -> None:
    if os.environ.get("GOLDEN"):
        PRESENT.write_text(HEAD + "".join(f"{' '.join(line)}\n" for line in lines()))
    assert PRESENT.exists(), f"format {FORMAT} is not pinned; run: {REWRITE}"
    wrong = lost(pinned(PRESENT), Codec())
    assert not wrong, "\n".join([*wrong, STEP_MISSING])


def test_every_kind_field_and_member_is_pinned() -> None:
    added = [f"{what} {kind}" for what, kind, rest in lines() if (what, kind, rest) not in pinned(PRESENT)]
    assert not added, "\n".join([*added, NOT_PINNED])


def test_what_any_format_stored_is_read() -> None:
    codec = Codec()
    files = [FOLDER / f"format_{number}.txt" for number in range(1, FORMAT + 1)]
    assert sorted(FOLDER.iterdir()) == sorted(files), "one file for each format that ever was"
    for what, kind, payload in [line for file in files for line in pinned(file)]:
        if what in CLASSES:
            value = codec.decode(CLASSES[what][kind], payload)
            assert codec.decode(CLASSES[what][kind], codec.encode(value)) == value


# --- the check itself


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"gpus":1', '"gpu_count":1', "Resources.gpu_count: unknown field"),
        ('"is_draining":true', '"is_draining":1', "Node.is_draining: expected bool"),
        ('"next_job":1', '"next_job":"1"', "Counters.next_job: expected int"),
        ("enum Outcome SUCCEEDED", "enum Outcome WON SUCCEEDED", "Outcome has no member WON any more"),
        ("record JobHeld ", "record JobPaused ", "no record is of the kind JobPaused any more"),
        ('"$":"ExitCode"', '"$":"ExitNumber"', "unknown class 'ExitNumber'"),
        (
            "left_out AttemptStopping reason=''",
            "left_out AttemptStopping reason='none'",
            "a AttemptStopping without reason",
        ),
    ],
)
def test_a_change_of_the_format_is_noticed(before: str, after: str, said: str) -> None:
    text = PRESENT.read_text()
    if before not in text:
        pytest.fail(f"{before} is not in the file")
    wrong = lost(parse(text.replace(before, after)), Codec())
    assert any(said in each for each in wrong), wrong


def test_a_value_that_comes_back_changed_is_noticed() -> None:
    def loses_the_note(node: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in node.items() if key != "note"}

    step: dict[tuple[str, int], Upgrade] = {("Token", FORMAT): loses_the_note}
    wrong = lost(pinned(PRESENT), Codec(FORMAT + 1, step))
    assert "entity token: token.note does not come back" in wrong
