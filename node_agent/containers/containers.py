"""The containers of this node's attempts: the image comes, the container is made, and what nobody has is swept.

DATA/containers/KEY/      state.json, what its runner writes down; home, the job's home in it
DATA/containers/…         see images.py

All that asks the engine runs in threads. What is made here is known by labels: whose agent, which attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpufleet.v1 import node_pb2

from gpufleet.devices.device import Device, Vendor
from gpufleet.devices.host import memory_installed_bytes
from gpufleet.jobs.runs import RankKey
from gpufleet.net.program_ports import choose_port

from ..core.commands import LaunchAttempt
from ..core.launch import Container, Launch, Refusal, RefusalReason
from ..isolation.device_nodes import nodes_of
from ..keeper.containers.ending import first_process
from ..keeper.containers.engine_words import OF_GPUS
from ..keeper.containers.state import read_state
from ..keeper.jail import give_all
from .engine import BY_NODES, ContainerTrouble, Engine, EngineFacts, refusing, said_by
from .engine_probe import problem_of_trial
from .images import PULLS_AT_ONCE_MAX, Images, Tell
from .making import AGENT_LABEL, ATTEMPT_LABEL, JOB_LABEL, PublishedPort, Wanted, request_of
from .mount_places import MountPlaces
from .mounts import AllowedMount, checked_mount
from .running import runner_of
from .served import served_of

_log = logging.getLogger(__name__)

FOLDER = "containers"
LOOK_SECONDS = 60.0
"""Between two looks at the engine, and two sweeps."""
AWAY_SECONDS = 3.0
"""The same while its socket is there and nobody answers: it may just be started anew."""
FIRST_SECONDS_MAX = 30.0
"""So long an agent's start waits for its engine; later it tells of it anew."""

STATE, HOME = "state.json", "home"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """`engine`: "auto", "none" or unix://PATH; `mounts`: what jobs may be shown; `processes_max`: how many each has."""

    engine: str = "auto"
    mounts: tuple[AllowedMount, ...] = ()
    mounts_told: tuple[str, ...] = ()
    processes_max: int = 4096


TellImage = Callable[[RankKey, str, bool, str], None]
"""Hears of an image that comes for a rank: which, whether it is there now, and how far it is, in words."""


class Containers:
    """Makes and sweeps containers for one agent. `live` answers the attempts whose processes may run.

    `tell_image` hears how far the images are that come.
    """

    def __init__(
        self,
        settings: Callable[[], ContainerSettings],
        folder: Path,
        agent_id: str,
        live: Callable[[], Collection[RankKey]],
        changed: Callable[[], None],
        tell_image: TellImage,
    ) -> None:
        self._settings = settings
        self._data = folder.absolute()
        self._folder = self._data / FOLDER
        self._agent_id = agent_id
        self._live = live
        self._changed = changed
        self._tell_image = tell_image
        self._engine = Engine(settings().engine)
        self._images = Images(self._folder)
        self._places = MountPlaces(agent_id)
        self._pulling = ThreadPoolExecutor(PULLS_AT_ONCE_MAX, thread_name_prefix="images")
        self._facts: EngineFacts | None = None
        self._seen: EngineFacts | None = None
        self._started_by = ("", "")
        self._trial_at = 0.0
        self._trial_problem = ""
        self._first: asyncio.Task[None] | None = None
        self._making: set[str] = set()
        self._ports: dict[str, int] = {}
        self._own = {each.name for each in self._folder.iterdir()} if self._folder.is_dir() else set()

    # --- what the node says of itself

    def as_proto(self, devices: Sequence[Device]) -> node_pb2.NodeContainers | None:
        """What the scheduler is told; None before the first look."""
        facts = self._facts
        if facts is None:
            return None
        real = [device for device in devices if not device.is_virtual]
        needs_nvidia = any(not nodes_by_files(device) for device in real)
        # One that is away for a while still counts: what waits for it is not told that it never will come.
        seen = facts if facts.name or not facts.socket else self._seen or facts
        return node_pb2.NodeContainers(
            engine=seen.name,
            problem=facts.problem,
            fix=facts.fix,
            gpus_by=(seen.nvidia_by if needs_nvidia else BY_NODES) if seen.name else "",
            mounts=self._settings().mounts_told,
        )

    async def begin(self) -> None:
        """Look at the engine and sweep what an agent of before has left; an engine that is slow is looked at later."""
        self._first = asyncio.create_task(self._begin())
        await asyncio.wait({self._first}, timeout=FIRST_SECONDS_MAX)

    async def _begin(self) -> None:
        await self.look()
        await self.sweep()

    async def look(self) -> None:
        """Find out what the engine is now; the scheduler is told of what has changed."""
        facts = await asyncio.to_thread(self._look)
        is_new = self._facts is None or _told(facts) != _told(self._facts)
        if is_new:
            _log.info("containers: %s", facts.name or facts.problem)
        self._facts = facts
        if facts.name:
            self._seen = facts
        if is_new:
            self._changed()

    async def run(self) -> None:
        """Look at the engine and sweep, now and again."""
        if self._first is not None:
            await self._first
        while True:
            is_away = self._facts is not None and bool(self._facts.socket) and not self._facts.name
            await asyncio.sleep(AWAY_SECONDS if is_away else LOOK_SECONDS)
            await self.look()
            await self.sweep()

    # --- an attempt

    async def prepare(self, command: LaunchAttempt) -> Refusal | None:
        """Have its image here, and check what it is to be shown; answers what speaks against it."""
        loop = asyncio.get_running_loop()

        def tell(image: str, is_here: bool, message: str) -> None:
            with contextlib.suppress(RuntimeError):  # the agent has left meanwhile
                loop.call_soon_threadsafe(self._tell_image, command.key, image, is_here, message)

        try:
            await loop.run_in_executor(self._pulling, self._prepare, command, tell)
        except ContainerTrouble as trouble:
            return trouble.refusal
        return None

    async def made(
        self,
        command: LaunchAttempt,
        launch: Launch,
        devices: Sequence[Device],
        files: str,
        way: Mapping[str, str],
    ) -> Launch:
        """Make the container of a launch: answers that of its runner, or of the worker that is to start that.

        `files` is the folder of its files on this node, empty for none, and `way` what a worker is told of the way to
        the scheduler. Errors: ContainerTrouble.
        """
        if not command.serves:
            return await asyncio.to_thread(self._made, command, launch, devices, files)
        served = served_of(launch.process.argv)
        port = self._ports[launch.key.name] = choose_port(set(self._ports.values()))
        inside = replace(launch, process=served.process_in_container(launch.process, port))
        published = PublishedPort(in_container=served.container_port, on_loopback=port)
        try:
            made = await asyncio.to_thread(
                self._made, command, inside, devices, files, published if served.container_port else None
            )
        except BaseException:
            self._ports.pop(launch.key.name, None)
            raise
        return replace(made, process=served.worker(made.process, port, launch.process.env, way))

    def has(self, key: RankKey) -> bool:
        """Whether an attempt has, or had, a container of which something may be left."""
        return key.name in self._own

    async def remove(self, key: RankKey) -> None:
        """Remove what is left of an attempt that is over."""
        await asyncio.to_thread(self._remove, key)
        self._ports.pop(key.name, None)

    async def sweep(self) -> None:
        """Remove what belongs to no attempt that may run: an agent may have died between making and launching."""
        try:
            await asyncio.to_thread(self._sweep)
        except (ContainerTrouble, OSError) as problem:
            _log.warning("containers are swept later: %s", problem)

    def process_of(self, key: RankKey) -> int | None:
        """The first process of an attempt's container, where it runs one and that is seen here."""
        return first_process(read_state(str(self._folder / key.name / STATE))) if self.has(key) else None

    # --- in threads

    def _look(self) -> EngineFacts:
        facts = self._engine.look()
        if not facts.name:
            return facts
        if (facts.socket, facts.name) != self._started_by and time.monotonic() >= self._trial_at:
            self._trial_at = time.monotonic() + LOOK_SECONDS
            labels = {AGENT_LABEL: self._agent_id}
            self._trial_problem = problem_of_trial(self._engine.client(facts.socket), labels)
            self._started_by = ("", "") if self._trial_problem else (facts.socket, facts.name)
        if not self._trial_problem:
            return facts
        fix = "See what its engine says: podman info, or docker info, and the log of its service."
        return EngineFacts(socket=facts.socket, problem=f"{facts.name}: {self._trial_problem}", fix=fix)

    def _known(self) -> EngineFacts:
        """The engine, looked at again where there was none. Errors: ContainerTrouble NO_ENGINE."""
        facts = self._facts
        if facts is None or not facts.name:
            facts = self._facts = self._look()
        if not facts.name:
            raise ContainerTrouble(
                RefusalReason.NO_ENGINE, f"this node runs no containers: {facts.problem}. {facts.fix}"
            )
        return facts

    def _prepare(self, command: LaunchAttempt, tell: Tell) -> None:
        assert command.container is not None
        facts = self._known()
        for mount in command.container.mounts:
            self._checked(mount, facts)
        self._images.have(self._engine.client(facts.socket), command.container, command.user, tell)

    def _checked(self, mount: Any, facts: EngineFacts) -> Any:
        return checked_mount(mount, self._settings().mounts, (Path(facts.socket), self._data))

    def _made(
        self,
        command: LaunchAttempt,
        launch: Launch,
        devices: Sequence[Device],
        files: str,
        port: PublishedPort | None = None,
    ) -> Launch:
        assert command.container is not None
        facts, settings, process = self._known(), self._settings(), launch.process
        isolation, own = process.isolation, self._folder / launch.key.name
        uid, gid = (os.geteuid(), os.getegid()) if isolation is None else (isolation.uid, isolation.gid)
        self._own.add(own.name)
        self._making.add(own.name)
        shutil.rmtree(own, ignore_errors=True)
        (own / HOME).mkdir(mode=0o700, parents=True)
        self._folder.chmod(0o700)
        if isolation is not None:
            os.chown(own / HOME, uid, gid)
            if files:
                give_all(files, isolation)
        if any(not device.is_virtual and not nodes_by_files(device) for device in devices) and not facts.nvidia_by:
            raise ContainerTrouble(
                RefusalReason.NO_GPU_CONTAINERS,
                f"{facts.name} gives containers no GPUs on this node: install the NVIDIA container toolkit there, and "
                "describe its GPUs: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            )
        mark = secrets.token_hex(16)
        wanted = Wanted(
            image=command.container.image,
            argv=process.argv,
            env=process.env,
            cwd=process.cwd,
            input=process.input,
            uid=uid,
            gid=gid,
            groups=() if isolation is None else isolation.groups,
            memory_bytes=command.memory_bytes,
            machine_memory_bytes=memory_installed_bytes(),
            cpus=max(1, command.cpus),
            processes_max=settings.processes_max,
            mounts=self._places.held(
                own.name, [self._checked(mount, facts) for mount in command.container.mounts], facts.socket
            ),
            files=files,
            home=str(own / HOME),
            devices=devices,
            nodes=tuple(path for path in nodes_of([d for d in devices if nodes_by_files(d)]) if Path(path).exists()),
            labels={
                AGENT_LABEL: self._agent_id,
                ATTEMPT_LABEL: launch.key.name,
                JOB_LABEL: str(launch.key.job),
            },
            mark=mark,
            port=port,
        )
        made = self._create(facts, f"gpufleet-{launch.key.name}-{mark[:8]}", request_of(wanted, facts))
        container = Container(
            engine=facts.socket,
            id=made,
            state=str(own / STATE),
            has_init=facts.has_init,
            memory_bytes=command.memory_bytes,
        )
        return replace(launch, process=runner_of(launch, container, mark))

    def _create(self, facts: EngineFacts, name: str, request: dict[str, Any]) -> str:
        client = self._engine.client(facts.socket)
        with refusing(RefusalReason.CONTAINER_FAILED, "", _why_not_made):
            answer = client.create_container_from_config(request, name)
        return str(answer["Id"])

    def launched(self, key: RankKey) -> None:
        """Its keeper was asked: from now on the attempt says whether the container is in use."""
        self._making.discard(key.name)

    def _remove(self, key: RankKey) -> None:
        facts = self._facts
        if facts is not None and facts.name:
            client = self._engine.client(facts.socket)
            with contextlib.suppress(ContainerTrouble):
                self._remove_all(client, {"label": [f"{AGENT_LABEL}={self._agent_id}", f"{ATTEMPT_LABEL}={key.name}"]})
        shutil.rmtree(self._folder / key.name, ignore_errors=True)
        self._release(key.name)
        self._own.discard(key.name)

    def _release(self, attempt: str) -> None:
        try:
            self._places.release(attempt)
        except OSError as problem:
            _log.warning("the mounts of attempt %s are let go of later: %s", attempt, problem)

    def _remove_all(self, client: Any, filters: dict[str, Any], but: Callable[[], Collection[str]] = tuple) -> None:
        with refusing(RefusalReason.NO_ENGINE, "the container engine does not answer"):
            found = client.containers(all=True, filters=filters)
            kept = but()  # behind the list: none in it was made later
            for each in found:
                attempt = (each.get("Labels") or {}).get(ATTEMPT_LABEL, "")
                if attempt in kept:
                    continue
                _log.info("removing the container of attempt %s, which is over", attempt)
                _remove_one(client, str(each["Id"]))

    def _sweep(self) -> None:
        facts = self._facts
        if facts is not None and facts.name:
            client = self._engine.client(facts.socket)
            self._remove_all(client, {"label": [f"{AGENT_LABEL}={self._agent_id}"]}, self._in_use)
        if self._folder.is_dir():
            found = {each.name: each for each in self._folder.iterdir() if each.is_dir()}
            for name in found.keys() - self._in_use():
                shutil.rmtree(found[name], ignore_errors=True)
        self._places.sweep(self._in_use)

    def _in_use(self) -> set[str]:
        """The attempts of which nothing may be removed that was seen before."""
        # What is being made is looked at before what lives: it goes from the one to the other.
        return set(self._making) | {key.name for key in self._live()}


def nodes_by_files(device: Device) -> bool:
    """Whether a device is used by its nodes below /dev alone: those of AMD, and virtual ones, which have none."""
    return device.is_virtual or device.vendor is Vendor.AMD


def _told(facts: EngineFacts) -> tuple[str, ...]:
    return facts.name, facts.problem, facts.nvidia_by


def _remove_one(client: Any, container: str) -> None:
    import docker.errors

    with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):  # gone, or being removed by its keeper
        client.remove_container(container, force=True, v=True)


def _why_not_made(error: Exception) -> ContainerTrouble | None:
    said = said_by(error)
    if OF_GPUS.search(said):
        return ContainerTrouble(RefusalReason.NO_GPU_CONTAINERS, f"the container engine gives it no GPUs: {said}")
    return ContainerTrouble(RefusalReason.CONTAINER_FAILED, f"the container engine did not make it: {said}")
