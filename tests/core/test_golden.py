"""The rules as transcripts. `GOLDEN=1 pytest tests/core/test_golden.py` rewrites them: commit what you understand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.core.sessions.session_transcript import SessionTranscript
from tests.core.transcript import Transcript, run

FOLDER = Path(__file__).parent
JOBS = sorted(FOLDER.glob("golden/*.txt"))
SESSIONS = sorted(FOLDER.glob("session_golden/*.txt"))
FILES = [*JOBS, *SESSIONS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_transcript_is_what_the_core_decides(path: Path) -> None:
    told = run(path, SessionTranscript if path in SESSIONS else Transcript)
    if os.environ.get("GOLDEN"):
        path.write_text(told)
    assert told.splitlines() == path.read_text().splitlines()


def test_every_transcript_begins_with_its_rule() -> None:
    assert JOBS
    assert SESSIONS
    assert not [path.name for path in FILES if not path.read_text().startswith("# ")]
