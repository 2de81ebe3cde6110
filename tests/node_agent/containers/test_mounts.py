"""Which folders a job may be shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node_agent.containers.engine import ContainerTrouble
from node_agent.containers.mounts import allowed_mounts, checked_mount, opened_without_links
from node_agent.core.launch import Mount, RefusalReason


def shown(source: Path, folder: Path, never: tuple[Path, ...] = ()) -> Mount:
    allowed = allowed_mounts([f"{folder}/data:ro", f"{folder}/data/open", f"{folder}/scratch"])
    return checked_mount(Mount(source=str(source), target="/x"), allowed, never)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data/open", "scratch/mine", "database"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_what_is_allowed_is_shown_with_all_below_it_and_read_alone_where_its_site_says_so(folder: Path) -> None:
    assert shown(folder / "data", folder).is_read_only
    assert not shown(folder / "data" / "open", folder).is_read_only
    assert shown(folder / "scratch" / "mine", folder).source == str(folder / "scratch" / "mine")


def test_nothing_is_shown_that_leads_out_of_what_is_allowed(folder: Path) -> None:
    (folder / "scratch" / "out").symlink_to("/etc")
    (folder / "scratch" / "loop").symlink_to("loop")
    for source in ("/etc", "/", str(folder), f"{folder}/database", f"{folder}/scratch/out", f"{folder}/scratch/loop"):
        with pytest.raises(ContainerTrouble) as caught:
            shown(Path(source), folder)
        assert caught.value.refusal.reason is RefusalReason.MOUNT_REFUSED


def test_a_link_that_stays_within_is_shown_as_what_it_leads_to(folder: Path) -> None:
    (folder / "scratch" / "inner").symlink_to(folder / "scratch" / "mine")
    assert shown(folder / "scratch" / "inner", folder).source == str(folder / "scratch" / "mine")


def test_the_engines_socket_is_shown_to_nobody_whatever_a_site_allows(folder: Path) -> None:
    socket = folder / "scratch" / "mine" / "engine.sock"
    socket.touch()
    for source in (socket, folder / "scratch" / "mine", folder / "scratch"):
        with pytest.raises(ContainerTrouble, match="all of the node"):
            shown(source, folder, (socket,))


def test_whether_something_is_there_is_not_told_of_what_is_not_allowed(folder: Path) -> None:
    with pytest.raises(ContainerTrouble) as there:
        shown(folder / "database", folder)
    with pytest.raises(ContainerTrouble) as nowhere:
        shown(folder / "datebase", folder)
    assert there.value.refusal.detail.replace("database", "datebase") == nowhere.value.refusal.detail


def test_a_link_of_another_account_is_no_mount_root(folder: Path) -> None:
    for name in ("ours", "theirs"):
        (folder / name).symlink_to(folder / "scratch")
    allowed = allowed_mounts([f"{folder}/ours", f"{folder}/theirs"])
    through_ours = Mount(source=f"{folder}/ours/mine", target="/x")
    assert checked_mount(through_ours, allowed).source == str(folder / "scratch" / "mine")
    if os.geteuid() != 0:
        pytest.skip("only root gives a link to another account")
    os.chown(folder / "theirs", 65534, 65534, follow_symlinks=False)
    with pytest.raises(ContainerTrouble, match="a link of another account's"):
        checked_mount(Mount(source=f"{folder}/theirs/mine", target="/x"), allowed_mounts([f"{folder}/theirs"]))


def test_what_is_opened_without_links_is_what_its_path_names(folder: Path) -> None:
    (folder / "scratch" / "out").symlink_to("/etc")
    descriptor = opened_without_links(str(folder / "scratch" / "mine"))
    assert os.path.samestat(os.fstat(descriptor), (folder / "scratch" / "mine").stat())
    os.close(descriptor)
    for path in ("out", "out/passwd"):
        with pytest.raises(OSError, match=r"Too many levels of symbolic links|Not a directory"):
            opened_without_links(str(folder / "scratch" / path))
