"""What of the kernel an isolated job is refused: by the program itself for each machine, and by a real kernel."""

from __future__ import annotations

import errno
import platform
import struct

import pytest

from node_agent.keeper.seccomp import program_for, why_unfiltered

ABIS = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
OTHER_ABIS = {"x86_64": 0x4000_0003, "aarch64": 0x4000_0028}
"""Those of the same machine with 32 bits."""
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF_0000, 0x8000_0000, 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS
NEWUSER, NEWNS, THREAD = 0x1000_0000, 0x0002_0000, 0x003D_0F00

CALLS = {
    "x86_64": {
        "read": 0, "execve": 59, "clone": 56, "unshare": 272, "clone3": 435, "setns": 308, "keyctl": 250, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "kexec_load": 246, "mount": 165, "fsopen": 430, "pivot_root": 155,
    },
    "aarch64": {
        "read": 63, "execve": 221, "clone": 220, "unshare": 97, "clone3": 435, "setns": 268, "keyctl": 219, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "kexec_load": 104, "mount": 40, "fsopen": 430, "pivot_root": 41,
    },
}  # fmt: skip
NEVER = ("keyctl", "bpf", "perf_event_open", "userfaultfd", "kexec_load")
OF_NAMESPACES = ("mount", "fsopen", "pivot_root", "setns")


def answer(program: bytes, abi: int, number: int, argument: int = 0) -> int:
    """What the kernel's interpreter makes of a call, as far as the program needs it."""
    data = struct.pack("=IIQ6Q", number, abi, 0, argument, 0, 0, 0, 0, 0)
    at, word = 0, 0
    while True:
        code, then, otherwise, value = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        match code:
            case 0x20:
                (word,) = struct.unpack_from("=I", data, value)
            case 0x06:
                return int(value)
            case _:
                is_so = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[code]
                at += then if is_so else otherwise


@pytest.mark.parametrize("machine", sorted(ABIS))
@pytest.mark.parametrize("has_user_namespaces", [False, True])
def test_a_program_refuses_exactly_what_it_should(machine: str, has_user_namespaces: bool) -> None:
    program, calls = program_for(machine, has_user_namespaces=has_user_namespaces), CALLS[machine]

    def says(name: str, argument: int = 0) -> int:
        return answer(program, ABIS[machine], calls[name], argument)

    assert {says(name) for name in ("read", "execve")} == {ALLOW}
    assert {says(name) for name in NEVER} == {EPERM}
    of_namespaces = ALLOW if has_user_namespaces else EPERM
    assert {says(name) for name in OF_NAMESPACES} == {of_namespaces}
    assert [says(name, NEWUSER | NEWNS) for name in ("clone", "unshare")] == [of_namespaces] * 2
    assert [says(name, THREAD) for name in ("clone", "unshare")] == [ALLOW] * 2
    assert says("clone3") == (ALLOW if has_user_namespaces else ENOSYS)
    assert answer(program, OTHER_ABIS[machine], calls["read"]) == KILL
    if machine == "x86_64":
        assert answer(program, ABIS[machine], calls["mount"] | 0x4000_0000) == ENOSYS, "x32"


def test_a_machine_that_has_no_filter_says_so() -> None:
    assert why_unfiltered("riscv64") == "there is no filter for riscv64"
    if platform.machine() in ABIS:
        assert why_unfiltered() == ""
