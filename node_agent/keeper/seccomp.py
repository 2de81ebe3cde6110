"""The system calls that an isolated process is refused, by a filter that it and all that it starts keep for good.

The filter is a fixed BPF program for x86-64 and arm64. Calls by another ABI of the machine end the process: their
numbers mean other calls. What is refused answers EPERM. clone3 answers ENOSYS, since a filter cannot read the flags
that it is given by a pointer; the C library then takes clone.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF_0000, 0x0005_0000, 0x8000_0000

# Of <linux/filter.h> and <linux/seccomp.h>: load a word, compare, return; where in seccomp_data the words are.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ABI_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_CLONE_NEWUSER = 0x1000_0000
_X32_BIT = 0x4000_0000
"""In numbers of the x32 ABI, which calls itself x86-64."""

_ABIS = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

_Numbers = Mapping[str, tuple[int, int]]
"""System calls by name, with their numbers on x86-64 and on arm64."""

_ALWAYS: _Numbers = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
}
_OF_MOUNTS: _Numbers = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
}
_SETNS: _Numbers = {"setns": (308, 268)}
_BY_FLAGS: _Numbers = {"clone": (56, 220), "unshare": (272, 97)}
_CLONE3: _Numbers = {"clone3": (435, 435)}


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


def why_unfiltered(machine: str = platform.machine()) -> str:
    """Why no filter can be had on this machine, in a clause; empty where one can."""
    if machine not in _ABIS:
        return f"there is no filter for {machine}"
    # Without a program the kernel says that it is at a bad address, and EINVAL where it knows no filters.
    _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return "" if ctypes.get_errno() == errno.EFAULT else "its kernel has no filters for system calls"


def take_filter(*, has_user_namespaces: bool) -> None:
    """Refuse this process those calls from now on; nothing where there is no filter. OSError where it is refused.

    To be called when the process gains no more privileges (`no_new_privs`). With `has_user_namespaces` it may make
    those, and mount in them.
    """
    if why_unfiltered():
        return
    code = program_for(platform.machine(), has_user_namespaces=has_user_namespaces)
    program = _FilterProgram(len(code) // 8, code)
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_SECCOMP): {os.strerror(number)}")


def program_for(machine: str, *, has_user_namespaces: bool) -> bytes:
    """The BPF program of a machine that has one: eight bytes an instruction."""
    column = list(_ABIS).index(machine)

    def numbers(*tables: _Numbers) -> list[int]:
        return [both[column] for table in tables for both in table.values()]

    refused = numbers(_ALWAYS) if has_user_namespaces else numbers(_ALWAYS, _OF_MOUNTS, _SETNS)
    lines = [
        _line(_LOAD, _ABI_AT),
        _line(_IF_EQUAL, _ABIS[machine], then=1),
        _line(_RETURN, _KILL_PROCESS),
        _line(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        lines += [_line(_IF_AT_LEAST, _X32_BIT, otherwise=1), _line(_RETURN, _ERRNO | errno.ENOSYS)]
    for number in refused:
        lines += _returning(number, _ERRNO | errno.EPERM)
    if not has_user_namespaces:
        lines += _returning(numbers(_CLONE3)[0], _ERRNO | errno.ENOSYS)
        for number in numbers(_BY_FLAGS):
            lines += [
                _line(_IF_EQUAL, number, otherwise=4),
                _line(_LOAD, _FIRST_ARGUMENT_AT),
                _line(_IF_ANY_BIT, _CLONE_NEWUSER, otherwise=1),
                _line(_RETURN, _ERRNO | errno.EPERM),
                _line(_RETURN, _ALLOW),
            ]
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _returning(number: int, answer: int) -> Sequence[bytes]:
    """Answer the call of this number so."""
    return _line(_IF_EQUAL, number, otherwise=1), _line(_RETURN, answer)


def _line(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction: `then` and `otherwise` are how many are passed over."""
    return struct.pack("=HBBI", code, then, otherwise, value)
