"""Features that cannot meet are refused when they are typed: with an exit code, the option's name, and no change."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.processes import clean_environment
from tests.pairs.combinations import REFUSED, Refused
from tests.pairs.course import lay_out
from tests.pairs.features import row_of
from tests.pairs.site import GPUCTL
from tests.pairs.typed import Places, words
from tests.pairs.typing_at import Done, typed_in_pipes, typed_on_terminal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleet(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A scheduler without nodes."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        with long_lived("a scheduler"):
            asyncio.run(fleet.scheduler.start())
        yield fleet
    finally:
        asyncio.run(fleet.end())


async def typed(fleet: Fleet, folder: Path, *line: str) -> Done:
    """What an administrator's line comes to."""
    known = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}
    variables = clean_environment(folder, known)
    if line[0] == "shell":
        return await typed_on_terminal((*GPUCTL, *line), variables, folder, b"")
    return await typed_in_pipes((*GPUCTL, *line), variables, folder, b"")


async def is_refused(fleet: Fleet, folder: Path, refused: Refused, line: list[str]) -> None:
    """The line exits with the code and names the option, and no job came of it."""
    done = await typed(fleet, folder, *line)
    said = done.out + done.err
    assert done.code == refused.code, f"gpuctl {shlex.join(line)}: {done}"
    assert refused.option in said and "Traceback" not in said, said
    listed: Any = json.loads((await typed(fleet, folder, "queue", "--all", "-o", "json")).out)
    assert not listed["jobs"]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda each: ",".join(each.levels.values()))
async def test_what_cannot_be_together_is_refused_and_changes_nothing(
    fleet: Fleet, tmp_path: Path, refused: Refused
) -> None:
    lay_out(tmp_path)
    line = words(row_of(dict(refused.levels)), Places(number=1))
    await is_refused(fleet, tmp_path, refused, line)
    if line[0] == "submit":
        await is_refused(fleet, tmp_path, refused, ["submit", "--dry-run", *line[1:]])
