"""A systemd of a test's own: process 1 of its namespaces, which knows no unit of this machine and changes nothing.

What it would do to a machine (clean /tmp, set the kernel's values, start what is installed) is done by units, and all
of those are hidden behind empty folders. The interpreter and gpufleet are shown where other accounts may read them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services.installation import PLACE, lay_out

PR_SET_PDEATHSIG = 1
DEADLINE_SECONDS = 120.0
PLACES_OF_SYSTEMD = (Path("/usr/lib/systemd/systemd"), Path("/lib/systemd/systemd"))
SYSTEMD = next((each for each in PLACES_OF_SYSTEMD if each.exists()), None)
HIDDEN = (
    "/etc/systemd",
    "/etc/gpufleet",
    "/usr/lib/systemd/system",
    "/usr/lib/systemd/system-generators",
    "/usr/lib/systemd/system-preset",
    "/usr/lib/tmpfiles.d",
    "/usr/lib/sysctl.d",
    "/var/lib/private",
    "/var/lib/gpufleet",
    "/tmp",
)
TARGETS = ("sysinit", "basic", "multi-user", "network-online", "shutdown", "umount")

BOOT = """
set -e
work=$1; systemd=$2; installed=$3; python=$4
# A list has a line for each of its words, which may hold spaces.
IFS='
'
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up
mkdir -p "$work/python"
mount --rbind "$python" "$work/python"
number=0
for packages in $BORROWED; do
    number=$((number + 1))
    mkdir -p "$work/installed/borrowed/$number"
    mount --rbind "$packages" "$work/installed/borrowed/$number"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/outside /run/systemd "$installed"
mount --rbind "$work" /run/outside
mount --rbind /run/outside/installed "$installed"
# A folder above the interpreter that is closed to others is shown as an open one, with nothing else in it.
for closed in $CLOSED; do
    mount -t tmpfs -o mode=755 tmpfs "$closed"
done
mkdir -p "$python"
mount --rbind /run/outside/python "$python"
for folder in $HIDDEN; do
    mkdir -p "$folder"
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
chmod 1777 /tmp; chmod 700 /var/lib/private; mkdir -p /etc/systemd/system /var/lib/private/gpufleet
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then mount -t cgroup2 none /sys/fs/cgroup; fi
for target in $TARGETS; do
    printf '[Unit]\\nDefaultDependencies=no\\n' >"/usr/lib/systemd/system/$target.target"
done
# Shared among its units alone: how credentials come to them.
mount --make-rshared /
# Nothing here keeps a journal.
mkdir /etc/systemd/system/service.d
printf '[Service]\\nStandardError=append:/run/outside/services.log\\n' >/etc/systemd/system/service.d/log.conf
export container=test
exec "$systemd" --system --log-target=null --show-status=no --unit=multi-user.target
"""


class Machine:
    """What is typed on it: `type` by a shell, as root, with the gpuctl that is installed there."""

    def __init__(self, process: int, folder: Path) -> None:
        self._inside = ("nsenter", "--target", str(process), "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup")
        self._folder = folder

    def type(self, line: str, *, code: int = 0) -> str:
        """What the line printed; it must end with this code."""
        environment = {
            "PATH": f"{PLACE}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/run/outside",
            "LANG": "C.UTF-8",
            "SYSTEMD_PAGER": "",
            "COLUMNS": "200",
        }
        done = subprocess.run(
            [*self._inside, "/bin/sh", "-c", f"cd /run/outside; {line}"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=DEADLINE_SECONDS,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{line}\n{done.returncode}: {said}\n{self._logs()}"
        return said

    def property(self, unit: str, name: str) -> str:
        """What systemd says of a unit."""
        return self.type(f"systemctl show --value --property {name} {unit}").strip()

    def until(self, what: str, line: str, wanted: str) -> None:
        """Return once the line prints that."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.type(f"{line} || true").strip() != wanted:
            assert time.monotonic() < deadline, f"it never came to this: {what}\n{self._logs()}"
            time.sleep(0.05)

    def _logs(self) -> str:
        """The ends of the programs' logs."""
        line = "tail -n 20 /var/lib/gpufleet/*/logs/*.log /run/outside/services.log"
        return subprocess.run([*self._inside, "sh", "-c", line], capture_output=True, text=True, check=False).stdout


def why_no_machine() -> str:
    """Why there can be none here; empty where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a systemd of one's own needs root on Linux"
    missing = [name for name in ("unshare", "nsenter", "systemctl", "mount", "ip") if shutil.which(name) is None]
    return f"there is no {', '.join(missing) or 'systemd'} here" if missing or SYSTEMD is None else ""


@contextmanager
def running_machine(folder: Path) -> Iterator[Machine | None]:
    """One that is up; None where its systemd does not start, as in a container without rights. Ended with all in it."""
    python = Path(sys.base_prefix).resolve()
    groups = _control_groups(folder.name)
    closed = map(str, _closed_above(python))
    borrowed = map(str, lay_out(folder / "installed"))
    lists = {"HIDDEN": HIDDEN, "TARGETS": TARGETS, "CLOSED": closed, "BORROWED": borrowed}
    environment = {"PATH": os.environ["PATH"]} | {name: "\n".join(words) for name, words in lists.items()}
    log = (folder / "boot.log").open("wb")
    process = subprocess.Popen(
        [
            *("unshare", "--pid", "--mount", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"),
            *("sh", "-c", BOOT, "boot", str(folder), str(SYSTEMD), str(PLACE), str(python)),
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        preexec_fn=lambda: _enter(groups),
    )
    log.close()
    try:
        yield _booted(process, folder)
    finally:
        # Process 1 of the namespace goes with it, and all in it with that.
        process.kill()
        process.wait()
        for group in groups:
            _remove(group)


def _booted(process: subprocess.Popen[bytes], folder: Path) -> Machine | None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(AssertionError, OSError, ValueError, IndexError):
            first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
            machine = Machine(first, folder)
            if "running" in machine.type("systemctl is-system-running || true"):
                return machine
        time.sleep(0.05)
    return None


def _closed_above(place: Path) -> Sequence[Path]:
    closed = [folder for folder in place.parents if not folder.stat().st_mode & 0o001]
    return closed[-1:]  # the topmost


def _control_groups(name: str) -> list[Path]:
    roots = [Path("/sys/fs/cgroup")] if Path("/sys/fs/cgroup/cgroup.procs").exists() else []
    if not roots:
        roots = [each for each in sorted(Path("/sys/fs/cgroup").iterdir()) if (each / "cgroup.procs").exists()]
    groups = []
    for root in {each.resolve() for each in roots}:
        group = root / f"test-{os.getpid()}-{name}"
        with suppress(OSError):
            group.mkdir(exist_ok=True)
            if (group / "cpuset.cpus").exists():
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((root / file).read_text())
            groups.append(group)
    return groups


def _enter(groups: Sequence[Path]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # A machine does not outlive tests that are killed.
    for group in groups:
        with suppress(OSError):
            (group / "cgroup.procs").write_text(str(os.getpid()))


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
