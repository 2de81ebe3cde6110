"""docs/high-availability.md, typed: with a database and folders of the test's own, on one machine."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.e2e.processes import SchedulerProcess
from tests.leading.pair import PATIENT, Pair

pytestmark = pytest.mark.postgres

PAGE = (Path(__file__).parents[2] / "docs" / "high-availability.md").read_text()
FOLDER = "/var/lib/gpufleet"


def typed(command: str, url: str) -> list[str]:
    """The flags of a scheduler as the page has them, with another database; the data folder is the program's."""
    words = shlex.split(command)
    assert words[:2] == ["gpuctl", "scheduler"]
    data = words.index("--data")
    assert words[data + 1] == FOLDER
    words = words[2:data] + words[data + 2 :]
    return [url if word.startswith("postgresql://") else word for word in words]


async def test_what_the_page_tells_to_type_makes_a_leader_and_a_standby(tmp_path: Path, url: str) -> None:
    first, copy, second = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    environment = dict([PATIENT])
    pair = Pair(tmp_path / "fleet", url)
    pair.scheduler = SchedulerProcess(tmp_path / "one", typed(first, url), environment)
    pair.other = SchedulerProcess(tmp_path / "two", typed(second, url), environment)
    try:
        await pair.scheduler.start()
        program, option, source, target = shlex.split(copy)
        assert (program, option, target) == ("scp", "-p", f"{FOLDER}/")
        pair.other.data.mkdir(mode=0o700)
        shutil.copy2(source.replace(f"sched1:{FOLDER}", str(pair.scheduler.data)), pair.other.data)
        pair.other.address = pair.scheduler.address
        await pair.stand_by()
        pair.scheduler.kill()
        await pair.serves(pair.other)
        assert pair.term() == 2
    finally:
        await pair.end()
