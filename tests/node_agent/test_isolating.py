"""As whom jobs run: uids that stay, accounts that are there, and what is refused; and the nodes of devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.devices.device import Device, Vendor
from gpufleet.errors import GpufleetError
from node_agent import notice_delivery
from node_agent.core.launch import FILES_PATH, HOME_PATH, Isolation, RefusalReason
from node_agent.identity import DataFolder
from node_agent.isolation import probe
from node_agent.isolation.accounts import AccountUnusable, Isolating
from node_agent.isolation.choice import AccountChoice, chosen_accounts, sentence_of
from node_agent.isolation.device_nodes import nodes_of
from node_agent.keeper.values import to_json
from node_agent.notice_delivery import NoticeNotDelivered, run_isolated
from tests.node_agent.keeper.keeping import until
from tests.node_agent.namespaces import needs_namespaces

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other accounts")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are started are those of the installed package."""
    for module in (notice_delivery, probe):
        monkeypatch.setattr(module, "PROGRAM", f"gpufleet.{module.PROGRAM}")


@needs_root
def test_a_user_has_the_same_uid_for_ever_and_no_other_has_it(tmp_path: Path) -> None:
    settings = IsolationSettings(users="range", uid_count=2)
    first = Isolating(settings, tmp_path)
    account, alice = first.of("alice", (), "")
    _, bob = first.of("bob", (), "")
    assert alice is not None
    assert bob is not None
    assert (account.name, account.home) == ("alice", HOME_PATH)
    assert alice.uid != bob.uid
    assert alice.hidden == (str(tmp_path),)
    _, again = Isolating(settings, tmp_path).of("alice", (), "")
    assert again == alice
    with pytest.raises(AccountUnusable, match="uid_count"):
        first.of("carol", (), "")


@needs_root
def test_uids_that_cannot_be_read_are_not_given_anew(tmp_path: Path) -> None:
    (tmp_path / "uids.json").write_text("{")
    with pytest.raises(AccountUnusable, match=r"uids\.json"):
        Isolating(IsolationSettings(users="range"), tmp_path).of("alice", (), "")


@needs_root
def test_an_account_is_the_users_own_and_root_only_where_that_is_allowed(tmp_path: Path) -> None:
    accounts = Isolating(IsolationSettings(users="accounts"), tmp_path)
    account, isolation = accounts.of("daemon", (), "")
    assert isolation is not None
    assert (isolation.uid, isolation.gid, account.home) == (1, 1, isolation.home)
    for user in ("root", "nobody-of-this-name"):
        with pytest.raises(AccountUnusable) as refused:
            accounts.of(user, (), "")
        assert refused.value.refusal.reason is RefusalReason.ACCOUNT_UNUSABLE
    _, root = Isolating(IsolationSettings(users="accounts", allow_root=True), tmp_path).of("root", (), "")
    assert root is not None
    assert root.uid == 0


def test_an_agent_that_is_not_root_cannot_run_jobs_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Isolating(IsolationSettings(), tmp_path).of("alice", (), "")[1] is None
    with pytest.raises(GpufleetError, match="root"):
        Isolating(IsolationSettings(users="range"), tmp_path)


def running(mark: str) -> list[Path]:
    """Processes with this word in their command line."""
    return [
        each for each in Path("/proc").glob("[0-9]*/cmdline") if each.exists() and mark.encode() in each.read_bytes()
    ]


@pytest.fixture
def isolation(tmp_path: Path) -> Isolation:
    """Whose process a job of alice's is, in a folder that everybody may look at."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    tmp_path.chmod(0o755)
    _, found = Isolating(IsolationSettings(users="range"), tmp_path).of("alice", (), "")
    assert found is not None
    return replace(found, devices=("/dev/kmsg",))


@needs_namespaces
async def test_a_notice_is_told_as_the_jobs_user_and_out_of_reach_of_all_else(
    tmp_path: Path, isolation: Isolation
) -> None:
    mark = f"1002.{os.getpid()}"
    line = f"""
    id -u; id -G; ls /proc | grep -c '^[0-9]'
    ls -A {tmp_path} 2>/dev/null; ls -A /tmp; ls /dev/kmsg 2>/dev/null
    echo x > /tmp/x && echo x > $HOME/x && cat $HOME/x; grep NoNewPrivs /proc/self/status
    echo $WORD; (setsid sleep {mark} >/dev/null 2>&1 &)
    """
    env = {"PATH": os.defpath, "HOME": HOME_PATH, "WORD": "sesame"}
    said = await run_isolated(line, "/", env, isolation, tmp_path / "spaces")
    uid, groups, processes, *rest = said.split()
    assert uid == groups == str(isolation.uid)
    assert int(processes) <= 4, "its own"
    assert rest == ["x", "NoNewPrivs:", "1", "sesame"], "the agent's folder and /tmp are empty, and it has no device"
    assert not running(mark)
    assert not any((tmp_path / "spaces").iterdir())


TELL = """
import json
import sys
from pathlib import Path
from gpufleet.host import event_loop
from gpufleet.node_agent.keeper.values import isolation_from
from gpufleet.node_agent.notice_delivery import run_isolated
given = json.load(sys.stdin)
isolation, spaces = isolation_from(given["isolation"]), Path(given["spaces"])
print(event_loop.run(run_isolated(given["line"], given["cwd"], {}, isolation, spaces), given["loop"]))
"""


@needs_namespaces
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_notice_is_told_in_the_folder_of_the_jobs_files_under_every_event_loop(
    tmp_path: Path, isolation: Isolation, loop: str
) -> None:
    """In a process of its own: uvloop keeps descriptors for as long as its process lives."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    files = tmp_path / "attempts" / "7.1.0"
    (files / "src").mkdir(parents=True)
    (files / "src" / "words").write_text("as uploaded")
    os.chown(files / "src", isolation.uid, isolation.gid)
    given = {
        "line": "pwd; cat words; echo > made",
        "cwd": f"{FILES_PATH}/src",
        "isolation": to_json(replace(isolation, files=str(files))),
        "spaces": str(tmp_path / "spaces"),
        "loop": loop,
    }
    command = (sys.executable, "-P", "-c", TELL)
    told = subprocess.run(command, input=json.dumps(given), capture_output=True, check=False, text=True, timeout=60)
    assert told.stdout == f"{FILES_PATH}/src\nas uploaded\n", told.stderr
    assert (files / "src" / "made").stat().st_uid == isolation.uid
    assert (files / "src" / "words").stat().st_uid == 0, "what a job has already is not given to it again"


@needs_namespaces
async def test_a_notice_of_an_isolated_job_fails_with_its_code_and_is_ended_in_time(
    tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, spaces, mark = {"PATH": os.defpath}, tmp_path / "spaces", f"1003.{os.getpid()}"
    with pytest.raises(NoticeNotDelivered, match="code 3: 'oh'"):
        await run_isolated("echo oh; exit 3", "/", env, isolation, spaces)
    with pytest.raises(NoticeNotDelivered, match="gone"):
        await run_isolated("true", str(tmp_path / "gone"), env, isolation, spaces)
    monkeypatch.setattr(notice_delivery, "COMMAND_SECONDS_MAX", 1.0)
    with pytest.raises(NoticeNotDelivered, match="killed"):
        await run_isolated(f"trap '' TERM; sleep {mark}", "/", env, isolation, spaces)
    await until(lambda: not running(mark), "the end of all that it had begun")


@needs_namespaces
def test_whether_users_can_be_kept_apart_is_tried_for_real(tmp_path: Path) -> None:
    before = Path("/proc/self/mounts").read_text()
    assert probe.why_not_apart(tmp_path) == ""
    assert not list(tmp_path.iterdir())
    stage = tmp_path / "stage"
    stage.mkdir()
    command = (sys.executable, "-P", "-m", probe.PROGRAM, str(stage))
    tried = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", *command], capture_output=True, check=False, text=True, timeout=60
    )
    assert (tried.returncode, tried.stdout) == (1, "[Errno 1] unshare: Operation not permitted")
    assert Path("/proc/self/mounts").read_text() == before


def test_a_device_is_used_by_its_own_node_and_those_that_all_share(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "dri/card1", "dri/renderD129", "kfd"):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    told = tmp_path / "proc/driver/nvidia/gpus/0000:65:00.0/information"
    told.parent.mkdir(parents=True)
    told.write_text("Model: \t\t NVIDIA\nDevice Minor: \t 1\n")
    for name in ("card1", "renderD129"):
        (tmp_path / "sys/bus/pci/devices/0000:03:00.0/drm" / name).mkdir(parents=True)
    nvidia = Device(
        uuid="GPU-1", index=0, name="H100", memory_bytes=1, pci_bus_id="00000000:65:00.0", vendor=Vendor.NVIDIA
    )
    amd = Device(uuid="GPU-2", index=0, name="MI300", memory_bytes=1, pci_bus_id="0000:03:00.0", vendor=Vendor.AMD)
    assert nodes_of((nvidia,), tmp_path) == ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert nodes_of((amd,), tmp_path) == ("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129")


def test_what_the_settings_leave_open_follows_from_what_the_agent_can() -> None:
    def chosen(users: str, owner: str = "", why: str = "") -> AccountChoice:
        return chosen_accounts(users, owner, is_from_before=False, why_not_apart=lambda: why)

    assert chosen("auto") == AccountChoice(users="range")
    assert chosen("auto", owner="alice") == AccountChoice(users="range"), "apart, everybody's may run"
    assert chosen("auto", why="no") == AccountChoice(users="owner", why="no")
    assert chosen("auto", owner="alice", why="no") == AccountChoice(users="owner", owner="alice", why="no")
    assert chosen("owner", owner="alice") == AccountChoice(users="owner", owner="alice")
    for users in ("shared", "range", "accounts"):
        assert chosen(users, why="nobody asks") == AccountChoice(users=users)


def test_an_agent_of_before_shares_its_account_until_somebody_says_otherwise(tmp_path: Path) -> None:
    before = {"agent_id": "a", "incarnation": 1, "highest_term": 1}
    (tmp_path / "agent.json").write_text(json.dumps(before))
    for _ in range(2):
        with closing(DataFolder(tmp_path)) as folder:
            assert folder.is_from_before
            folder.next_identity()
    with closing(DataFolder(tmp_path / "new")) as folder:
        assert not folder.is_from_before
        folder.next_identity()
        assert not folder.is_from_before
    choice = chosen_accounts("auto", "", is_from_before=True, why_not_apart=lambda: pytest.fail("nobody asked"))
    assert choice == AccountChoice(users="shared", is_from_before=True)
    assert "--shared-account" in sentence_of(choice, "root")
    assert chosen_accounts("auto", "alice", is_from_before=True, why_not_apart=lambda: "no").owner == "alice"
    assert chosen_accounts("range", "", is_from_before=True, why_not_apart=lambda: "no").users == "range"


def test_another_users_job_is_refused_by_the_node_itself(tmp_path: Path) -> None:
    isolating = Isolating(IsolationSettings(), tmp_path, AccountChoice(users="owner"))
    with pytest.raises(AccountUnusable, match="until it knows"):
        isolating.of("alice", (), "")
    isolating.take_owner("alice")
    assert isolating.of("alice", (), "")[1] is None
    with pytest.raises(AccountUnusable, match="alice alone") as refused:
        isolating.of("bob", (), "")
    assert refused.value.refusal.reason is RefusalReason.NODE_OF_ANOTHER
