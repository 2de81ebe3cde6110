"""Every document is found from an index, and every room from the map of rooms."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from tests.rules.texts import FENCE, LINK, ROOT, files, pages

INDEXES = ("README.md", "docs/README.md", "docs/design/README.md")
DOCUMENTS = sorted(name for name in files() if name.startswith("docs/") and name not in INDEXES)


def linked_from(page: str) -> set[str]:
    """The files that a page links, from the root of the repository."""
    folder = (ROOT / page).parent
    links = LINK.finditer(FENCE.sub("", (ROOT / page).read_text()))
    targets = (folder / link["file"] for link in links if link["file"])
    return {target.resolve().relative_to(ROOT).as_posix() for target in targets if target.is_file()}


@pytest.mark.parametrize("index", INDEXES[1:])
def test_each_index_is_found_from_the_one_above_it(index: str) -> None:
    assert index in linked_from(INDEXES[INDEXES.index(index) - 1])


def test_every_document_is_linked() -> None:
    from_indexes, from_pages = (set().union(*map(linked_from, each)) for each in (INDEXES, pages()))
    documents = {name for name in DOCUMENTS if name.endswith(".md")}
    assert not documents - from_indexes, "link it from docs/README.md"
    assert not set(DOCUMENTS) - documents - from_pages, "link it from a page that needs it"


def test_every_room_has_a_row_in_the_map_of_rooms() -> None:
    rows = (ROOT / "ARCHITECTURE.md").read_text().partition("## The rooms")[2]
    firsts = [row.partition("|")[0] for row in re.findall(r"^\| (`.*)$", rows, re.MULTILINE)]
    named: set[str] = set()
    for first in firsts:
        program = ""
        for folder in re.findall(r"`([^`]+)/`", first):
            program = program if "/" not in folder else folder.partition("/")[0]
            named |= {folder, f"{program}/{folder}"}
    python = (PurePosixPath(name) for name in files() if name.endswith("/__init__.py"))
    rooms = {folder for path in python if (folder := path.parent).parts[0] != "tests"}
    tops = {folder.parts[0] for folder in rooms} | {
        "scheduler/" + folder.name for folder in rooms if folder.match("scheduler/*")
    }
    assert not {room for room in tops if room not in named}, "add a row, or name it in one, in ARCHITECTURE.md"
