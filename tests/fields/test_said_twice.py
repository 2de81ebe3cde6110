"""What is said a second time, because it is said in another language, is the same there."""

from __future__ import annotations

import re
from pathlib import Path

from gpufleet.jobs.runs import DEFAULT_GRACE_US

DRAFT = Path(__file__).resolve().parents[2] / "gateway/web/src/dashboard/submit/draft.ts"


def test_the_usual_grace_is_the_same_on_the_page() -> None:
    (on_the_page,) = re.findall(r"^const GRACE_DEFAULT_S = (\d+);$", DRAFT.read_text(), re.MULTILINE)
    assert int(on_the_page) * 1_000_000 == DEFAULT_GRACE_US
