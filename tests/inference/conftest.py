"""What a model sets for its whole process is set back: tests of another file may come next in this one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    torch: Any = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_flush_denormal(False)
        if threads is not None:
            torch.set_num_threads(threads)
