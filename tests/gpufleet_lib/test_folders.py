"""Manifests of folders: what is right comes back as it was, and what is not is refused."""

from __future__ import annotations

import pytest

from gpufleet.jobs.folders import Entry, EntryKind, Folder, FolderChunk, ManifestError, folder_of, manifest_of
from tests.gpufleet_lib.hostile_manifests import HOSTILE

DIGEST = "ab" * 32
RIGHT = Folder(
    (
        Entry(".env", size_bytes=2),
        Entry("a", EntryKind.LINK, target="./d/e/../f"),
        Entry("d/e/x y, ü", size_bytes=0),
        Entry("d/f", size_bytes=3, is_executable=True),
        Entry("empty", EntryKind.EMPTY_FOLDER),
        Entry("l", EntryKind.LINK, target="d"),
        Entry("m", EntryKind.LINK, target="l"),
    ),
    (FolderChunk(DIGEST, 4), FolderChunk("cd" * 32, 1)),
)


def test_a_folder_comes_back_from_its_manifest_which_is_always_the_same() -> None:
    assert folder_of(manifest_of(RIGHT)) == RIGHT
    assert manifest_of(folder_of(manifest_of(RIGHT))) == manifest_of(RIGHT)
    assert folder_of(b"") == Folder((), ())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused(name: str) -> None:
    data, says = HOSTILE[name]
    with pytest.raises(ManifestError, match=says.replace(".", r"\.")):
        folder_of(data)


@pytest.mark.parametrize("entries", [(Entry("../a"),), (Entry("b"), Entry("a"))])
def test_no_such_manifest_is_made(entries: tuple[Entry, ...]) -> None:
    with pytest.raises(ManifestError):
        manifest_of(Folder(entries, ()))
