"""What the keeper needs of Linux and Python lacks: a timer that counts suspended time, subreaping, inotify."""

import contextlib
import ctypes
import errno
import os
import platform
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_FD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_IN_DELETE = 0x200
_IN_MOVE_SELF = 0x800
_IN_ONLYDIR = 0x01000000

_libc = ctypes.CDLL(None, use_errno=True)

KEEPERS_OUT_OF_MEMORY_SCORE = -500
"""Added to what the kernel chooses by, when memory is short, as of container engines: a job goes before its keeper."""

_OUT_OF_MEMORY_SCORE = Path("/proc/self/oom_score_adj")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


def boottime_us() -> int:
    """Answer CLOCK_BOOTTIME in microseconds: monotonic, counts suspended time, the same for every process."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def boot_id() -> str:
    """Answer the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process instead of init's."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise _last_error("prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Have this process killed when the thread that forked it ends."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise _last_error("prctl(PR_SET_PDEATHSIG)")


def lower_out_of_memory_score() -> None:
    """Have the kernel end others before this process; nothing comes of it without the right to (CAP_SYS_RESOURCE)."""
    with contextlib.suppress(OSError):
        if int(_OUT_OF_MEMORY_SCORE.read_bytes()) > KEEPERS_OUT_OF_MEMORY_SCORE:
            _OUT_OF_MEMORY_SCORE.write_text(str(KEEPERS_OUT_OF_MEMORY_SCORE))


def give_up_out_of_memory_score() -> None:
    """Be as likely to be ended as any process, and so all that begins here: no job is to outlive its keeper."""
    with contextlib.suppress(OSError):
        if int(_OUT_OF_MEMORY_SCORE.read_bytes()) < 0:
            _OUT_OF_MEMORY_SCORE.write_text("0")


def name_process(name: str) -> None:
    """Be shown under this name, of 15 bytes at most, by what lists processes."""
    _libc.prctl(_PR_SET_NAME, name.encode("ascii"), 0, 0, 0)


class BoottimeTimer:
    """A file descriptor that becomes readable at an instant of CLOCK_BOOTTIME, also right after a suspend."""

    def __init__(self) -> None:
        self.fd = int(_libc.timerfd_create(time.CLOCK_BOOTTIME, _FD_FLAGS))
        if self.fd < 0:
            raise _last_error("timerfd_create")

    def arm(self, at_us: int | None) -> None:
        """Become readable at this instant, or at once when it has passed; None: never."""
        value = _Timespec() if at_us is None else _Timespec(*divmod(max(at_us, 1) * 1000, 1_000_000_000))
        spec = _Itimerspec(_Timespec(), value)
        if _libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise _last_error("timerfd_settime")

    def clear(self) -> None:
        """Take the readiness back."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


def watch_for_deletions(directory: Path) -> int:
    """Answer a descriptor that becomes readable when something in this directory is deleted, or it is moved.

    OSError when the account has used up its watches.
    """
    fd = int(_libc.inotify_init1(_FD_FLAGS))
    if fd < 0:
        raise _last_error("inotify_init1")
    mask = _IN_DELETE | _IN_MOVE_SELF | _IN_ONLYDIR
    if _libc.inotify_add_watch(fd, os.fsencode(directory), mask) < 0:
        error = _last_error("inotify_add_watch")
        os.close(fd)
        raise error
    return fd


MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE, MS_SLAVE = 0x1000, 0x2000, 0x4000, 0x40000, 0x80000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 0x2, 0x8
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES_MAX = 64
"""More than any kernel knows; it says which is the last."""


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def unshare(flags: int) -> None:
    """Leave namespaces that are shared with the parent. OSError where that is not allowed."""
    if _libc.unshare(flags) != 0:
        raise _last_error("unshare")


def enter_namespace(fd: int, kind: int) -> None:
    """Have what this descriptor is: of process ids, for the children to come. OSError where that is not allowed."""
    if _libc.setns(fd, kind) != 0:
        raise _last_error("setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2). OSError names the target."""
    told = (os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags))
    if _libc.mount(*told, options.encode() or None) != 0:
        raise _last_error(f"mount on {target}")


def unmount(target: str) -> None:
    """umount2(2): all that is mounted there is gone at once from every path. OSError names the target."""
    if _libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
        raise _last_error(f"unmount {target}")


@contextlib.contextmanager
def acting_as(uid: int, gid: int, groups: tuple[int, ...]) -> Iterator[None]:
    """Have the rights of this account, and no capability in effect, until the block ends. For a process of one thread.

    OSError where that is not allowed.
    """
    before = os.getgroups(), os.getegid(), os.geteuid()
    try:
        os.setgroups(groups)
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(before[2])
        os.setegid(before[1])
        os.setgroups(before[0])


_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81, "s390x": 206}
"""The number of setgroups(2) by machine. The kernel sets one thread's; the C library would set those of all threads."""
_PASS_OVER_RIGHTS = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root reads what it likes."""


def take_file_rights(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Have, in this thread alone and until it ends, the rights of this account on files, and none of root's on them.

    OSError where that is not possible. For a thread that is made for it, and does nothing else: what it would import
    from now on, that account may not be able to read.
    """
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known for {platform.machine()}")
    listed = (ctypes.c_uint32 * len(groups))(*groups)
    if _libc.syscall(number, len(groups), listed) != 0:
        raise _last_error("setgroups")
    for change, wanted in ((_libc.setfsgid, gid), (_libc.setfsuid, uid)):
        change(ctypes.c_uint32(wanted))
        if (
            ctypes.c_uint32(change(ctypes.c_uint32(0xFFFF_FFFF))).value != wanted
        ):  # it answers what is, and fails silently
            raise OSError(errno.EPERM, f"the rights of {wanted} on files cannot be taken on")
    if uid and _capabilities_in_effect() & _PASS_OVER_RIGHTS:  # the kernel has taken them with the account
        raise OSError(errno.EPERM, "root's rights on files cannot be laid down")


def _capabilities_in_effect() -> int:
    # No codec: it would be a module to import, which this account may not read.
    status = Path("/proc/thread-self/status").read_bytes()
    return int(next(line for line in status.splitlines() if line.startswith(b"CapEff:")).split()[1], 16)


def give_up_privileges(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Be this account and nobody else for ever: no capabilities, and no program that gives any back."""
    for number in range(CAPABILITIES_MAX):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # the last that this kernel knows was the one before
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _last_error("prctl(PR_SET_NO_NEW_PRIVS)")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    if _libc.capset(ctypes.byref(header), (ctypes.c_uint32 * 6)()) != 0:
        raise _last_error("capset")


def sync_file_system(folder: Path) -> None:
    """Have all that was written to the file system of a folder on its disk. OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) != 0:
            raise _last_error("syncfs")
    finally:
        os.close(fd)


def _last_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
