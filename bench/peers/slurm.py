"""Slurm: a controller, a node's daemon and munge, on loopback, with a configuration of this run's own. Needs root."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..fleet import START_SECONDS_MAX, free_port
from . import commands
from .peer import NotHere

LOOK_SECONDS = 0.02
ARRAY_MAX = 100_001

CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed
MaxArraySize={array_max}
MaxJobCount=200000
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class Slurm:
    """A cluster of one node."""

    folder: Path
    environment: dict[str, str]
    name: str = "Slurm"

    def starts_ms(self, stamp: Path, count: int, pause_s: float) -> list[float]:
        """See Peer; by `srun`."""
        return commands.starts_ms(["srun", "--ntasks=1", str(stamp)], self.environment, count, pause_s)

    def jobs_per_second(self, count: int) -> float:
        """See Peer; an array. A job has ended when the controller writes down that it is complete."""
        before, begin = self._completed(), time.perf_counter()
        self._batch(f"--array=1-{count}")
        self._wait(before + count)
        return count / (time.perf_counter() - begin)

    def submits_per_second(self, count: int) -> float:
        """See Peer; by `sbatch`."""
        before, begin = self._completed(), time.perf_counter()
        for _ in range(count):
            self._batch()
        seconds = time.perf_counter() - begin
        self._wait(before + count)
        return count / seconds

    def _batch(self, *options: str) -> None:
        commands.called(
            ["sbatch", "--output=/dev/null", "--chdir=/tmp", *options, "--wrap=/bin/true"], self.environment
        )

    def _completed(self) -> int:
        return commands.lines_of(self.folder / "completed")

    def _wait(self, completed: int) -> None:
        while self._completed() < completed:
            time.sleep(LOOK_SECONDS)


@contextmanager
def slurm(folder: Path, cpus: int) -> Iterator[Slurm]:
    """Start it; stopped at the end. Errors: NotHere."""
    packages = "slurmctld slurmd slurm-client munge"
    munged, controller, node = (commands.find(name, packages) for name in ("munged", "slurmctld", "slurmd"))
    commands.find("srun", packages)
    if os.geteuid() != 0:
        raise NotHere("Slurm is started as root alone here")
    folder.mkdir()
    host = os.uname().nodename.partition(".")[0]
    file = folder / "slurm.conf"
    file.write_text(
        CONFIGURATION.format(
            host=host,
            folder=folder,
            cpus=cpus,
            array_max=ARRAY_MAX,
            controller_port=free_port(),
            node_port=free_port(),
        )
    )
    (folder / "munge.key").write_bytes(secrets.token_bytes(1_024))
    (folder / "munge.key").chmod(0o400)
    running = Slurm(folder, {"SLURM_CONF": str(file)})
    with ExitStack() as stack:
        stack.enter_context(_started(folder, munged, *_munge_options(folder)))
        stack.enter_context(_started(folder, controller, "-D", "-f", str(file)))
        stack.enter_context(_started(folder, node, "-D", "-f", str(file), "-N", host))
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _is_idle(running):
            if time.monotonic() > deadline:
                raise TimeoutError("Slurm did not start")
            time.sleep(0.1)
        yield running


def _munge_options(folder: Path) -> Iterator[str]:
    yield from ("--foreground", "--force")
    for option, name in (("socket", "munge.socket"), ("key-file", "munge.key"), ("pid-file", "munge.pid")):
        yield f"--{option}={folder / name}"
    yield f"--seed-file={folder / 'munge.seed'}"
    yield f"--log-file={folder / 'munge.log'}"


@contextmanager
def _started(folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.out").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_SECONDS_MAX)


def _is_idle(running: Slurm) -> bool:
    try:
        return commands.called(["sinfo", "--noheader", "--format=%t"], running.environment).split() == ["idle"]
    except subprocess.CalledProcessError:
        return False
