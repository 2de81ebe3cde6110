"""The scheduler as a program: opens what it needs, wires it together, serves until told to stop."""

import asyncio
import importlib.metadata
import logging
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpufleet.config.band_settings import BandSettings
from gpufleet.config.live import Live as LiveSettings
from gpufleet.config.scheduler_settings import MANUAL, SchedulerSettings
from gpufleet.config.session_numbers import NUMBERS, SessionNumbers
from gpufleet.errors import GpufleetError
from gpufleet.host.event_loop import running_loop_in_words
from gpufleet.host.service_manager import ServiceManager
from gpufleet.net.addresses import Address
from gpufleet.net.tls import check_protection, server_credentials
from gpufleet.telemetry.logs import ProgramLog, fields
from gpufleet.telemetry.metrics import OFF as NO_METRICS
from gpufleet.telemetry.metrics import Metrics
from gpufleet.telemetry.spans import Telemetry

from .api.fleet.agents import AgentService
from .api.inside.tunnels import Tunnels
from .api.output.channels import Channels
from .api.output.program_logs import ProgramLogs
from .api.roles import Authenticator
from .api.server import SchedulerService, Server
from .api.server_facts import ServerFacts
from .audit.log import AuditLog
from .blobs.opening import open_blobs
from .blobs.superseded import SupersededCopies
from .clock import SlewedClock, wall_time
from .engine import Changes, Engine
from .first_start import make_first_context, make_first_tokens
from .known_store import KnownStore, Memory, NewestCommit
from .leading.opening import Opened, open_at_once
from .leading.shown import shown_runs
from .leading.starting import reload_settings
from .links import Links
from .logins.looking_after import FIRST_LOOK_S_MAX, look_after_logins
from .logins.ways import Ways
from .metrics.door import MetricsOutlet
from .metrics.measures import EngineMeasures
from .output_hub import OutputHub
from .outputs.opening import OUTPUT_NAME, open_outputs
from .outputs.opening import limits_of as output_limits_of
from .ports import Commit, Store
from .pruning import Pruner
from .secret_box import KEY_FILE as SECRETS_KEY_FILE
from .secret_box import SecretBox
from .series.attempts import AttemptSeries
from .series.queries import HistoryQueries
from .series.reading import Retention
from .series.recorder import Recorder
from .series.requests import RequestLog
from .series.visit_log import VisitLog
from .session_links import SessionLinks
from .state.attempts import OutputEnd
from .state.commands import LaunchAttempt
from .state.events import NumbersReported, OutputSynced, RankRefused
from .state.ids import JobId, ModelName, RankKey, UserName
from .state.jobs import Job
from .state.limits import BandRights, GpuRouting, Limits, NodeOrder, ScoreWeights, WarningLimits
from .state.sessions.session import Access, SessionLimits
from .state.specs import Band, GpuMode
from .state.units import Instant, Span, after
from .store.errors import StoreError
from .store_position import StorePositions
from .trackers import jobs_of
from .watching import ChangeHub
from .worker_secrets import read_or_make

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 2.0
LISTENING_FILE = "listening"
"""Holds HOST:PORT while the scheduler serves, for tools on the same machine and for tests with port 0."""


def limits_of(settings: SchedulerSettings) -> Limits:
    """The numbers of the rules, from the settings."""
    nodes, placement = settings.nodes, settings.placement
    return Limits(
        heartbeat_interval=_span(nodes.heartbeat),
        missed_heartbeats=nodes.missed_heartbeats_max,
        node_lease=_span(nodes.lease),
        nodes_await_approval=nodes.approve == MANUAL,
        requeue_fence=_span(nodes.requeue_fence),
        request_retention=_span(settings.limits.request_id_retention),
        queued_jobs=settings.limits.queue_jobs_max,
        left_out_span=_span(placement.device_pause),
        default_min_memory_bytes=placement.default_min_memory_bytes,
        node_order=NodeOrder(placement.node_order),
        backlog_depth=placement.backlog_depth,
        kept_wait=_span(settings.files.kept_wait),
        user_gpus_max=settings.policy.user_gpus_max,
        user_jobs_max=settings.policy.user_jobs_max,
        preemptible_after=_span(settings.policy.preemptible_after),
        least_awake=_span(settings.policy.least_awake),
        bands=_band_rights(settings.policy.bands),
        age_limit=_span(settings.policy.age_limit),
        score_weights=ScoreWeights(free_memory=placement.free_memory_weight, idleness=placement.idleness_weight),
        warnings=WarningLimits(
            idle_span=_span(settings.warnings.idle_span),
            memory_span=_span(settings.warnings.memory_span),
            memory_percent=settings.warnings.memory_percent,
            throttled_span=_span(settings.warnings.throttled_span),
        ),
        routing=GpuRouting(
            modes={pattern: GpuMode(mode) for pattern, mode in settings.routing.content_types},
            gpu_wait=_span(settings.routing.gpu_wait),
            gpu_queue_limit=settings.routing.gpu_queue_limit,
        ),
        sessions={ModelName(name): _numbers(numbers) for name, numbers in settings.sessions},
    )


def _band_rights(bands: BandSettings) -> BandRights:
    return BandRights(
        user=_bands(bands.user),
        admin=_bands(bands.admin),
        users={UserName(name): _bands(words) for name, words in bands.users},
    )


def _bands(words: Iterable[str]) -> frozenset[Band]:
    return frozenset(Band[word.upper()] for word in words)


def _numbers(numbers: SessionNumbers) -> SessionLimits:
    """A model's numbers, with the default of each that is not set."""
    found = ((key, getattr(numbers, key)) for key in NUMBERS)
    named: dict[str, Any] = {
        key: _span(each) if isinstance(each, timedelta) else each for key, each in found if each is not None
    }
    if numbers.access is not None:
        named["access"] = Access[numbers.access.upper().replace("-", "_")]
    return SessionLimits(**named)


def _kept(settings: SchedulerSettings) -> Retention:
    """How long points of each level are kept."""
    history = settings.history
    return Retention(tens=_span(history.fine_retention), fives=_span(history.retention))


def _span(length: timedelta) -> Span:
    return Span(round(length.total_seconds() * 1_000_000))


class Program:
    """Everything that one start of the scheduler holds."""

    def __init__(
        self,
        settings: LiveSettings[SchedulerSettings],
        program_log: ProgramLog,
        log_file: Path,
        telemetry: Telemetry,
        metrics: Metrics = NO_METRICS,
        *,
        memory: Memory | None = None,
        opened: Opened | None = None,
        service: ServiceManager | None = None,
    ) -> None:
        self._settings = settings
        self._service = service or ServiceManager()
        self._log = program_log
        self._log_level = settings.now.log.level
        data = settings.now.data
        self._data = data
        self._memory = memory or Memory(data)
        opened = opened or open_at_once(settings.now, self._memory, metrics)
        store, self._shared = opened.store, opened.shared
        self._memory.opened(store.starts)
        self._newest_commit = NewestCommit(data, store.lineage)
        self._store: Store = store
        self._store_id = store.store_id
        self._clock = SlewedClock(self._store.newest_instant(), opened.wall_us())
        self._changes = ChangeHub(self._store.term)
        identity = OUTPUT_NAME if self._shared is None else self._shared.own.identity
        self._output_store = open_outputs(settings.now, data, self._store.term, identity=identity)
        self._outputs = OutputHub(self._output_store, self._on_synced, self._tell_output_trouble)
        workers = read_or_make(data)
        self._series = AttemptSeries(data)
        box = SecretBox(settings.now.secrets.key_file or data / SECRETS_KEY_FILE)

        def environment(launch: LaunchAttempt) -> dict[str, str]:
            own = workers.environment(launch) | workers.jobs.environment(launch)
            return box.environment(launch, self._engine.view.durable.secrets) | own

        self._links = Links(telemetry, environment, self._refuse_launch, workers.origins.text)
        self._session_links = SessionLinks(self._clock.now, workers)
        self._engine = Engine(
            self._store,
            self._links,
            self._clock,
            limits_of(settings.now),
            self._publish,
            telemetry,
            tell_session=self._session_links.send,
            measures=EngineMeasures(metrics) if metrics.is_on else None,
            record=self._record,
            gap=(self._memory.gap, self._memory.jobs_above, self._memory.sessions_above),
        )
        self._recorder = Recorder(
            self._engine.view, self._store, self._clock.now, lambda: _span(settings.now.retention), data
        )
        self._visits = VisitLog(self._store, self._clock.now, lambda: _span(settings.now.retention), data)
        self._requests = RequestLog(self._clock.now, data)
        self._desk = HistoryQueries(self._recorder, data, lambda: _kept(settings.now))
        self._audit = AuditLog(self._store, self._clock.now, self._kept_of_audit, self._engine.meeting_damage)
        blobs, self._upkeep = open_blobs(lambda: settings.now.files, data, self._store_id)
        self._blobs = blobs
        self._superseded = SupersededCopies(
            blobs, lambda: self._engine.view.durable, lambda: settings.now.files.keep_unused
        )
        self._pruner = Pruner(self._engine, self._outputs, lambda: settings.now, self._drop_histories, blobs)
        facts = ServerFacts(
            version=importlib.metadata.version("gpufleet"),
            started_at=self._clock.now(),
            clock_stepped=lambda: self._clock.has_stepped,
            output_free_bytes=lambda: shutil.disk_usage(data).free,
            output_error=lambda: self._outputs.error,
            settings=lambda: settings.resolved.rows(),
            log_level=lambda: self._log_level,
            set_log_level=self._set_log_level,
            streams_max=lambda: settings.now.limits.streams_max,
            output_is_shared=lambda: settings.now.privacy.output == "team",
            file_store=lambda: blobs.place.words,
            file_store_error=lambda: blobs.place.trouble,
            results_kept=lambda: _span(settings.now.files.keep_results),
            handlers=lambda: settings.now.handlers,
            schedulers=lambda: [] if self._shared is None else shown_runs(self._shared.beats.last),
        )
        positions = StorePositions(
            workers.positions, self._memory, self._known_store, self._engine.view.durable, self._raise_numbers
        )
        logs = ProgramLogs(log_file, self._links, self._engine.view.durable.nodes)
        channels, tunnels = Channels(self._links), Tunnels(self._links)
        box.check(self._engine.view.durable.secrets.values())
        self._ways = Ways(settings.now.login, settings.now.oidc, lambda: wall_time() / 1e6, time.monotonic)
        self._logins_looked = asyncio.Event()
        authenticator = Authenticator(self._engine.view, self._clock.now, workers, workers.jobs, workers.nodes)
        self._metrics = MetricsOutlet(
            settings.now, self._engine, metrics, authenticator, self._audit, facts.file_store_error
        )
        self._server = Server(
            SchedulerService(
                self._engine,
                self._changes,
                self._outputs,
                self._links,
                logs,
                facts,
                telemetry,
                channels,
                tunnels,
                self._session_links,
                self._series,
                self._desk,
                self._visits,
                self._requests,
                blobs,
                box,
                self._ways,
                _span(settings.now.login.valid_for),
                self._audit,
            ),
            AgentService(
                self._engine,
                self._links,
                self._outputs,
                facts.version,
                channels,
                tunnels,
                workers.nodes,
                self._series.keep,
                blobs,
                self._recorder.take_beat,
                workers.origins,
                positions,
                facts.output_is_shared,
            ),
            authenticator,
            settings.now.limits.message_bytes_max,
            self._audit,
            wants_certificates=settings.now.tls.client_ca_file is not None,
        )

    def _kept_of_audit(self) -> tuple[Instant, int]:
        audit = self._settings.now.audit
        return after(self._clock.now(), Span(-_span(audit.retention))), audit.rows_max

    def _refuse_launch(self, launch: LaunchAttempt, problem: GpufleetError) -> None:
        """A launch cannot leave: what follows is what would where its node refused it."""
        why, message = problem.reason.name, problem.message
        log.warning("a launch could not leave", extra=fields(attempt=str(launch.key), reason=why, why=message))
        refused = RankRefused(at=self._engine.now(), node=launch.node, key=launch.key, reason=why, message=message)
        self._engine.report(refused)

    def _raise_numbers(self, jobs_above: JobId, sessions_above: int) -> None:
        seen = NumbersReported(at=self._engine.now(), jobs_above=jobs_above, sessions_above=sessions_above)
        self._engine.report(seen)

    def _on_synced(self, key: RankKey, ends: tuple[OutputEnd, ...]) -> None:
        self._engine.report(OutputSynced(at=self._engine.now(), key=key, ends=ends))

    def _tell_output_trouble(self) -> None:
        """What is shown of every job that runs is otherwise now."""
        durable = self._engine.view.durable
        running = sorted({key.job for node in durable.nodes for key in durable.hold(node).ranks})
        self._changes.publish(Changes(jobs=jobs_of(durable, running), nodes=()))

    def _publish(self, changes: Changes) -> None:
        self._changes.publish(changes)
        for job in changes.jobs:
            if isinstance(job, Job) and job.attempt is None:
                self._outputs.stop_awaiting(job.id)

    def _record(self, commit: Commit, sequence: int) -> None:
        counters = self._engine.view.durable.counters
        self._newest_commit.note(sequence, counters.next_job, counters.next_session)
        self._recorder.take_commit(commit, sequence)
        self._visits.take_commit(commit, sequence)
        self._superseded.take_commit(commit)

    async def _drop_histories(self, tens_before: Instant, rest_before: Instant) -> int:
        dropped = await self._recorder.prune(tens_before, rest_before) + await self._visits.prune(rest_before)
        return dropped + await self._requests.prune(rest_before)

    def _set_log_level(self, level: str) -> None:
        self._log.set_level(level)
        self._log_level = level
        log.warning("log level changed", extra=fields(level=level))

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, or until the store can no longer be trusted."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        engine = asyncio.create_task(self._engine.run(), name="engine")
        tasks = [
            engine,
            asyncio.create_task(self._outputs.run(), name="output-sync"),
            asyncio.create_task(self._pruner.run(), name="prune"),
            asyncio.create_task(self._superseded.run(), name="superseded-copies"),
            asyncio.create_task(self._upkeep.run(), name="file-store"),
            asyncio.create_task(self._recorder.run(), name="histories"),
            asyncio.create_task(self._visits.run(), name="visits"),
            asyncio.create_task(self._server.look_after_streams(), name="open-streams"),
            asyncio.create_task(self._metrics.run(), name="metrics"),
            asyncio.create_task(look_after_logins(self._engine, self._ways, self._logins_looked), name="logins"),
            asyncio.create_task(self._audit.run(), name="audit"),
            asyncio.create_task(self._memory.run(self._known_store), name="known-store"),
        ]
        if self._shared is not None:
            tasks.append(asyncio.create_task(self._shared.beats.run(), name="lead"))
        stop = asyncio.create_task(stopping.wait(), name="stop")
        contradicted = asyncio.create_task(self._end_when_contradicted(), name="contradicted")
        try:
            await self._until_begun(engine, stop)
            await self._begin_to_serve()
            tasks.append(asyncio.create_task(self._service.watch(self._commits_move), name="service-manager"))
            await asyncio.wait({stop, contradicted, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if self._memory.contradiction is not None:
                raise self._memory.contradiction
        except StoreError as error:
            log.critical("the store can no longer be used", extra=fields(why=str(error)))
            raise
        finally:
            log.info("stopping")
            self._service.stopping()
            await self._stop([*tasks, stop, contradicted])

    async def _commits_move(self) -> None:
        """Return once the thread that commits has nothing before it: it hangs where a disk or a database does."""
        await self._engine.on_store_thread(lambda: None)

    async def _end_when_contradicted(self) -> None:
        """Where a node knows history that the store lacks, nothing more is decided."""
        await self._memory.contradicted.wait()
        self._engine.stop()

    async def _until_begun(self, *ends: asyncio.Task[object]) -> None:
        """Where a gap was accepted, that is stored before the data folder knows this store, or anybody calls."""
        if self._memory.gap:
            begun = asyncio.create_task(self._engine.begun.wait(), name="begun")
            await asyncio.wait({begun, *ends}, return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()

    async def _begin_to_serve(self) -> None:
        port = self._listen()
        listens_at = Address(self._settings.now.host, port)
        made = await make_first_tokens(self._engine, self._data)
        for file in made:
            log.info("token made", extra=fields(file=file))
        if made and (context := make_first_context(self._data, listens_at, self._settings.now.tls.cert_file)):
            log.info("gpuctl of this account finds this scheduler", extra=fields(context=context))
        # The settings, or the file of users, may have changed while nobody served.
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S_MAX):
                await self._logins_looked.wait()
        # From here on somebody may be told of what is stored.
        self._note_store()
        await self._server.start()
        address = str(listens_at)
        listening = self._data / LISTENING_FILE
        unfinished = listening.with_name(f".{listening.name}.new")
        unfinished.write_text(address + "\n")
        unfinished.replace(listening)
        if self._shared is not None:
            self._shared.beats.serves(address)
        durable = self._engine.view.durable
        self._service.ready(f"serving at {address}")
        log.info(
            "serving",
            extra=fields(
                address=address,
                data=self._data,
                store=self._store.kind,
                event_loop=running_loop_in_words(),
                term=self._store.term,
                jobs=len(durable.jobs),
                nodes=len(durable.nodes),
            ),
        )

    def _listen(self) -> int:
        settings = self._settings.now
        credentials = None
        if settings.tls.cert_file is not None and settings.tls.key_file is not None:
            credentials = server_credentials(settings.tls.cert_file, settings.tls.key_file, settings.tls.client_ca_file)
        check_protection(settings.host, has_tls=credentials is not None, is_insecure=settings.insecure)
        return self._server.listen(Address(settings.host, settings.port), credentials)

    def _reload(self) -> None:
        reloaded = reload_settings(self._settings, self._log)
        if reloaded is None:
            return
        self._log_level = self._settings.now.log.level
        self._engine.set_limits(limits_of(self._settings.now))
        kept = output_limits_of(self._settings.now.output)
        self._outputs.on_thread_soon(lambda: self._output_store.change_limits(kept))
        self._pruner.settings_changed(reloaded.applied)

    async def _stop(self, tasks: list[asyncio.Task[object]]) -> None:
        (self._data / LISTENING_FILE).unlink(missing_ok=True)
        self._links.close()
        self._session_links.close()
        with suppress(asyncio.CancelledError):
            await self._server.stop(STOP_GRACE_SECONDS)
        self._engine.stop()
        if self._shared is not None:
            self._shared.beats.tick()  # a commit is waited for, and that may take a while
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        histories = (self._audit, self._desk, self._recorder, self._visits, self._requests)
        known = self._known_store()
        for each in (self._engine, self._outputs, self._series, *histories, self._newest_commit):
            each.close()
        if self._shared is not None:
            await asyncio.to_thread(self._shared.beats.close)
        self._store.close()
        if known is not None:
            self._memory.note(known, is_synced=True)
        self._blobs.close()

    def _note_store(self) -> None:
        known = self._known_store()
        if known is not None:
            self._memory.note(known, is_synced=True)

    def _known_store(self) -> KnownStore | None:
        """How far the store is; None while it does not say that a gap was accepted: who crashes must be told again."""
        if self._memory.gap and not self._engine.begun.is_set():
            return None
        return KnownStore(
            store_id=self._store_id,
            lineage=self._store.lineage,
            term=self._store.term,
            sequence=self._store.newest_sequence(),
            next_job=self._engine.view.durable.counters.next_job,
            next_session=self._engine.view.durable.counters.next_session,
        )
