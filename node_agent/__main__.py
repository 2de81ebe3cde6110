"""Starts the node agent: `python -P -m gpufleet.node_agent`, or `gpuctl agent`.

SIGTERM and SIGINT end it and leave the keeper and the jobs running: the next start adopts them. SIGHUP reads the
settings again. `stop-keeper --data DIR [--kill]` ends the keeper too.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from gpufleet.addresses import Address
from gpufleet.agent_settings import AgentSettings
from gpufleet.channel import Target
from gpufleet.config_reload import Live
from gpufleet.errors import GpufleetError, as_lines
from gpufleet.logs import ProgramLog
from gpufleet.paths import log_file
from gpufleet.units import format_megabytes, format_size

from .agent import Node, NodeAgent
from .devices import DeviceSource, host_facts, open_devices
from .identity import DataFolder
from .keeper.client import KeeperNotStarted, Keepers
from .keeping import SupersededError
from .machine import Machine, NodeNaming, installed_version, node_info
from .options import AUTO, STOP_KEEPER, parse, settings_reader, token_of

_log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
KEEPER_FOLDER = "keeper"


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> int:
    """Run the program; answers its exit code."""
    given = parse(arguments)
    try:
        live = Live(settings_reader(given))
        if given.command == STOP_KEEPER:
            return asyncio.run(_stop_keeper(Path(given.stop_data or live.now.data), kill=given.kill))
        return asyncio.run(_be_agent(given, live))
    except GpufleetError as error:
        print(as_lines(error), file=sys.stderr)
    except (KeeperNotStarted, SupersededError) as problem:
        print(f"the agent cannot go on: {problem}", file=sys.stderr)
    return EXIT_FAILED


async def _be_agent(given: Namespace, live: Live[AgentSettings]) -> int:
    settings = live.now
    folder = DataFolder(settings.data)
    try:
        with ProgramLog("agent", settings.log, log_file(settings.data, "agent")) as log:
            await _serve(given, live, folder, log)
    finally:
        folder.close()
    return 0


async def _serve(given: Namespace, live: Live[AgentSettings], folder: DataFolder, log: ProgramLog) -> None:
    """Open the devices and the keepers, and be the agent until told to stop."""
    settings = live.now
    name = settings.node_id or socket.gethostname()
    source = await asyncio.to_thread(_devices, name, settings, is_auto=given.virtual_gpus == AUTO)
    try:
        keepers = await Keepers.open(settings.data / KEEPER_FOLDER, build=installed_version())
        async with keepers:
            node = _node(name, live, source, log)
            _log_node(node, source)
            agent = NodeAgent(node, folder, folder.next_identity(), keepers)
            await _until_told(agent, live, log)
    finally:
        source.close()


def _log_node(node: Node, source: DeviceSource) -> None:
    _log.info("node %s: %d CPUs, %s", node.name, node.info.cpus, format_size(node.info.memory_bytes))
    for device in node.info.devices:
        _log.info("GPU %d: %s, %s", device.index, device.name, format_megabytes(device.memory_bytes))
    status = source.status()
    if status.note:
        _log.log(logging.INFO if node.info.devices else logging.WARNING, "%s %s", status.note, status.next_step)


async def _until_told(agent: NodeAgent, live: Live[AgentSettings], log: ProgramLog) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    running = asyncio.ensure_future(agent.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(live, log))
    try:
        await running
    except asyncio.CancelledError:
        _log.info("leaving; running jobs go on, and the next start of this agent adopts them")


def _reload(live: Live[AgentSettings], log: ProgramLog) -> None:
    try:
        reloaded = live.reload()
    except GpufleetError as error:
        _log.error("the settings are left as they are: %s", error.message)
        return
    for change in reloaded.applied:
        _log.info("reloaded %s", change)
    for change in reloaded.waiting:
        _log.warning("%s needs a restart of the agent", change)
    log.apply(live.now.log)


def _devices(node: str, settings: AgentSettings, *, is_auto: bool) -> DeviceSource:
    interval_s = settings.sampling.interval.total_seconds()
    source = open_devices(node=node, virtual_gpus=settings.virtual_gpus, interval_seconds=interval_s)
    if is_auto and not source.list():
        return open_devices(node=node, virtual_gpus=1)
    return source


def _node(name: str, live: Live[AgentSettings], source: DeviceSource, log: ProgramLog) -> Node:
    settings = live.now
    naming = NodeNaming(node=name, advertise=settings.advertise, labels=dict(settings.labels))

    def target_of(address: Address) -> Target:
        return Target(
            address=address, token=token_of(settings), ca_file=settings.ca_file, is_insecure=settings.insecure
        )

    return Node(
        name=name,
        addresses=settings.scheduler,
        target_of=target_of,
        info=node_info(naming, host_facts(cpus=settings.cpus), source),
        machine=Machine(source, settings.data),
        log_file=log_file(settings.data, "agent"),
        set_log_level=log.set_level,
        idle_sampling_seconds=settings.sampling.interval.total_seconds(),
        spool_bytes=settings.spool.attempt_bytes_max,
    )


async def _stop_keeper(data: Path, *, kill: bool) -> int:
    folder = DataFolder(data)
    try:
        async with await Keepers.open(data / KEEPER_FOLDER, build=installed_version()) as keepers:
            refusal = await keepers.shutdown(kill=kill)
    finally:
        folder.close()
    if refusal is not None:
        print(f"{refusal.detail}\nTo end them too: stop-keeper --data {data} --kill", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
