"""Turns a launch command into a running process: checks what it expects, makes its environment, asks the keeper.

Between the command and the keeper's spawn nothing waits when fresh readings of the devices are at hand.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.devices.device import Device, DeviceSample
from gpufleet.jobs.runs import RankKey
from gpufleet.jobs.variables import JOB_TOKEN_VARIABLE

from .core.actions import Master
from .core.attempt import Limits
from .core.commands import LaunchAttempt
from .core.environment import Account, RankPlace, environment_in_container, environment_of
from .core.expectations import Expectations, Misfit, Unfit, misfit
from .core.launch import ENVIRONMENT_PATH, FILES_PATH, HOME_PATH, EnvironmentTool, Launch, Process
from .core.outcome import AttemptView
from .core.slots import noted_slot
from .environment import LOOPBACK, free_port, shown_devices
from .isolation.accounts import Isolating
from .isolation.limits import Limiting
from .keeper.linux import boottime_us
from .machine import Machine, reading_of
from .origins import noted_origin, noted_run
from .ports import PORT_MAX
from .traces import noted
from .usage import note_of

_log = logging.getLogger(__name__)

READING_SECONDS_MAX = 2.0
"""A device that does not answer in this time does not get the job."""

LONGEST_ADDRESS = "x" * 253
"""No name of a host is longer; with it a launch that fits its node fits with any master."""

READINGS_MAX = 4
READING_PAUSE_SECONDS = 0.25
"""A device that looks busy is read again: a driver gives memory back a moment after its process has died."""


class Launcher:
    """Checks and completes launches. `live` answers the attempts whose processes are ours, `for_workers` what the
    environment of a model's worker says of the way to the scheduler, and `for_jobs` that of any other job. `folder_of`
    is where the files of a rank are, `environment_of` where the environment is that it begins in, `isolating` says as
    whom its process runs, and `limiting` within what.
    """

    def __init__(
        self,
        machine: Machine,
        live: Callable[[], Iterable[AttemptView]],
        spool_bytes: Callable[[], int],
        for_workers: Callable[[], Mapping[str, str]],
        for_jobs: Callable[[], Mapping[str, str]] = dict,
        folder_of: Callable[[RankKey], Path] = lambda key: Path("/"),
        isolating: Isolating | None = None,
        limiting: Limiting | None = None,
        environment_of: Callable[[RankKey], Path | None] = lambda key: None,
    ) -> None:
        self._machine = machine
        self._live = live
        self._isolating = isolating or Isolating(IsolationSettings(), Path("/"))
        self._limiting = limiting or Limiting(IsolationSettings(), isolates=False)
        self._spool_bytes = spool_bytes
        self._for_workers = for_workers
        self._for_jobs = for_jobs
        self._folder_of = folder_of
        self._environment_of = environment_of

    def is_surely_fit(self, expectations: Expectations) -> bool:
        """Whether what is known already says that the devices are as expected; waits for nothing."""
        uuids = expectations.device_uuids
        if all(self._is_virtual(uuid) for uuid in uuids):
            return True
        readings = [reading_of(sample) for sample in self._machine.readings(self._live(), uuids)]
        return misfit(expectations, readings) is None

    async def misfit(self, expectations: Expectations) -> tuple[Misfit | None, tuple[DeviceSample, ...]]:
        """Read the devices anew; answers why they are not as expected, and the samples that say so.

        Nobody is refused on an old reading: it may show the processes of the attempt before.
        """
        found: Misfit | None = None
        samples: tuple[DeviceSample, ...] = ()
        for _ in range(READINGS_MAX):
            samples = await asyncio.to_thread(
                self._machine.fresh_readings,
                tuple(self._live()),
                expectations.device_uuids,
                timeout_seconds=READING_SECONDS_MAX,
            )
            found = misfit(expectations, [reading_of(sample) for sample in samples])
            if found is None or found.reason is Unfit.DEVICE_UNHEALTHY:
                break
            await asyncio.sleep(READING_PAUSE_SECONDS)
        return found, tuple(sample for sample in samples if found and sample.uuid in found.uuids)

    def complete(
        self,
        command: LaunchAttempt,
        master: Master | None,
        *,
        heartbeat_sent_us: int,
        traceparent: str,
        is_traced: bool = False,
    ) -> Launch:
        """The launch as the keeper takes it: argv, whole environment, limits. `is_traced`: its note names its trace."""
        devices, held = self._machine.devices, self.held(command)
        visibility, virtual_uuids = shown_devices(held)
        where = master or Master(LOOPBACK, free_port())
        files_folder = str(self._folder_of(command.key)) if command.has_files else ""
        environment = str(self._environment_of(command.key) or "") if command.environment else ""
        account, isolation = self._isolating.of(command.user, held, files_folder, environment)
        in_container = command.container is not None
        if isolation is not None or in_container:
            files_folder = FILES_PATH if files_folder else ""
            environment = ENVIRONMENT_PATH if environment else ""
        if in_container:
            account = Account(name=account.name, home=HOME_PATH)
        place = RankPlace(
            job_id=command.key.job,
            attempt=command.run_number or command.key.attempt,
            rank=command.key.rank,
            node_count=command.node_count,
            visibility=visibility,
            device_count=len(held),
            virtual_uuids=virtual_uuids,
            master_address=where.address,
            master_port=where.port,
            traceparent=traceparent,
            share_milli=command.share_milli,
            share_memory_bytes=command.share_memory_bytes,
            cpus=command.cpus,
            way=self.way(command),
            end_time_s=end_time_s(command.process.limits, time.time()),
            files_folder=files_folder,
            environment=environment,
            is_conda=command.environment is not None and command.environment.tool is EnvironmentTool.CONDA,
        )
        return Launch(
            key=command.key,
            process=replace(
                command.process,
                cwd=posixpath.join(files_folder, command.process.cwd) if files_folder else command.process.cwd,
                env=(environment_in_container if in_container else environment_of)(command.process.env, account, place),
                isolation=isolation,
                group=self._limiting.of(command.cpus, command.memory_bytes),
            ),
            heartbeat_sent_us=heartbeat_sent_us,
            spool_bytes=self._spool_bytes(),
            note=note_of(command.expectations.device_uuids, devices, command.sampling_us)
            + noted_origin(command.origin)
            + noted_slot(command.slot)
            + noted_run(command.run_number, command.key)
            + (noted(traceparent) if is_traced else ""),
        )

    def beside(self, command: LaunchAttempt, launch: Launch) -> Process:
        """Return how a command of the node runs that belongs to a rank: as the rank does, but in no container."""
        if command.container is None:
            return launch.process
        plain = replace(command, container=None)
        return self.complete(plain, None, heartbeat_sent_us=launch.heartbeat_sent_us, traceparent="").process

    def held(self, command: LaunchAttempt) -> list[Device]:
        """The devices that it holds."""
        devices = self._machine.devices
        return [devices[uuid] for uuid in command.expectations.device_uuids if uuid in devices]

    def rehearsed(self, command: LaunchAttempt) -> Launch:
        """The launch of a rank whose gang has not begun, to be checked: where its master listens is not known yet.

        Its fence is as new as can be, for it counts from what is known when the gang begins.
        """
        master = Master(LONGEST_ADDRESS, PORT_MAX)
        return self.complete(command, master, heartbeat_sent_us=boottime_us(), traceparent=command.trace_context)

    def way(self, command: LaunchAttempt) -> Mapping[str, str]:
        """What it is told of the way to the scheduler."""
        if command.serves:
            return worker_variables(self._for_workers(), command.process.env)
        return self._for_jobs() if JOB_TOKEN_VARIABLE in command.process.env else {}

    def _is_virtual(self, uuid: str) -> bool:
        device = self._machine.devices.get(uuid)
        return device is not None and device.is_virtual


def end_time_s(limits: Limits, now_s: float) -> int | None:
    """When an attempt that begins now has run for its time limit; a moment early rather than late."""
    return None if limits.time_limit_us is None else int(now_s + limits.time_limit_us / 1_000_000)


def worker_variables(told: Mapping[str, str], submitted: Mapping[str, str]) -> dict[str, str]:
    """What a worker is told, where it sends its telemetry only if nobody said otherwise when it was served."""
    return {name: value for name, value in told.items() if not (name.startswith("OTEL_") and name in submitted)}
