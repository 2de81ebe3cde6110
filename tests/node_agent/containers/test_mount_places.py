"""What was checked is what is mounted, whatever a job makes of the path meanwhile."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from node_agent.containers import mount_places
from node_agent.containers.engine import ContainerTrouble
from node_agent.containers.mount_places import MountPlaces
from node_agent.containers.mounts import allowed_mounts, checked_mount, folder_that_users_can_change
from node_agent.core.launch import Mount, RefusalReason
from node_agent.keeper.linux import MS_BIND, MS_PRIVATE, mount, unmount
from tests.node_agent.namespaces import needs_namespaces

RENAME_EXCHANGE, AT_FDCWD = 2, -100
TRIES = 300
ANYBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A mount root that every user can write, with a user's folder in it."""
    root = tmp_path / "scratch"
    (root / "mine").mkdir(parents=True)
    (root / "mine" / "marker").write_text("mine")
    root.chmod(0o777)
    os.chown(root / "mine", ANYBODY, ANYBODY)
    return root


@pytest.fixture
def engine_socket(tmp_path: Path) -> Iterator[str]:
    """A socket on which a program of this mount namespace listens."""
    path = str(tmp_path / "engine.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(TRIES)
        yield path


@pytest.fixture
def places(tmp_path: Path) -> Iterator[MountPlaces]:
    places = MountPlaces("agent", tmp_path / "places")
    yield places
    places.sweep(set)
    assert not (tmp_path / "places" / "agent").exists(), "nothing is left mounted"


def mounted(source: Path, is_read_only: bool = False) -> list[Mount]:
    return [Mount(source=str(source), target="/x", is_read_only=is_read_only)]


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names again and again, as fast as that is possible."""
    is_over = threading.Event()

    def exchange() -> None:
        while not is_over.is_set():
            _libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@needs_namespaces
def test_a_folder_that_is_exchanged_for_a_link_is_never_mounted_as_what_the_link_leads_to(
    scratch: Path, places: MountPlaces, engine_socket: str
) -> None:
    (scratch / "trap").symlink_to("/")
    allowed, held, refusals = allowed_mounts([str(scratch)]), 0, 0
    with exchanging(scratch / "mine", scratch / "trap"):
        for _ in range(TRIES):
            try:
                checked = checked_mount(mounted(scratch / "mine")[0], allowed)
                (given,) = places.held("7.1.0", [checked], engine_socket)
            except ContainerTrouble as trouble:
                assert trouble.refusal.reason is RefusalReason.MOUNT_REFUSED
                refusals += 1
                continue
            held += 1
            assert sorted(os.listdir(given.source)) == ["marker"]  # noqa: PTH208 - as an engine, by its path
    assert held > 0, "the folder was there half of the time"
    assert refusals > 0, "the link was there half of the time"


@needs_namespaces
def test_a_place_shows_folders_and_files_and_leaves_them_whole_when_it_is_let_go(
    scratch: Path, places: MountPlaces, engine_socket: str
) -> None:
    other = scratch.parent / "other"
    other.mkdir()
    (other / "inner").write_text("of another file system")
    (scratch / "mine" / "below").mkdir()
    mount(str(other), str(scratch / "mine" / "below"), flags=MS_BIND)
    mount("", str(scratch / "mine" / "below"), flags=MS_PRIVATE)
    try:
        asked = [*mounted(scratch / "mine", is_read_only=True), *mounted(scratch / "mine" / "marker")]
        folder, file = places.held("7.1.0", asked, engine_socket)
        assert (folder.is_read_only, folder.target) == (True, "/x")
        assert Path(folder.source, "below", "inner").read_text() == "of another file system"
        assert Path(file.source).read_text() == "mine"
        places.release("7.1.0")
        assert (scratch / "mine" / "below" / "inner").exists(), "what is mounted below stays mounted"
        assert (scratch / "mine" / "marker").read_text() == "mine"
        assert not Path(folder.source).exists()
    finally:
        unmount(str(scratch / "mine" / "below"))


@needs_namespaces
def test_what_an_earlier_agent_held_is_let_go_and_what_is_in_use_stays(
    scratch: Path, places: MountPlaces, engine_socket: str, tmp_path: Path
) -> None:
    for attempt in ("7.1.0", "8.1.0"):
        places.held(attempt, mounted(scratch / "mine"), engine_socket)
    later = MountPlaces("agent", tmp_path / "places")
    later.sweep(lambda: {"8.1.0"})
    assert [each.name for each in (tmp_path / "places" / "agent").iterdir()] == ["8.1.0"]
    assert (tmp_path / "places" / "agent" / "8.1.0" / "0" / "marker").read_text() == "mine"


@needs_namespaces
def test_without_a_place_nothing_below_what_users_can_write_is_mounted(
    scratch: Path, places: MountPlaces, engine_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (scratch.parent, *scratch.parent.parents):
        if folder_that_users_can_change(str(folder)):
            pytest.skip(f"users can change what {folder} lies in")
    monkeypatch.setattr(mount_places, "_why_nothing_is_held", lambda socket: "its agent is not root")
    with pytest.raises(ContainerTrouble, match=r"its agent is not root: mount .*/scratch itself"):
        places.held("7.1.0", mounted(scratch / "mine"), engine_socket)
    assert places.held("7.1.0", mounted(scratch), engine_socket) == tuple(mounted(scratch))
    scratch.chmod(0o755)
    assert places.held("7.1.0", mounted(scratch / "mine"), engine_socket) == tuple(mounted(scratch / "mine"))


@needs_namespaces
def test_an_agent_that_may_not_mount_refuses_what_users_can_exchange(
    scratch: Path, places: MountPlaces, engine_socket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(mount_places, "mount", refuse)
    with pytest.raises(ContainerTrouble, match="its agent may not mount"):
        places.held("7.1.0", mounted(scratch / "mine"), engine_socket)
    (tmp_path / "places" / "agent").rmdir()


def test_an_engine_that_has_gone_or_is_somebody_elses_has_no_place(scratch: Path, places: MountPlaces) -> None:
    with pytest.raises(ContainerTrouble, match="users can change"):
        places.held("7.1.0", mounted(scratch / "mine"), str(scratch / "no.sock"))


def test_who_can_exchange_what_lies_above_a_path_is_told(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "inner").mkdir(parents=True)
    if folder_that_users_can_change(str(outer)):
        pytest.skip(f"users can change what {tmp_path} lies in")
    outer.chmod(0o775)
    assert folder_that_users_can_change(str(outer / "inner")) == str(outer)
    outer.chmod(0o1777)
    assert folder_that_users_can_change(str(outer / "inner")) == "", "in a sticky folder only its owner renames it"
    with suppress(PermissionError):
        os.chown(outer / "inner", ANYBODY, ANYBODY)
        assert folder_that_users_can_change(str(outer / "inner")) == str(outer)
        outer.chmod(0o755)
        os.chown(outer, ANYBODY, ANYBODY)
        assert folder_that_users_can_change(str(outer / "inner")) == str(outer)
