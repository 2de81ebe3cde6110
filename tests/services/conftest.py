"""A machine with a systemd, which a file's tests share in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.services.machine import Machine, running_machine, why_no_machine


@pytest.fixture(scope="module")
def machine(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """One that is up, with nothing installed."""
    if why := why_no_machine():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("machine")
    with ExitStack() as stack:
        with long_lived("a machine"):
            found = stack.enter_context(running_machine(folder))
            if found is None:
                print((folder / "boot.log").read_text(errors="replace"))
                pytest.skip("systemd does not start here: what it said is printed above")
        yield found
