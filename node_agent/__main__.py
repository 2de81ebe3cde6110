"""Starts the node agent: `python -P -m gpufleet.node_agent`, or `gpuctl agent`.

SIGTERM and SIGINT end it and leave the keeper and the jobs running: the next start adopts them. SIGHUP reads the
settings again. `stop-keeper --data DIR [--kill]` ends the keeper of a folder whose agent has stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gpufleet.v1.node_pb2 import NodeInfo

import gpufleet.host.grpc_forks  # before anything imports grpc
import gpufleet.host.grpc_names  # noqa: F401  the same
from gpufleet.config.agent_settings import RANGE, SHARED, AgentSettings
from gpufleet.config.live import Live
from gpufleet.config.paths import log_file
from gpufleet.devices.device import DeviceSource
from gpufleet.devices.host import host_facts
from gpufleet.devices.opening import open_devices
from gpufleet.devices.playback import Load, read_load
from gpufleet.errors import GpufleetError, Reason, as_lines, invalid
from gpufleet.host import event_loop
from gpufleet.host.service_manager import ServiceManager
from gpufleet.jobs.variables import CA_FILE_VARIABLE, CLIENT_CERT_FILE_VARIABLE, INSECURE_VARIABLE, SCHEDULER_VARIABLE
from gpufleet.net.addresses import Address, addresses_text, is_loopback
from gpufleet.net.channel import Target
from gpufleet.net.routes import address_toward, every_address
from gpufleet.telemetry import metrics
from gpufleet.telemetry import spans as telemetry
from gpufleet.telemetry.logs import ProgramLog
from gpufleet.text.units import format_megabytes, format_size

from .agent import Node, NodeAgent, Tuning
from .containers.containers import ContainerSettings
from .containers.mounts import allowed_mounts
from .core.leavings import Bounds
from .credential import Credential
from .identity import DataFolder
from .isolation.accounts import Isolating
from .isolation.choice import chosen_accounts, sentence_of
from .isolation.limits import Limiting
from .isolation.probe import why_not_apart
from .isolation.ranges import claim_range
from .keeper.client import KeeperNotStarted, Keepers
from .keeper.connection import KeeperSilent, OtherProtocol
from .keeping import SupersededError
from .machine import Machine, NodeNaming, address_to_advertise, installed_version, node_info, tell_node
from .options import STOP_KEEPER, node_name, parser, reader_of, token_of, wants_automatic_gpu
from .setup.environments import SetupLimits
from .verifying import verify

_log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
KEEPER_FOLDER = "keeper"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; answers its exit code."""
    given = parser().parse_args(arguments)
    try:
        live = Live(reader_of(given))
        if given.verify:
            return _verify(live.now.data)
        node_name(live.now)
        if given.check_settings:
            token_of(live.now)
            return 0
        with closing(DataFolder(live.now.data)) as folder:
            if given.command == STOP_KEEPER:
                return asyncio.run(_stop_keeper(folder, kill=given.kill))
            with ProgramLog("agent", live.now.log, log_file(folder.path, "agent")) as log:
                credential = Credential(folder.path, lambda: token_of(live.now))
                isolating = _isolating(live.now, folder)
                limiting = Limiting(live.now.isolation, isolates=isolating.is_on)
                program = _Program(live, folder, log, wants_automatic_gpu(given), credential, isolating, limiting)
                return event_loop.run(program.run(), live.now.event_loop)
    except GpufleetError as error:
        print(as_lines(error), file=sys.stderr)
    except (KeeperNotStarted, KeeperSilent, OtherProtocol, SupersededError) as problem:
        print(f"the agent cannot go on: {problem}", file=sys.stderr)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FAILED


@dataclass(frozen=True, slots=True)
class _Program:
    """One run of the agent, with what it needs of its surroundings."""

    live: Live[AgentSettings]
    folder: DataFolder
    log: ProgramLog
    is_gpu_automatic: bool
    credential: Credential
    isolating: Isolating
    limiting: Limiting

    async def run(self) -> int:
        """Open devices and keepers and be the agent until told to stop."""
        settings = self.live.now
        # Before the keeper is started, which goes on without this program.
        service = ServiceManager()
        name = node_name(settings)
        traces, measured = telemetry.start("agent", instance=name), metrics.start("agent", instance=name)
        source = await asyncio.to_thread(self._devices, name)
        try:
            async with await Keepers.open(self.folder.path / KEEPER_FOLDER, build=installed_version()) as keepers:
                listens = await address_toward(settings.scheduler)
                node = self._node(name, source, traces, await self._advertised(), listens)
                _log_node(node, source)
                self.limiting.log()
                agent = NodeAgent(node, self.folder, self.folder.next_identity(), keepers)
                tell_node(measured, source, self.folder.path, agent.live)
                service.ready(f"node {name}, scheduler {', '.join(map(str, settings.scheduler))}")
                watching = asyncio.create_task(service.watch(), name="service-manager")
                try:
                    await self._until_told(agent)
                finally:
                    service.stopping()
                    watching.cancel()
        finally:
            source.close()
            traces.close()
            measured.close()
        return 0

    def _devices(self, node: str) -> DeviceSource:
        settings = self.live.now
        interval_s = settings.sampling.interval.total_seconds()
        load = None if settings.virtual_load is None else _load(settings.virtual_load)
        source = open_devices(
            node=node, virtual_gpus=settings.virtual_gpus, virtual_load=load, interval_seconds=interval_s
        )
        if self.is_gpu_automatic and not source.list():
            return open_devices(node=node, virtual_gpus=1, virtual_load=load, interval_seconds=interval_s)
        return source

    async def _advertised(self) -> str:
        settings = self.live.now
        return settings.advertise or await address_to_advertise(settings.scheduler)

    def _node(
        self, name: str, source: DeviceSource, traces: telemetry.Telemetry, advertised: str, listens: str
    ) -> Node:
        settings = self.live.now
        facts = host_facts(cpus=settings.cpus)

        def info() -> NodeInfo:
            labels = dict(self.live.now.labels)
            accounts = self.isolating.as_proto(self.limiting)
            naming = NodeNaming(node=name, advertise=advertised, labels=labels, accounts=accounts)
            return node_info(naming, facts, source)

        return Node(
            name=name,
            addresses=settings.scheduler,
            target_of=self._target_of,
            info=info,
            machine=Machine(source, self.folder.path),
            log_file=log_file(self.folder.path, "agent"),
            set_log_level=self.log.set_level,
            tuning=self._tuning,
            traces=traces,
            credential=self.credential,
            isolating=self.isolating,
            limiting=self.limiting,
            shared_root=settings.files.shared_root,
            containers=self._containers,
            for_workers=lambda: self._for_workers(listens),
            for_jobs=self._for_jobs,
        )

    def _for_workers(self, listens: str) -> dict[str, str]:
        """A worker dials the scheduler as the agent does, and listens where this node is reached."""
        settings = self.live.now
        if is_loopback(listens) and settings.advertise and not is_loopback(settings.advertise):
            listens = every_address(settings.advertise)
        found = {"GPUCTL_SCHEDULER": addresses_text(settings.scheduler), "GPUFLEET_WORKER_HOST": listens}
        if settings.advertise:
            found["GPUFLEET_WORKER_ADVERTISE"] = settings.advertise
        found |= self._protection()
        if settings.event_loop != event_loop.AUTO:
            found[event_loop.EVENT_LOOP_VARIABLE] = settings.event_loop
        # A service's name is its own; all else, where to send it above all, holds for the workers of this machine, too.
        theirs = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
        told = {name: value for name, value in os.environ.items() if name.startswith("OTEL_") and name not in theirs}
        return found | told

    def _for_jobs(self, address: Address) -> dict[str, str]:
        """A job's gpuctl dials the scheduler that the agent is connected to, as the agent does, and then the others."""
        others = [each for each in self.live.now.scheduler if each != address]
        return {SCHEDULER_VARIABLE: addresses_text([address, *others]), **self._protection()}

    def _protection(self) -> dict[str, str]:
        settings, found = self.live.now, {}
        if settings.ca_file is not None:
            found[CA_FILE_VARIABLE] = str(settings.ca_file.absolute())
        if settings.job_cert_file is not None:
            found[CLIENT_CERT_FILE_VARIABLE] = str(settings.job_cert_file.absolute())
        if settings.insecure:
            found[INSECURE_VARIABLE] = "1"
        return found

    def _containers(self) -> ContainerSettings:
        settings = self.live.now
        return ContainerSettings(
            engine=settings.containers.engine,
            mounts=allowed_mounts(settings.containers.mounts),
            mounts_told=settings.containers.mounts,
            processes_max=settings.isolation.processes_max,
        )

    def _tuning(self) -> Tuning:
        settings = self.live.now
        return Tuning(
            sampling_seconds=settings.sampling.interval.total_seconds(),
            busy_sampling_seconds=settings.sampling.busy_interval.total_seconds(),
            spool_bytes=settings.spool.attempt_bytes_max,
            notifies_local=settings.notify.allow_local,
            cache_bytes=settings.files.cache_bytes_max,
            setup=SetupLimits(
                seconds_max=settings.setup.time_limit.total_seconds(), bytes_max=settings.setup.cache_limit
            ),
            results=Bounds(
                seconds=settings.files.keep_results.total_seconds(), bytes_max=settings.files.results_bytes_max
            ),
        )

    def _target_of(self, address: Address) -> Target:
        settings = self.live.now
        return Target(
            address=address,
            token=self.credential.token(),
            ca_file=settings.ca_file,
            client_cert_file=settings.client_cert_file,
            is_insecure=settings.insecure,
        )

    async def _until_told(self, agent: NodeAgent) -> None:
        running = asyncio.ensure_future(agent.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._reload(agent))
        try:
            await running
        except asyncio.CancelledError:
            _log.info("leaving; running jobs go on, and the next start of this agent adopts them")

    def _reload(self, agent: NodeAgent) -> None:
        try:
            reloaded = self.live.reload()
        except GpufleetError as error:
            _log.error("the settings are left as they are: %s", as_lines(error))
            return
        self.log.apply(self.live.now.log)
        for change in reloaded.applied:
            _log.info("reloaded %s", change)
        for change in reloaded.waiting:
            _log.warning("%s needs a restart of the agent", change)
        if any(change.key == "labels" for change in reloaded.applied):
            agent.renew()


def _isolating(settings: AgentSettings, folder: DataFolder) -> Isolating:
    """As whom jobs run, tried for real where that was left to the agent; it says so in its log."""
    chosen = chosen_accounts(
        settings.isolation.users,
        settings.owner,
        is_from_before=folder.is_from_before,
        why_not_apart=lambda: why_not_apart(folder.path),
    )
    isolating = Isolating(settings.isolation, folder.path, chosen)
    if chosen.users == RANGE:
        claimed = claim_range(settings.isolation, folder.path)
        isolating.uid_first = claimed.first
        _log.info("users have uids from %d to %d", claimed.first, claimed.last)
    is_open = chosen.users == SHARED
    _log.log(logging.WARNING if is_open else logging.INFO, "%s", sentence_of(chosen, isolating.own_account.name))
    return isolating


def _load(file: Path) -> Load:
    try:
        return read_load(file)
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"virtual_load: {file}: {problem.strerror}") from None
    except ValueError as problem:
        raise invalid("virtual_load", str(problem)) from None


def _log_node(node: Node, source: DeviceSource) -> None:
    info = node.info()
    memory, waits_with = format_size(info.memory_bytes), event_loop.running_loop_in_words()
    _log.info("node %s: %d CPUs, %s memory; event loop %s", node.name, info.cpus, memory, waits_with)
    for device in info.devices:
        _log.info("GPU %d: %s, %s", device.index, device.name, format_megabytes(device.memory_bytes))
    status = source.status()
    if status.note:
        _log.log(logging.INFO if info.devices else logging.WARNING, "%s %s", status.note, status.next_step)


def _verify(data: Path) -> int:
    if not (data / KEEPER_FOLDER).is_dir():
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"{data} is no agent's data folder: it has no folder {KEEPER_FOLDER}",
            next_step="Name the agent's data folder with --data DIR.",
        )
    looked = verify(data / KEEPER_FOLDER)
    for problem in looked.problems:
        print(problem)
    if looked.problems:
        print("docs/troubleshooting.md says what helps.", file=sys.stderr)
        return EXIT_FAILED
    print(f"all is well: {looked.in_words()}")
    return 0


async def _stop_keeper(folder: DataFolder, *, kill: bool) -> int:
    async with await Keepers.open(folder.path / KEEPER_FOLDER, build=installed_version()) as keepers:
        refusal = await keepers.shutdown(kill=kill)
    if refusal is None:
        return 0
    print(f"{refusal.detail}\nTo end them too: stop-keeper --data {folder.path} --kill", file=sys.stderr)
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
