"""The settings of the node agent: the one table that flags, variables, agent.toml and its template follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gpufleet.config.kinds import (
    ADDRESSES,
    BOOLEAN,
    DURATION,
    INTEGER,
    LABELS,
    PATH,
    SIZE,
    TEXT,
    TEXTS,
    one_of,
    some_of,
)
from gpufleet.config.settings import data_folder, section, setting
from gpufleet.config.shared_settings import LogSettings, event_loop
from gpufleet.net.addresses import Address

AUTO, SHARED, OWNER, RANGE, ACCOUNTS = "auto", "shared", "owner", "range", "accounts"
"""How users' jobs are kept apart: as the agent can, not at all, by taking those of one user alone, by a uid for each
user, by the accounts of the machine."""

MEMORY, CPUS, PROCESSES = "memory", "cpus", "processes"
"""What a job can be kept within."""

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings:
    """Output on the node that the scheduler has not confirmed as stored yet."""

    attempt_bytes_max: int = setting(
        GIB,
        "When an attempt has so much waiting, it is held up until the scheduler has read it.",
        SIZE,
        low=1_000_000,
        high=1024 * GIB,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """Whom the node tells of its jobs: see docs/notifications.md."""

    allow_local: bool = setting(
        False,
        "Let --notify name a URL of this machine at any of its addresses, of its link, or of a cloud's metadata.",
        BOOLEAN,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSettings:
    """Whose processes jobs are, and what they reach: see docs/isolation.md."""

    users: str = setting(
        AUTO,
        "As whom jobs run: the agent, all jobs (shared) or those of its owner alone (owner), a uid a user (range), or "
        " the user's account (accounts). auto: range where the agent is root and can keep users apart, else owner.",
        one_of(AUTO, SHARED, OWNER, RANGE, ACCOUNTS),
    )
    uid_first: int = setting(
        1_900_000_000,
        "With users = range: the first of the uids that are given to users, which no account may have.",
        INTEGER,
        low=1_000,
        high=4_000_000_000,
    )
    uid_count: int = setting(65_536, "So many users get a uid.", INTEGER, low=1, high=1_000_000)
    uid_claims: str = setting(
        "/run/gpufleet-uids",
        "With users = range: the folder in which agents of one machine say which uids are theirs. Where uid_first is "
        "left alone, an agent takes the next uids that are no other's.",
        TEXT,
    )
    allow_root: bool = setting(
        False,
        "With users = accounts: let jobs of the user root run as root. They are kept apart, and have no capabilities.",
        BOOLEAN,
    )
    user_namespaces: bool = setting(
        False,
        "Let isolated jobs make user namespaces and mount in them, as bubblewrap and podman do. Inside of one a job "
        "has every capability, so that more of the kernel can be attacked.",
        BOOLEAN,
    )
    limits: tuple[str, ...] | None = setting(
        None,
        "What control groups keep jobs within: the memory and the CPUs that they reserve, and processes_max.",
        some_of(MEMORY, CPUS, PROCESSES),
        default_text="all three where users is not shared, else none",
    )
    processes_max: int = setting(
        4096,
        "So many processes and threads a job may have at once, where its limits hold.",
        INTEGER,
        low=16,
        high=4_194_304,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Files of jobs that the node keeps for the next job that has the same."""

    cache_bytes_max: int = setting(
        20 * GIB,
        "Beyond this the files that were not used for the longest go. What a job has is a copy of its own.",
        SIZE,
        low=0,
        reloadable=True,
    )
    keep_results: timedelta = setting(
        7 * DAY,
        "What jobs left (--download) and the scheduler does not store is kept so long; then it counts as lost.",
        DURATION,
        low=HOUR,
        high=365 * DAY,
        reloadable=True,
    )
    results_bytes_max: int = setting(
        20 * GIB,
        "Beyond this, what was kept so for the longest counts as lost, once it was refused for an hour.",
        SIZE,
        low=0,
        reloadable=True,
    )
    shared_root: Path | None = setting(
        None,
        "The folder that people who submit see, too: files of jobs that lie in it are read there, and not fetched.",
        PATH,
        default_text="none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupSettings:
    """Python environments that jobs begin in: see docs/environments.md."""

    time_limit: timedelta = setting(
        timedelta(minutes=30),
        "An environment that is not made after this is given up: SETUP_FAILED.",
        DURATION,
        low=SECOND,
        high=timedelta(days=1),
        reloadable=True,
    )
    cache_limit: int = setting(
        20 * GIB,
        "Beyond this the environments that were not used for the longest go, but none that a job has. "
        "One that is larger is not kept: SETUP_FAILED.",
        SIZE,
        low=0,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """Jobs in containers: see docs/containers.md."""

    engine: str = setting(
        AUTO,
        "The engine: unix://PATH of its socket, none, or auto: DOCKER_HOST, Docker's own, or Podman's.",
        TEXT,
    )
    mounts: tuple[str, ...] = setting(
        (),
        'What --mount may show of this machine, and all below it: ["/data:ro", "/scratch"]; :ro is to be read alone.',
        TEXTS,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the node's devices are watched."""

    interval: timedelta = setting(
        2 * SECOND,
        "How often memory, utilisation and power of each device are read while nothing runs.",
        DURATION,
        low=SECOND / 5,
        high=5 * SECOND,
        reloadable=True,
    )
    busy_interval: timedelta = setting(
        SECOND,
        "The same while a job runs, and how often what its processes use is read.",
        DURATION,
        low=SECOND / 5,
        high=5 * SECOND,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """`gpuctl agent` and agent.toml."""

    scheduler: tuple[Address, ...] = setting(
        (Address("127.0.0.1"),),
        "The scheduler's address, or several of one team's, tried in turn.",
        ADDRESSES,
        variable="GPUCTL_SCHEDULER",
    )
    owner: str = setting(
        "",
        "Whose jobs alone the node takes, where it does not keep users apart, nor was told to share its account.",
        TEXT,
        default_text="the user of the token with which it joined, else who made the fleet",
    )
    node_id: str = setting("", "The node's name, unique in the team.", TEXT, default_text="the host name")
    data: Path = data_folder("agent", "The folder of the spool and logs, on a local disk.")
    token_file: Path | None = setting(
        None,
        "The file with the agent's token.",
        PATH,
        default_text="GPUCTL_TOKEN, or a scheduler's on this machine",
    )
    ca_file: Path | None = setting(
        None,
        "The authority that signed the scheduler's certificate, PEM.",
        PATH,
        default_text="the system's authorities",
    )
    client_cert_file: Path | None = setting(
        None,
        "The node's own certificate with its key, PEM, of mode 0600, for a scheduler that asks for one.",
        PATH,
        default_text="none",
    )
    job_cert_file: Path | None = setting(
        None,
        "The certificate with its key that jobs and workers of this node call such a scheduler with, of identity job; "
        "jobs must be able to read it.",
        PATH,
        default_text="none",
    )
    insecure: bool = setting(
        False,
        "Speak to a scheduler on another machine without encryption. Only for networks you trust.",
        BOOLEAN,
    )
    virtual_gpus: int = setting(
        0,
        "Offer so many virtual GPUs of 16 GB that run on the CPU, to try things out.",
        INTEGER,
        low=0,
        high=64,
    )
    virtual_load: Path | None = setting(
        None,
        "A recorded load that virtual GPUs show, over and over: a file of JSON lines.",
        PATH,
        default_text="none: they are idle",
    )
    cpus: int | None = setting(
        None, "Offer so many CPUs.", INTEGER, low=1, high=16_384, default_text="all of the machine"
    )
    advertise: str = setting(
        "",
        "The host by which other nodes reach this one.",
        TEXT,
        default_text="the address that the scheduler sees",
    )
    labels: tuple[tuple[str, str], ...] = setting((), "Names by which jobs can choose nodes.", LABELS, reloadable=True)
    event_loop: str = event_loop()
    log: LogSettings = section(LogSettings, "The agent's own log.")
    spool: SpoolSettings = section(SpoolSettings, "Output that the scheduler has not confirmed as stored yet.")
    files: CacheSettings = section(CacheSettings, "Files of jobs that are kept for the next one; see docs/files.md.")
    setup: SetupSettings = section(SetupSettings, "Python environments of jobs; see docs/environments.md.")
    sampling: SamplingSettings = section(SamplingSettings, "How the node's devices are watched.")
    notify: NotifySettings = section(NotifySettings, "Whom the node tells of its jobs.")
    containers: ContainerSettings = section(ContainerSettings, "Jobs in containers; see docs/containers.md.")
    isolation: IsolationSettings = section(IsolationSettings, "Whose processes jobs are; see docs/isolation.md.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Values that do not fit together."""
        if self.insecure and self.ca_file is not None:
            yield "insecure", "an authority for TLS is set too, in ca_file; choose one"
        engine = self.containers.engine
        if engine not in (AUTO, "none") and not engine.startswith("unix:///"):
            yield "containers.engine", f"{engine[:80]!r} is not auto, none or unix:///PATH"
        for text in self.containers.mounts:
            path = Path(text.removesuffix(":ro"))
            if not path.is_absolute() or ".." in path.parts or ":" in str(path) or path == Path("/"):
                yield "containers.mounts", f'{text[:200]!r} is not an absolute path such as "/data" or "/data:ro"'
        if self.files.shared_root is not None and self.files.shared_root.absolute() == Path("/"):
            yield "files.shared_root", "that is all of the machine; name a folder that people mount, too"
