"""The node agent: reports this node to the scheduler and carries out what it decides. The file to read first.

    scheduler ── Link ── Heartbeats ── Attempts ── Keeping ── keeper processes ── jobs
                  └───── OutputSender ◀── spool ◀───────────────┘

It decides little: `core/` says what a command means and what must be repeated, the keepers own all processes and go on
without it. Killed at any moment and started again, it adopts what runs and nothing is lost or done twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from gpufleet.v1 import node_agent_pb2, node_pb2

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.agent_state import REGISTERED, AgentState, now_in_words, write_agent_state
from gpufleet.jobs.runs import RankKey
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target
from gpufleet.net.status import from_rpc_error
from gpufleet.telemetry.spans import Telemetry

from . import wire
from .attempts import Attempts
from .channels import Channels
from .containers.containers import Containers, ContainerSettings
from .core.actions import Order
from .core.commands import (
    CheckFiles,
    ClearTroubles,
    CloseChannel,
    Command,
    OpenChannel,
    OpenExec,
    OpenFiles,
    OpenPort,
    ReadProgramLog,
    ReadSetupOutput,
    RefreshSamples,
    SetLogLevel,
    TellWarning,
    Unknown,
    refusal_of,
)
from .core.delivery import Receipt
from .core.duties import Duties
from .core.fence import CommandRefusal
from .core.launch import Isolation
from .core.leavings import Bounds
from .core.notices import Failure
from .core.outcome import AttemptView
from .credential import Credential
from .files.checks import FileChecks
from .files.job_files import JobFiles
from .files.reaching import Reaching
from .files.results import Results
from .files.shared_root import SharedRoot
from .heartbeat import Heartbeats, StaleTerm
from .identity import DataFolder, Identity
from .inside.commands import Commands
from .inside.forwarding import Forwarding
from .isolation.accounts import Isolating
from .isolation.limits import Limiting
from .keeper.client import Keepers
from .keeper.linux import boot_id, boottime_us
from .keeping import Keeping
from .launch import READING_SECONDS_MAX, Launcher
from .link import PROTOCOL_VERSION, RETRY_SECONDS_MAX, RETRY_SECONDS_MIN, Link
from .machine import Machine
from .notice_records import NoticeRecords
from .notices import Notices
from .output import OutputSender
from .program_log import ProgramLog
from .setup.environments import Environments, SetupLimits
from .setup.preparing import Preparations
from .store_position import StorePosition
from .streams import until_first
from .usage import UsageRecords, Usages, device_summary

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
"""Between signs of life, for a scheduler that does not say."""

NOTICES_FOLDER = "notices"
"""In the agent's data folder: what is still to be told of attempts."""

USAGES_FOLDER = "usages"
"""In the agent's data folder: what attempts used so far."""

FILES_FOLDER = "files"
"""In the agent's data folder: files that go with jobs."""

ENVIRONMENTS_FOLDER = "environments"
"""In the agent's data folder: environments that jobs begin in."""

LOG_LEVELS = ("debug", "info", "warning", "error")

COMMAND_VALID_FOR_US = 30_000_000
"""What a scheduler that does not say counts as too old."""


RESULTS_BOUNDS = Bounds(seconds=7 * 86_400.0, bytes_max=20 * 2**30)
"""How much of what the scheduler does not store is kept, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a reload may change: how often devices are read, while nothing runs and while something does, how large an
    attempt's spool and the cache of files may grow, what bounds environments and what ranks left, and whether users
    may have servers of this machine told of their jobs.
    """

    sampling_seconds: float
    busy_sampling_seconds: float
    spool_bytes: int
    notifies_local: bool
    cache_bytes: int
    setup: SetupLimits = SetupLimits()
    results: Bounds = RESULTS_BOUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one agent is for: which node, reached how, with which devices, offered as what.

    `for_workers` are the variables by which a model's worker finds the scheduler, and is found, `for_jobs` those by
    which any other job finds the scheduler at this address.
    """

    name: str
    addresses: Sequence[Address]
    target_of: Callable[[Address], Target]
    info: Callable[[], node_pb2.NodeInfo]
    machine: Machine
    log_file: Path
    set_log_level: Callable[[str], None]
    tuning: Callable[[], Tuning]
    traces: Telemetry
    credential: Credential
    isolating: Isolating | None = None
    limiting: Limiting | None = None
    shared_root: Path | None = None
    containers: Callable[[], ContainerSettings] = ContainerSettings
    for_workers: Callable[[], Mapping[str, str]] = dict
    for_jobs: Callable[[Address], Mapping[str, str]] = lambda address: {}


class NodeAgent:
    """One agent from its start to its end. Keepers and jobs go on when it ends."""

    def __init__(self, node: Node, folder: DataFolder, identity: Identity, keepers: Keepers) -> None:
        self._node = node
        self._folder = folder
        self._identity = identity
        self._boot_id = boot_id()
        self._command_valid_for_us = COMMAND_VALID_FOR_US
        self._duties = Duties()
        self._keeping = Keeping(keepers, self._duties.inventory)
        self._output = OutputSender(node.name, identity.incarnation, self._keeping)
        self._address = node.addresses[0]
        self._root = SharedRoot(node.shared_root, self._account_of, self.renew)
        self._preparations = Preparations()
        self._files = JobFiles(
            node.name,
            identity.incarnation,
            folder.path / FILES_FOLDER,
            lambda: node.tuning().cache_bytes,
            self._root,
            self._preparations.came,
        )
        self._results = Results(
            node.name,
            identity.incarnation,
            folder.path / FILES_FOLDER,
            self._files.folder_of,
            lambda: node.tuning().results,
            self._boot_id,
        )
        isolating = node.isolating or Isolating(IsolationSettings(), folder.path)
        limiting = node.limiting or Limiting(IsolationSettings(), isolates=False)
        self._environments = Environments(
            folder.path.absolute() / ENVIRONMENTS_FOLDER,
            isolating,
            limiting,
            lambda: node.tuning().setup,
            self._tell_setup,
        )
        self._launcher = Launcher(
            node.machine,
            self._duties.inventory.live,
            lambda: node.tuning().spool_bytes,
            node.for_workers,
            lambda: node.for_jobs(self._address),
            self._files.folder_of,
            isolating,
            limiting,
            self._environments.folder_of,
        )
        self._store_position = StorePosition(folder.path)
        self._containers = Containers(
            node.containers,
            folder.path,
            identity.agent_id,
            lambda: [view.key for view in self._duties.inventory.live()],
            self.renew,
            self._tell_image,
        )
        self._heartbeats = Heartbeats(node.name, identity.incarnation, identity.highest_term, self)
        self._file_checks = FileChecks(
            node.name, identity.incarnation, self._root, lambda answer: self._heartbeats.say(files_checked=answer)
        )
        self._program_log = ProgramLog(node.log_file, lambda chunk: self._heartbeats.say(program_log=chunk))
        self._notices = Notices(
            node.name,
            NoticeRecords(folder.path / NOTICES_FOLDER),
            lambda: node.tuning().notifies_local,
            self._tell_notice_failure,
        )
        self._usages = Usages(
            node.machine.source,
            tick_seconds=lambda: node.tuning().busy_sampling_seconds,
            set_interval=self._sample_every,
            top_of=lambda key, leader: self._containers.process_of(key) if self._containers.has(key) else leader,
            records=UsageRecords(folder.path / USAGES_FOLDER),
        )
        self._sampling_seconds = node.tuning().sampling_seconds
        self._attempts = Attempts(
            self._duties,
            self._keeping,
            self._launcher,
            self._output,
            self._notices,
            self._usages,
            self._files,
            self._results,
            self._environments,
            self._containers,
            self._preparations,
            report=self._heartbeats.report,
            carried_out=self._heartbeats.carried_out,
            judge=self._refusal_of,
            traces=node.traces,
        )
        self._channels = Channels(keepers)
        self._forwarding = Forwarding(self._leader_of)
        self._reaching = Reaching(
            lambda key: self._leader_of(key) is not None,
            self._files.folder_of,
            self._account_of,
            self._results.checkpoint,
        )
        self._commands = Commands(keepers)
        self._keepers = keepers
        self._link = Link(
            node.addresses,
            target_of=node.target_of,
            registration=self._registration,
            accept=self._accept,
            hold=self._hold,
            tell=self._note_state,
        )
        self._refreshing: asyncio.Task[None] | None = None
        self._to_clear: set[str] = set()
        self._forgotten: tuple[AttemptView, ...] | None = None

    async def run(self) -> None:
        """Be the agent until cancelled; raises what makes going on impossible."""
        await self._root.look()
        self._attempts.adopt(await self._keepers.inventory())
        inventory = [entry.key for entry in self._duties.inventory]
        left = self._results.sweep(inventory)
        self._attempts.bring_left(left)
        with_folder = {*inventory, *self._notices.keys_with_folder()}
        self._environments.adopt(with_folder)
        sweeping = asyncio.create_task(self._files.sweep({*with_folder, *left}))
        await self._containers.begin()
        try:
            await until_first(
                self._link.run(),
                self._keeping.run(),
                self._keeping.tell_keepers(),
                self._usages.run(),
                self._root.run(),
                self._containers.run(),
            )
        finally:
            sweeping.cancel()
            if self._refreshing is not None:
                self._refreshing.cancel()
            await self._attempts.close()
            await self._notices.close()
            await self._keeping.close()
            self._usages.close()

    def live(self) -> Iterator[AttemptView]:
        """The attempts whose processes may run."""
        return self._duties.inventory.live()

    def _tell_setup(self, key: RankKey, is_ready: bool, message: str) -> None:
        self._heartbeats.report(lambda now_us: {"setup_state": wire.setup_to_proto(key, message, is_ready=is_ready)})

    def _tell_notice_failure(self, key: RankKey, failure: Failure, stored: Callable[[], None]) -> None:
        told = wire.notice_failed_to_proto(key, failure)
        self._heartbeats.report(lambda now_us: {"notice_failed": told}, stored)

    def _tell_image(self, key: RankKey, image: str, is_here: bool, message: str) -> None:
        state = wire.setup_to_proto(key, message, is_ready=is_here, image=image)
        self._heartbeats.report(lambda now_us: {"setup_state": state})

    def _leader_of(self, key: RankKey) -> int | None:
        """The process id of a rank's leader, None when none runs here."""
        view = self._duties.inventory[key]
        if (inside := self._containers.process_of(key)) is not None:
            return inside
        return view.pid if isinstance(view, AttemptView) and view.phase.is_live else None

    def renew(self) -> None:
        """Register again, because the node's facts or labels have changed."""
        self._link.renew()

    # --- duties of the heartbeat streams

    def inventory(self, now_us: int) -> node_agent_pb2.Inventory:
        """Everything that the node knows."""
        return wire.inventory_to_proto(
            self._duties.inventory,
            self._boot_id,
            self._info(),
            now_us,
            self._usages.of,
            self._files.runs_of,
            self._forgotten,
        )

    def beat(self) -> node_agent_pb2.Beat:
        """A sign of life with the newest samples."""
        live = tuple(self._duties.inventory.live())
        self._sample_every(self._usages.interval_seconds)
        since, usages = self._usages.take_beat()
        summaries = {uuid: device_summary(tally) for uuid, tally in since.items()}
        beat = self._node.machine.beat(live, summaries, usages)
        if (free_bytes := self._files.free_bytes()) is not None:
            beat.host.files_free_bytes = free_bytes
        beat.preparations.extend(self._preparations.as_protos())
        return beat

    def heard(self, sent_us: int) -> None:
        """The scheduler had a message sent at this time: every fence counts from there."""
        if self._duties.heartbeat_heard(sent_us):
            self._keeping.set_fence(sent_us)

    def heard_term(self, term: int) -> None:
        """Store a risen term: nothing of a lower one may be carried out, after a restart neither."""
        if term > self._identity.highest_term:
            identity = replace(self._identity, highest_term=term)
            self._folder.store(identity)
            self._identity = identity

    def heard_position(self, position: str) -> None:
        """Keep how far the scheduler's store is."""
        self._store_position.keep(position)

    def carry_out(
        self, message: node_agent_pb2.HeartbeatResponse, heartbeat_sent_us: int | None, receipt: Receipt
    ) -> None:
        """Begin to carry one command out."""
        command = wire.command_from_proto(message)
        match command:
            case None:
                pass
            case RefreshSamples():
                self._refresh()
            case ClearTroubles():
                self._refresh(command.device_uuids or tuple(self._node.machine.devices))
            case ReadProgramLog():
                self._program_log.carry_out(command)
            case ReadSetupOutput():
                written, total_bytes = self._environments.written.of(command.key, command.offset)
                self._program_log.send(command.request, written, total_bytes)
            case CheckFiles():
                self._file_checks.carry_out(command)
            case SetLogLevel():
                self._set_log_level(command.level)
            case OpenChannel():
                self._channels.open(command)
            case OpenPort():
                self._forwarding.open(command)
            case OpenExec():
                self._commands.open(command)
            case OpenFiles():
                self._reaching.open(command)
            case CloseChannel():
                self._forwarding.close(command.channel_id)
                self._reaching.close(command.channel_id)
                self._commands.close(command.channel_id)
            case TellWarning():
                self._notices.warn(command)
            case Unknown():
                _log.warning("the scheduler asks for %s, which this version does not do", command.name)
            case _:
                refusal = self._refusal_of(command, heartbeat_sent_us)
                self._attempts.order(
                    Order(command=command, receipt=receipt, heartbeat_sent_us=heartbeat_sent_us or 0, refusal=refusal)
                )
                return
        self._heartbeats.carried_out(receipt)

    def _refusal_of(self, command: Command, heartbeat_sent_us: int | None) -> CommandRefusal | None:
        valid_for_us = self._command_valid_for_us
        return refusal_of(command, heartbeat_sent_us=heartbeat_sent_us, now_us=boottime_us(), valid_for_us=valid_for_us)

    def _set_log_level(self, level: str) -> None:
        if level not in LOG_LEVELS:
            _log.warning("the scheduler asks for the log level %r; there are %s", level, ", ".join(LOG_LEVELS))
            return
        self._node.set_log_level(level)
        _log.info("the log level is %s now", level)

    # --- one connection

    def _registration(self) -> node_agent_pb2.RegisterRequest:
        return node_agent_pb2.RegisterRequest(
            node=self._node.name,
            agent_id=self._identity.agent_id,
            incarnation=self._identity.incarnation,
            boot_id=self._boot_id,
            info=self._info(),
            protocol_version=PROTOCOL_VERSION,
            takes_credential=True,
            knows_lineages=True,
            keeps_backlog=True,
            store_position=self._store_position.text,
            store_id=self._identity.store_id,
            highest_term=self._heartbeats.highest_term,
        )

    def _info(self) -> node_pb2.NodeInfo:
        info, state = self._node.info(), self._root.state
        if self._root.folder is not None:
            info.shared_root_folder = str(self._root.folder)
            info.shared_root, info.shared_root_problem = state.id, state.problem
        containers = self._containers.as_proto(tuple(self._node.machine.devices.values()))
        if containers is not None:
            info.containers.CopyFrom(containers)
        return info

    def _account_of(self, user: str) -> Isolation | None:
        isolating = self._node.isolating
        return None if isolating is None else isolating.of(user, (), "")[1]

    def _note_state(self, address: Address, state: str, error: GpufleetError | None) -> None:
        """Leave word for the doctor of this machine; that it cannot be written harms nothing else."""
        if state == REGISTERED:
            self._address = address
        if error is not None and error.reason is Reason.TOKEN_INVALID:
            self._node.credential.unknown()
        told = AgentState(
            node=self._node.name,
            scheduler=str(address),
            state=state,
            reason=error.reason.name if error else "",
            message=error.message if error else "",
            next_step=error.next_step if error else "",
            pid=os.getpid(),
            at=now_in_words(),
        )
        try:
            write_agent_state(self._folder.path, told)
        except OSError as problem:
            _log.warning("how the agent stands with its scheduler cannot be written down: %s", problem.strerror)

    def _accept(self, answer: node_agent_pb2.RegisterResponse) -> None:
        if self._identity.store_id and answer.store_id not in ("", self._identity.store_id):
            _log.warning(
                "the scheduler has another store than the one before, whose term was %d", self._heartbeats.highest_term
            )
            self._keep_store(answer.store_id, 0)
            self._heartbeats.another_store()
        if answer.term < self._heartbeats.highest_term:
            raise StaleTerm(answer.term, self._heartbeats.highest_term)
        if answer.store_id and not self._identity.store_id:
            self._keep_store(answer.store_id, self._identity.highest_term)
        self._store_position.keep(answer.store_position, is_synced=True)
        if answer.credential:
            self._node.credential.keep(answer.credential)
        if self._node.isolating is not None:
            self._node.isolating.take_owner(answer.owner)

    def _keep_store(self, store_id: str, highest_term: int) -> None:
        identity = replace(self._identity, store_id=store_id, highest_term=highest_term)
        self._folder.store(identity)
        self._identity = identity

    async def _hold(self, stub: NodeAgentAsyncStub, answer: node_agent_pb2.RegisterResponse) -> None:
        if answer.HasField("command_valid_for"):
            self._command_valid_for_us = answer.command_valid_for.ToMicroseconds()
        self._forgotten = await self._keepers.forgotten() if answer.asks_for_all else None
        interval_s = answer.heartbeat_interval.ToMicroseconds() / 1e6 or BEAT_SECONDS
        try:
            await until_first(
                self._heartbeats.hold(stub, interval_s),
                self._hold_output(stub),
                self._channels.hold(stub),
                self._forwarding.hold(stub),
                self._reaching.hold(stub),
                self._commands.hold(stub),
                self._files.hold(stub),
                self._file_checks.hold(stub),
                self._results.hold(stub),
            )
        finally:
            await self._program_log.close()

    async def _hold_output(self, stub: NodeAgentAsyncStub) -> None:
        """Output has streams of its own: a full disk there must not cost the node its heartbeat."""
        pause_s = RETRY_SECONDS_MIN
        while True:
            since = time.monotonic()
            try:
                await self._output.hold(stub)
            except grpc.aio.AioRpcError as problem:
                _log.log(
                    logging.WARNING if pause_s == RETRY_SECONDS_MIN else logging.DEBUG,
                    "output is not taken for now: %s",
                    from_rpc_error(problem).message,
                )
            except ConnectionError as problem:
                _log.debug("the output stream ended: %s", problem)
            if time.monotonic() - since > RETRY_SECONDS_MAX:
                pause_s = RETRY_SECONDS_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_SECONDS_MAX)

    # --- samples

    def _refresh(self, to_clear: tuple[str, ...] = ()) -> None:
        """Beat with fresh readings, these devices' past troubles forgotten; one after the other."""
        self._to_clear |= set(to_clear)
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._beat_fresh())

    async def _beat_fresh(self) -> None:
        source = self._node.machine.source
        while True:
            to_clear, self._to_clear = tuple(self._to_clear), set()
            if to_clear:
                await asyncio.to_thread(source.clear_troubles, to_clear)
            await asyncio.to_thread(source.fresh, max_age_seconds=0.0, timeout_seconds=READING_SECONDS_MAX)
            self._heartbeats.beat()
            if not self._to_clear:
                return

    def _sample_every(self, busy_seconds: float | None) -> None:
        """Read the devices so often; None: as while nothing runs."""
        wanted_s = self._node.tuning().sampling_seconds if busy_seconds is None else busy_seconds
        if wanted_s != self._sampling_seconds:
            self._sampling_seconds = wanted_s
            self._node.machine.source.set_interval(wanted_s)
