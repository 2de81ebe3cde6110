"""What an isolated process sees of its machine: mounts of its own, made by the first process of its namespaces.

    /proc                   its own processes
    /tmp, /var/tmp          its own, in its space on the disk
    /dev                    the common nodes, and the devices that it was given
    /dev/shm                its own
    /run/gpufleet/home      its own, in its space
    /run/gpufleet/files     the files that go with it
    /run/gpufleet/environment   what it begins in, to be read
    /etc/passwd, /etc/group     the machine's, and a name for its own number where the machine has none
    the agent's folder …    empty
    control groups          to be read

Nothing of it is seen from outside: mounts that are made here stay here, and those of the machine still come in.
"""

import contextlib
import os
import shutil
import stat
from pathlib import Path

from ..control_groups.files import mounts_of
from ..core.launch import ENVIRONMENT_PATH, FILES_PATH, HOME_PATH, SPACE_PATH, Isolation
from .linux import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    MS_BIND,
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    mount,
    unshare,
)

COMMON_NODES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
SMALL = "mode=755,size=1m"
"""Of a file system that only root writes to."""

HOME, TEMPORARY, TEMPORARY_KEPT = "home", "tmp", "var-tmp"
"""The folders of a space."""

PASSWD, GROUP = "passwd", "group"
"""Its files: what getpwuid(3) and getgrgid(3) find."""

SHELL = "/bin/sh"
NAMES_BYTES_MAX = 16 * 1024**2


def make_space(space: str, isolation: Isolation) -> None:
    """Make the folders of an attempt, on the disk. OSError when they cannot be made."""
    Path(space).mkdir(0o711)
    for name in (HOME, TEMPORARY, TEMPORARY_KEPT):
        Path(space, name).mkdir(0o700)
        os.chown(f"{space}/{name}", isolation.uid, isolation.gid)
    if isolation.account:
        _name_account(space, isolation)


def _name_account(space: str, isolation: Isolation) -> None:
    """Write the machine's accounts with one more, so that programs which ask for the name of their user get one.

    A name that the machine has given to somebody else is not given again: the number stands in it then.
    """
    passwd, group = (_names_of(f"/etc/{name}") for name in (PASSWD, GROUP))
    taken = {line.partition(":")[0] for line in (*passwd, *group)}
    name = isolation.account if isolation.account not in taken else f"{isolation.account}-{isolation.uid}"
    passwd.append(f"{name}:x:{isolation.uid}:{isolation.gid}:{isolation.account}:{HOME_PATH}:{SHELL}")
    group.append(f"{name}:x:{isolation.gid}:")
    for file, lines in ((PASSWD, passwd), (GROUP, group)):
        path = Path(space, file)
        path.write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")
        path.chmod(0o644)


def _names_of(file: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError), Path(file).open(errors="surrogateescape") as opened:
        return opened.read(NAMES_BYTES_MAX).splitlines()
    return []


def build(stage: str) -> int:
    """Take what nobody else sees: whatever process this is for. Answers the machine's /dev, open.

    `stage` is an empty folder to build on. To be called by the first process of a namespace of process ids.
    """
    unshare(CLONE_NEWNS | CLONE_NEWIPC)
    mount("", "/", flags=MS_REC | MS_SLAVE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for place, _, _ in mounts_of(Path("/proc/self/mountinfo").read_text()):
        # Else a job that is root, without any capability, could raise its own limits: the files are root's.
        try:
            mount("", place, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        except PermissionError:  # a container whose mounts stay as they were made
            _hide(place, "size=4k")
    devices_fd = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mount("tmpfs", stage, "tmpfs", MS_NOSUID | MS_NOEXEC, SMALL)
    for name in COMMON_NODES:
        _show_node(f"/dev/{name}", f"{stage}/{name}")
    for name, target in LINKS.items():
        Path(stage, name).symlink_to(target)
    Path(stage, "pts").mkdir()
    mount("/dev/pts", f"{stage}/pts", flags=MS_BIND)
    Path(stage, "shm").mkdir()
    mount("tmpfs", f"{stage}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    mount(stage, "/dev", flags=MS_MOVE)
    mount("tmpfs", SPACE_PATH, "tmpfs", MS_NOSUID | MS_NODEV, SMALL)
    return devices_fd


def furnish(devices_fd: int, space: str, isolation: Isolation, *, are_files_new: bool = True) -> None:
    """Give it what is this process's alone, and hide what is nobody's. OSError when that is not possible.

    Its files become its account's where they are new; of others they are that already, and may change meanwhile.
    """
    with contextlib.ExitStack() as opened:

        def source(path: str) -> str:
            """Name a folder or file so that it is found also when something else lies over it by now."""
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            return f"/proc/self/fd/{fd}"

        places = {"/tmp": source(f"{space}/{TEMPORARY}")}
        if Path("/var/tmp").is_dir():
            places["/var/tmp"] = source(f"{space}/{TEMPORARY_KEPT}")
        places[HOME_PATH] = source(f"{space}/{HOME}")
        Path(HOME_PATH).mkdir()
        if isolation.files:
            if are_files_new:
                give_all(isolation.files, isolation)
            places[FILES_PATH] = source(isolation.files)
            Path(FILES_PATH).mkdir()
        if isolation.environment:
            places[ENVIRONMENT_PATH] = source(isolation.environment)
            Path(ENVIRONMENT_PATH).mkdir()
        for name in (PASSWD, GROUP) if isolation.account else ():
            if Path(f"/etc/{name}").exists():
                places[f"/etc/{name}"] = source(f"{space}/{name}")
        for path in isolation.devices:
            _give_node(devices_fd, path, isolation)
        for folder in isolation.hidden:
            with contextlib.suppress(FileNotFoundError):
                _hide(folder, "mode=700,size=4k")
        for place, folder in places.items():
            mount(folder, place, flags=MS_BIND)
        if isolation.environment:
            read_only = 0 if isolation.makes_environment else MS_RDONLY
            mount("", ENVIRONMENT_PATH, flags=MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | read_only)


def remove_space(space: str) -> None:
    """Remove it, whatever the attempt made of it."""
    shutil.rmtree(space, ignore_errors=True)


def _hide(folder: str, options: str) -> None:
    """Have it empty, and nothing to be made there."""
    mount("tmpfs", folder, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, options)


def _show_node(path: str, target: str) -> None:
    """Show a node of the machine under another name; one that the machine lacks is lacking there, too."""
    if Path(path).exists():
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        mount(path, target, flags=MS_BIND)


def _give_node(devices_fd: int, path: str, isolation: Isolation) -> None:
    """Make a node of a device that this account alone may open, whosever the machine's own is."""
    name = path.removeprefix("/dev/")
    try:
        found = os.stat(name, dir_fd=devices_fd)
    except OSError:
        return  # a driver without this node
    Path("/dev", name).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(f"/dev/{name}", stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev)
        os.chown(f"/dev/{name}", isolation.uid, isolation.gid)
    except PermissionError:  # a container that may make none
        _show_node(f"/proc/self/fd/{devices_fd}/{name}", f"/dev/{name}")


def give_all(folder: str, isolation: Isolation) -> None:
    """Give an account a folder with all in it, which was just made: nothing of the account's has been in it."""
    os.chown(folder, isolation.uid, isolation.gid)
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.lchown(f"{path}/{name}", isolation.uid, isolation.gid)
