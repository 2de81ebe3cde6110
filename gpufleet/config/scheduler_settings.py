"""The settings of the scheduler: the table that flags, variables, scheduler.toml and its template follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gpufleet.config.band_settings import BAND_SETTINGS, BandSettings
from gpufleet.config.file_store import file_store_place, trouble_with_endpoint
from gpufleet.config.handler_settings import HANDLERS, Handlers
from gpufleet.config.kinds import BOOLEAN, DURATION, INTEGER, NUMBER, PATH, SIZE, TEXT, one_of
from gpufleet.config.login_settings import LoginSettings, OidcSettings, login_conflicts
from gpufleet.config.routing_settings import CONTENT_TYPES, DEFAULT_MODES, ContentTypes
from gpufleet.config.session_numbers import SESSIONS, ByModel
from gpufleet.config.settings import data_folder, section, setting
from gpufleet.config.shared_settings import LogSettings, MetricsSettings, event_loop, listening_conflicts
from gpufleet.net.addresses import DEFAULT_PORT
from gpufleet.net.limits import MESSAGE_BYTES_MAX

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
GB = 10**9
GIB = 2**30

AUTO, MANUAL = "auto", "manual"
"""Whether nodes that join are approved by themselves, or by a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The server's certificate; without one it listens on loopback only, unless told to be insecure."""

    cert_file: Path | None = setting(None, "The server's certificate and its chain, PEM.", PATH, default_text="no TLS")
    key_file: Path | None = setting(
        None, "The private key of the certificate, PEM, of mode 0600.", PATH, default_text="no TLS"
    )
    client_ca_file: Path | None = setting(
        None,
        "Take connections only of clients with a certificate that this authority signed, and calls only by a token of "
        "who that certificate names; PEM. See docs/network.md.",
        PATH,
        default_text="no certificate of clients is asked for",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """When a silent node is suspected, counted as lost, and its jobs are given to others."""

    heartbeat: timedelta = setting(2 * SECOND, "How often an agent reports.", DURATION, low=SECOND / 10, high=MINUTE)
    missed_heartbeats_max: int = setting(
        3, "After so many missed reports a node gets no new work.", INTEGER, low=1, high=100, reloadable=True
    )
    lease: timedelta = setting(
        MINUTE,
        "A node that is silent for this long is lost: its services are replaced.",
        DURATION,
        low=SECOND,
        high=DAY,
        reloadable=True,
    )
    approve: str = setting(
        AUTO,
        "Whether a node that joins is given work at once, or after gpuctl nodes approve.",
        one_of(AUTO, MANUAL),
        reloadable=True,
    )
    requeue_fence: timedelta = setting(
        10 * MINUTE,
        "Only when a node was silent for this long are its batch jobs started elsewhere; "
        "its agent kills them before that. A job may ask for another span.",
        DURATION,
        low=30 * SECOND,
        high=7 * DAY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """What is kept of the jobs' output."""

    attempt_bytes_max: int = setting(
        GIB,
        "The output of one attempt that is kept: its beginning and its end.",
        SIZE,
        low=1_000_000,
        high=1024 * GIB,
        reloadable=True,
    )
    head_bytes_max: int = setting(
        GIB // 4, "How much of that is the beginning.", SIZE, low=0, high=1024 * GIB, reloadable=True
    )
    total_bytes_max: int = setting(
        200 * GIB,
        "Beyond this total the oldest output of ended jobs is dropped.",
        SIZE,
        low=1_000_000,
        reloadable=True,
    )
    retention: timedelta = setting(
        30 * DAY, "Output of ended jobs is kept for this long.", DURATION, low=HOUR, reloadable=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Files that people upload for their jobs: see docs/files.md."""

    store: str = setting(
        "",
        "Where files are stored: another folder, as /mnt/team/blobs, or a bucket of an S3-compatible object store, "
        "s3://BUCKET/PREFIX. Schedulers of one database have one such place.",
        TEXT,
        default_text="blobs in the data folder",
    )
    s3_endpoint: str = setting(
        "", "The URL of the object store, as https://minio.example:9000.", TEXT, default_text="that of AWS"
    )
    s3_region: str = setting(
        "", "The region of the bucket.", TEXT, default_text="that of AWS_DEFAULT_REGION, or us-east-1"
    )
    s3_key_file: Path | None = setting(
        None,
        "The keys of the object store, in the form of ~/.aws/credentials, of mode 0600.",
        PATH,
        default_text="AWS_ACCESS_KEY_ID and what else AWS knows",
    )
    file_bytes_max: int = setting(
        10 * GIB,
        "The largest file that is taken by itself: those of a folder count towards folder_bytes_max alone.",
        SIZE,
        low=1_000_000,
        high=1024 * GIB,
        reloadable=True,
    )
    folder_bytes_max: int = setting(
        50 * GIB,
        "The largest folder that goes with a job (--upload), all of its files together.",
        SIZE,
        low=1_000_000,
        high=1024 * GIB,
        reloadable=True,
    )
    user_bytes_max: int = setting(
        50 * GIB,
        "The files of one user that are stored at once, in all; a file counts as 4 KiB at least.",
        SIZE,
        low=1_000_000,
        reloadable=True,
    )
    user_files_max: int = setting(
        100_000, "How many files of one user are stored at once.", INTEGER, low=1, high=10_000_000, reloadable=True
    )
    keep_unused: timedelta = setting(
        DAY,
        "A file is dropped when no job that has not ended has needed it for this long.",
        DURATION,
        low=HOUR,
        high=365 * DAY,
        reloadable=True,
    )
    keep_results: timedelta = setting(
        30 * DAY,
        "What jobs left (--download) is dropped after this.",
        DURATION,
        low=HOUR,
        high=3_650 * DAY,
        reloadable=True,
    )
    kept_wait: timedelta = setting(
        HOUR,
        "How long a job that is queued again waits for what its last attempt keeps (--keep), while the node brings it.",
        DURATION,
        low=SECOND,
        high=DAY,
        reloadable=True,
    )
    free_bytes_min: int = setting(
        GIB,
        "No file is taken that would leave less than this free on the disk of the data folder.",
        SIZE,
        low=0,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """What is kept of what devices, the queue and users did."""

    fine_retention: timedelta = setting(
        DAY,
        "What devices and the queue did is kept in points of 10 s for this long.",
        DURATION,
        low=HOUR,
        high=30 * DAY,
        reloadable=True,
    )
    retention: timedelta = setting(
        90 * DAY,
        "In points of 5 min it is kept for this long; so is who used how much.",
        DURATION,
        low=DAY,
        high=3660 * DAY,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """What is kept of who called what: see docs/audit.md."""

    retention: timedelta = setting(
        365 * DAY, "Calls are kept for this long.", DURATION, low=DAY, high=3660 * DAY, reloadable=True
    )
    rows_max: int = setting(
        1_000_000,
        "So many calls that were done are kept at most, and as many that were refused.",
        INTEGER,
        low=1_000,
        high=100_000_000,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bounds that keep one user or one bug from taking everything."""

    queue_jobs_max: int = setting(
        1_000_000, "So many jobs may be queued; array items count.", INTEGER, low=1, reloadable=True
    )
    streams_max: int = setting(10_000, "So many followers may be connected.", INTEGER, low=1, reloadable=True)
    message_bytes_max: int = setting(
        MESSAGE_BYTES_MAX,
        "The longest message that is taken. An agent sends up to 2 MB of output in one; gpuctl sends none above 16 MB.",
        SIZE,
        low=4_000_000,
        high=MESSAGE_BYTES_MAX,
    )
    request_id_retention: timedelta = setting(
        DAY,
        "A request id is remembered for this long, or as long as its job.",
        DURATION,
        low=HOUR,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSettings:
    """How devices are chosen among those that fit."""

    node_order: str = setting(
        "fragmentation",
        "Fill nodes that are in use first, or take idle nodes first.",
        one_of("fragmentation", "idle"),
        reloadable=True,
    )
    free_memory_weight: float = setting(
        0.6, "The weight of a device's free memory in its score.", NUMBER, low=0.0, high=1.0, reloadable=True
    )
    idleness_weight: float = setting(
        0.4, "The weight of a device's idleness in its score.", NUMBER, low=0.0, high=1.0, reloadable=True
    )
    default_min_memory_bytes: int = setting(
        8 * GB,
        "Free memory that a GPU must have for a job that names no minimum; "
        "90 % of the cluster's largest GPU where that is less.",
        SIZE,
        low=0,
        high=1024 * GIB,
        reloadable=True,
    )
    device_pause: timedelta = setting(
        30 * SECOND,
        "A device that was refused at launch is left out for this long.",
        DURATION,
        low=SECOND,
        high=HOUR,
        reloadable=True,
    )
    backlog_depth: int = setting(
        3,
        "Short jobs that wait on a node for each job of their like that runs there, to begin as soon as it has ended; "
        "0 places only on what is free.",
        INTEGER,
        low=0,
        high=15,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Who goes first, and what one user may have: who is over a cap waits, and nobody waits for them."""

    user_gpus_max: int = setting(
        0, "GPUs that one user may hold at once; 0 is no cap.", INTEGER, low=0, high=1_000_000, reloadable=True
    )
    user_jobs_max: int = setting(
        0, "Active jobs that one user may have at once; 0 is no cap.", INTEGER, low=0, high=1_000_000, reloadable=True
    )
    preemptible_after: timedelta = setting(
        5 * MINUTE,
        "A preemptible job makes room for a higher band only after it has run for this long.",
        DURATION,
        low=timedelta(0),
        high=DAY,
        reloadable=True,
    )
    least_awake: timedelta = setting(
        timedelta(seconds=30),
        "A program of an exclusive group that has become ready keeps its GPUs for this long, before it may be put to "
        "sleep for another one of its group.",
        DURATION,
        low=timedelta(seconds=1),
        high=DAY,
        reloadable=True,
    )
    bands: BandSettings = setting(
        BandSettings(),
        'Bands that people may ask for, by role; an entry of a user, users = { ann = ["low", "normal", "high"] }, '
        "takes the place of that of role user.",
        BAND_SETTINGS,
        reloadable=True,
    )
    age_limit: timedelta = setting(
        4 * DAY,
        "A job that has waited for longer goes in front of its band, whatever its user has used; 0s never does.",
        DURATION,
        low=timedelta(0),
        high=365 * DAY,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """Which jobs are for GPUs, where they leave that open: see docs/gpu-or-cpu.md."""

    content_types: ContentTypes = setting(
        DEFAULT_MODES,
        "What --gpu-mode auto makes of a content type: preferred, required or never. Entries add to these, or take the "
        "place of one; the longest pattern that matches decides.",
        CONTENT_TYPES,
        reloadable=True,
    )
    gpu_wait: timedelta = setting(
        MINUTE,
        "A job that prefers GPUs waits for them for this long, and then runs without.",
        DURATION,
        low=timedelta(0),
        high=30 * DAY,
        reloadable=True,
    )
    gpu_queue_limit: int = setting(
        10,
        "Behind more jobs than this that wait for GPUs it does without at once.",
        INTEGER,
        low=0,
        high=1_000_000,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningSettings:
    """When a job is warned: see docs/warnings.md."""

    idle_span: timedelta = setting(
        15 * MINUTE,
        "Warn of a GPU that a job holds and that is below 5 % for this long; 0s never does.",
        DURATION,
        low=timedelta(0),
        high=7 * DAY,
        reloadable=True,
    )
    memory_span: timedelta = setting(
        15 * MINUTE,
        "Judge a job by the GPU memory that it used after this long, or at its end; 0s never does.",
        DURATION,
        low=timedelta(0),
        high=7 * DAY,
        reloadable=True,
    )
    memory_percent: int = setting(
        30,
        "Warn of memory of which no more was used at any time: of what was asked for, or else of the GPU's.",
        INTEGER,
        low=1,
        high=100,
        reloadable=True,
    )
    throttled_span: timedelta = setting(
        30 * SECOND,
        "Warn of a GPU that heat, a power brake or its hardware slowed down for this long more than not; "
        "0s never does.",
        DURATION,
        low=timedelta(0),
        high=DAY,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySettings:
    """What people see of each other's jobs: see SECURITY.md."""

    output: str = setting(
        "team",
        "Who reads output, arguments, stories and statistics of a job, files that its --download chooses, and sessions "
        "of a model: team is everybody with a token, owner its owner and admins.",
        one_of("team", "owner"),
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """What people's secrets are sealed with: see docs/secrets.md."""

    key_file: Path | None = setting(
        None,
        "The key that secrets are sealed with, of mode 0600; it is made with the first secret. Copies of the database "
        "tell nothing of them as long as it is kept apart.",
        PATH,
        default_text="secrets.key in the data folder",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """`gpuctl scheduler` and scheduler.toml."""

    host: str = setting(
        "127.0.0.1", "Where to listen; 0.0.0.0 is every network, and needs [tls] or insecure = true.", TEXT
    )
    port: int = setting(DEFAULT_PORT, "The port to listen on; 0 takes any free one.", INTEGER, low=0, high=65535)
    data: Path = data_folder("scheduler", "The folder of the database, tokens, output and logs.")
    store: str = setting(
        "",
        "A database in place of the embedded one: postgresql://user@host/name.",
        TEXT,
        default_text="SQLite in the data folder",
    )
    standby: bool = setting(
        False,
        "Stand by while another scheduler leads in the same PostgreSQL, and lead when it is gone; see "
        "docs/high-availability.md.",
        BOOLEAN,
    )
    silence_max: timedelta = setting(
        2.5 * SECOND,
        "A leader that has not moved for this long is replaced by one that stands by.",
        DURATION,
        low=SECOND,
        high=MINUTE,
    )
    insecure: bool = setting(
        False, "Listen beyond this machine without encryption. Only for networks you trust.", BOOLEAN
    )
    retention: timedelta = setting(
        30 * DAY, "Records of ended jobs are kept for this long.", DURATION, low=HOUR, reloadable=True
    )
    sessions: ByModel = setting(
        (),
        "Numbers of a model's line and turns, in a table [sessions.NAME] for each model, below all others: idle, "
        "idle_warning, turn, turn_warning, grace, line_length, places_per_address, seats_per_address, and who may "
        "join: access = open, pass-phrase or login. Those named with gpuctl serve go before them.",
        SESSIONS,
        reloadable=True,
    )
    handlers: Handlers = setting(
        (),
        "What takes files that come by ingest, by content type: a command, which runs as a job, or a served model. The "
        "longest pattern that matches decides; see docs/gpu-or-cpu.md.",
        HANDLERS,
        reloadable=True,
    )
    event_loop: str = event_loop()
    log: LogSettings = section(LogSettings, "The scheduler's own log.")
    metrics: MetricsSettings = section(MetricsSettings, "Metrics for Prometheus; see docs/metrics.md.")
    tls: TlsSettings = section(TlsSettings, "Encryption, for clients on other machines.")
    nodes: NodeSettings = section(
        NodeSettings, "When a silent node is suspected, lost, and its jobs are started elsewhere."
    )
    output: OutputSettings = section(OutputSettings, "What is kept of the jobs' output.")
    files: FileSettings = section(FileSettings, "Files that people upload for their jobs; see docs/files.md.")
    history: HistorySettings = section(HistorySettings, "What is kept of what devices, the queue and users did.")
    audit: AuditSettings = section(AuditSettings, "What is kept of who called what.")
    limits: LimitSettings = section(LimitSettings, "Bounds that keep one user or one bug from taking everything.")
    policy: PolicySettings = section(PolicySettings, "Who goes first, and what one user may have at once.")
    placement: PlacementSettings = section(PlacementSettings, "How devices are chosen among those that fit.")
    routing: RoutingSettings = section(RoutingSettings, "Which jobs are for GPUs, where they leave that open.")
    warnings: WarningSettings = section(WarningSettings, "When a job is warned of what it holds and does not use.")
    privacy: PrivacySettings = section(PrivacySettings, "What people see of each other's jobs.")
    secrets: SecretSettings = section(SecretSettings, "Secrets that people keep for their jobs; see docs/secrets.md.")
    login: LoginSettings = section(LoginSettings, "Logins of people, beside tokens; see docs/logins.md.")
    oidc: OidcSettings = section(OidcSettings, "The OpenID Connect provider that people log in with.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Values that do not fit together."""
        tls = self.tls
        if self.standby and not self.store.startswith("postgres"):
            yield (
                "standby",
                "only schedulers that share a PostgreSQL stand by for each other: add --store postgresql://user@host/name",
            )
        if tls.client_ca_file is not None and tls.cert_file is None:
            yield "tls.client_ca_file", "certificates of clients go with one of the server's: set tls.cert_file"
        yield from login_conflicts(self.oidc)
        yield from _file_store_conflicts(self.files)
        yield from listening_conflicts(self.host, tls.cert_file, tls.key_file, self.metrics, is_insecure=self.insecure)
        if self.nodes.requeue_fence < self.nodes.lease:
            yield "nodes.requeue_fence", "a fence shorter than nodes.lease would requeue jobs of nodes not yet lost"
        if self.nodes.lease <= self.nodes.heartbeat * self.nodes.missed_heartbeats_max:
            yield "nodes.lease", "a node would be lost before it is suspected; see heartbeat, missed_heartbeats_max"
        if self.history.fine_retention > self.history.retention:
            yield (
                "history.fine_retention",
                "points of 10 s cannot be kept for longer than those of 5 min, history.retention",
            )
        if self.output.head_bytes_max > self.output.attempt_bytes_max:
            yield "output.head_bytes_max", "the beginning cannot be longer than the whole, output.attempt_bytes_max"


def _file_store_conflicts(files: FileSettings) -> Iterator[tuple[str, str]]:
    try:
        place = file_store_place(files.store)
    except ValueError as problem:
        yield "files.store", str(problem)
        return
    if place is None or not place.bucket:
        for key in ("s3_endpoint", "s3_region", "s3_key_file"):
            if getattr(files, key):
                yield f"files.{key}", "goes with files.store of an object store: s3://BUCKET/PREFIX"
        return
    if files.s3_endpoint and (why := trouble_with_endpoint(files.s3_endpoint)):
        yield "files.s3_endpoint", why
