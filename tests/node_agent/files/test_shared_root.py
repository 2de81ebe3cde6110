"""The shared folder on its node: what is read there, by whose rights, and what nobody gets out of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.runs import FileRun, FileWay, JobId, RankKey
from gpufleet.jobs.shared_root import MARKER, RootUnusable, id_of, new_probe
from node_agent.core.launch import InputFile, Isolation, RefusalReason
from node_agent.files import shared_root
from node_agent.files.job_files import JobFiles
from node_agent.files.shared_root import NotRead, SharedRoot

KEY = RankKey(JobId(7), 1, 0)
DATA = b"0123456789"
ROOT = "ab" * 16
USER_UID, OTHER_UID = 1_900_000_777, 1_900_000_778

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root reads by the rights of another account")


def input_file(path: str, data: bytes = DATA, root: str = ROOT) -> InputFile:
    digest = hashlib.sha256(data).hexdigest()
    return InputFile(
        path="in.txt", digest=digest, size_bytes=len(data), shared_root=root, shared_path=path, is_only_shared=True
    )


@pytest.fixture
def team(tmp_path: Path) -> Path:
    folder = tmp_path / "team"
    (folder / "data").mkdir(parents=True)
    (folder / MARKER).write_text(f"{ROOT}\n")
    (folder / "data" / "a.txt").write_bytes(DATA)
    (tmp_path / "outside.txt").write_bytes(DATA)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_bytes(DATA)
    return folder


def shared(team: Path, account: Isolation | None = None) -> SharedRoot:
    return SharedRoot(team, lambda user: account, lambda: None)


def files_of(team: Path, account: Isolation | None = None, name: str = "agent") -> JobFiles:
    return JobFiles("n1", 1, team.parent / name, lambda: 10**6, shared(team, account))


async def test_a_rank_gets_a_copy_of_its_own_and_it_is_known_how_it_came(team: Path) -> None:
    files = files_of(team)
    assert await files.lay_out(KEY, [input_file("data/a.txt")], user="ada") is None
    copy = files.folder_of(KEY) / "in.txt"
    assert (copy.read_bytes(), copy.stat().st_mode & 0o777) == (DATA, 0o600)
    copy.write_bytes(b"changed")
    assert (team / "data" / "a.txt").read_bytes() == DATA
    again = JobFiles("n1", 2, team.parent / "agent", lambda: 10**6)
    assert again.runs_of(KEY) == (FileRun(way=FileWay.SHARED_ROOT, count=1),)
    assert not list((team.parent / "agent" / "cache").glob("*")), "what one user may read is kept for nobody else"
    await files.remove(KEY)
    assert files.runs_of(KEY) == ()


def _link(path: str, target: str) -> Callable[[Path], object]:
    return lambda team: (team / path).symlink_to(target)


HOSTILE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a link out": (_link("out", "../outside.txt"), "out", "is a link"),
    "a link to the file itself": (_link("in", "data/a.txt"), "in", "is a link"),
    "a folder that is a link out": (_link("dir", "../outside"), "dir/a.txt", "behind a link"),
    "a folder that is a link inside": (_link("dir", "data"), "dir/a.txt", "behind a link"),
    "an absolute link": (_link("etc", "/etc"), "etc/hostname", "behind a link"),
    "a magic link": (_link("self", "/proc/self/fd"), "self/0", "behind a link"),
    "a named pipe": (lambda team: os.mkfifo(team / "pipe"), "pipe", "a named pipe"),
    "a folder": (lambda team: None, "data", "a folder"),
    "nothing": (lambda team: None, "data/none.txt", "is not there any more"),
    "nothing in nothing": (lambda team: None, "none/a.txt", "is not there any more"),
    "below a file": (lambda team: None, "data/a.txt/b", "behind a link, or is not there"),
    "other bytes": (lambda team: (team / "data" / "a.txt").write_bytes(b"x" * 10), "data/a.txt", "it has changed"),
    "fewer bytes": (lambda team: (team / "data" / "a.txt").write_bytes(b"01"), "data/a.txt", "has 2 bytes now"),
    "more bytes": (lambda team: (team / "data" / "a.txt").write_bytes(DATA * 2), "data/a.txt", "has 20 bytes now"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_nothing_but_the_plain_file_that_was_submitted_comes_out_of_it(team: Path, case: str) -> None:
    prepare, path, why = HOSTILE[case]
    prepare(team)
    refusal = await files_of(team).lay_out(KEY, [input_file(path)], user="ada")
    assert refusal is not None
    assert refusal.reason is RefusalReason.FILES_CHANGED
    assert why in refusal.detail
    assert not list((team.parent / "agent" / "attempts" / KEY.name).iterdir()), "nothing of it is left to the job"


@pytest.mark.parametrize("path", ["../outside.txt", "data/../../outside.txt", "/etc/hostname", "data//a.txt", "./data"])
async def test_a_path_that_leads_out_is_refused_before_anything_is_opened(team: Path, path: str) -> None:
    assert trouble_with_path(path)
    refusal = await files_of(team).lay_out(KEY, [input_file(path)], user="ada")
    assert refusal is not None
    assert refusal.reason is RefusalReason.BAD_REQUEST


@needs_root
async def test_a_device_is_not_even_opened(team: Path) -> None:
    os.mknod(team / "device", 0o20666, os.makedev(1, 3))
    refusal = await files_of(team).lay_out(KEY, [input_file("device", b"")], user="ada")
    assert refusal is not None
    assert "a device" in refusal.detail


@needs_root
async def test_a_users_rights_decide_and_only_in_the_thread_that_reads(team: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    account = Isolation(uid=USER_UID, gid=USER_UID, groups=(777,))
    mine, others, of_group = team / "mine", team / "others", team / "of_group"
    for path, uid, gid, mode in ((mine, USER_UID, 0, 0o600), (others, OTHER_UID, 0, 0o600), (of_group, 0, 777, 0o640)):
        path.write_bytes(DATA)
        os.chown(path, uid, gid)
        path.chmod(mode)
    (team / "shut").mkdir(mode=0o700)
    (team / "shut" / "a.txt").write_bytes(DATA)
    found = await shared(team, account).unreadable(ROOT, ["mine", "others", "of_group", "shut/a.txt"], user="ada")
    assert found == dict.fromkeys((1, 3), "cannot be read by the account that the job runs as")
    files = files_of(team, account)
    assert await files.lay_out(KEY, [input_file("mine")], user="ada") is None
    refusal = await files.lay_out(KEY, [input_file("others")], user="ada")
    assert refusal is not None
    assert refusal.reason is RefusalReason.FILES_CHANGED
    assert (os.geteuid(), others.read_bytes()) == (0, DATA), "the agent itself is who it was"


async def test_who_knows_a_digest_is_not_given_what_the_node_has_of_somebody_else(team: Path) -> None:
    files = files_of(team)
    cache = team.parent / "agent" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / hashlib.sha256(b"a secret").hexdigest()).write_bytes(b"a secret")
    (team / "mine").write_bytes(b"no secret"[:8])
    refusal = await files.lay_out(KEY, [input_file("mine", b"a secret")], user="eve")
    assert refusal is not None
    assert refusal.reason is RefusalReason.FILES_CHANGED


async def test_another_folder_is_told_and_the_job_is_placed_elsewhere(team: Path) -> None:
    refusal = await files_of(team).lay_out(KEY, [input_file("data/a.txt", root="cd" * 16)], user="ada")
    assert refusal is not None
    assert refusal.reason is RefusalReason.FILES_UNAVAILABLE
    assert ROOT in refusal.detail
    none = JobFiles("n1", 1, team.parent / "agent", lambda: 10**6, SharedRoot(None, lambda user: None, lambda: None))
    refusal = await none.lay_out(KEY, [input_file("data/a.txt")], user="ada")
    assert refusal is not None
    assert refusal.reason is RefusalReason.FILES_UNAVAILABLE


async def test_a_folder_that_stands_still_holds_up_nobody_for_ever(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(shared_root, "READ_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(shared_root, "open_beneath", lambda folder, path: goes_on.wait() and os.dup(folder))
    try:
        refusal = await files_of(team).lay_out(KEY, [input_file("data/a.txt")], user="ada")
    finally:
        goes_on.set()
    assert refusal is not None
    assert refusal.reason is RefusalReason.FILES_UNAVAILABLE
    assert "does not answer" in refusal.detail


async def test_a_probe_is_what_was_written_just_now_and_nothing_else_is_read_as_one(team: Path) -> None:
    root, probe = shared(team), new_probe()
    digest = hashlib.sha256(DATA).hexdigest()
    with pytest.raises(NotRead, match="another folder"):
        await root.read_probe(ROOT, probe, digest, len(DATA))
    (team / "data" / probe).write_bytes(DATA)
    assert await root.read_probe(ROOT, f"data/{probe}", digest, len(DATA)) >= 0
    with pytest.raises(NotRead, match="other bytes"):
        await root.read_probe(ROOT, f"data/{probe}", hashlib.sha256(b"").hexdigest(), len(DATA))
    with pytest.raises(NotRead, match="another one"):
        await root.read_probe("cd" * 16, f"data/{probe}", digest, len(DATA))
    for other in ("data/a.txt", f"../{probe}", MARKER):
        with pytest.raises(NotRead, match="no probe"):
            await root.read_probe(ROOT, other, digest, len(DATA))
    (team / probe).symlink_to(team.parent / "outside.txt")
    with pytest.raises(NotRead, match="a link"):
        await root.read_probe(ROOT, probe, digest, len(DATA))


async def test_a_folder_gets_one_id_however_many_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    found = await asyncio.gather(*(asyncio.to_thread(id_of, tmp_path / "team") for _ in range(8)))
    assert len(set(found)) == 1
    assert [each.name for each in (tmp_path / "team").iterdir()] == [MARKER]


async def test_what_is_told_of_it_changes_with_it(team: Path) -> None:
    root = shared(team)
    assert await root.look()
    assert (root.state.id, root.state.problem) == (ROOT, "")
    assert not await root.look()
    (team / MARKER).write_text("no id")
    assert await root.look()
    assert (root.state.id, "does not hold the id" in root.state.problem) == ("", True)
    with pytest.raises(RootUnusable, match="no folder"):
        id_of(team / "none")
