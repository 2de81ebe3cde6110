"""What the agent's command line says, and the settings that it makes with variables and agent.toml."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Callable

from gpufleet.config.agent_settings import SHARED, AgentSettings
from gpufleet.config.merged import Resolved, settings_reader
from gpufleet.config.paths import state_dir
from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.tokens import find_token

AUTO = "auto"
STOP_KEEPER = "stop-keeper"
NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")


def parser() -> argparse.ArgumentParser:
    """The flags. What is not given comes from GPUCTL_AGENT_*, agent.toml, or a default."""
    flags = argparse.ArgumentParser(
        prog="gpuctl agent",
        description="Give this machine's GPUs to a scheduler. Stopping it leaves running jobs alone.",
    )
    flags.add_argument("--scheduler", metavar="HOST:PORT[,…]", help="where the scheduler is; several are tried in turn")
    flags.add_argument("--node-id", metavar="NAME", help="the node's name; default: the host name")
    flags.add_argument("--data", metavar="DIR", help="where spool, logs and identity are kept, on a local disk")
    flags.add_argument("--virtual-gpus", metavar="N|auto", help="virtual GPUs; auto: one where there is no real GPU")
    flags.add_argument("--virtual-load", metavar="FILE", help="recorded load that virtual GPUs show, as JSON lines")
    flags.add_argument("--cpus", metavar="N", help="CPUs that jobs may use; default: all")
    flags.add_argument("--advertise", metavar="HOST", help="host by which other nodes reach this one")
    flags.add_argument("--label", metavar="K=V", action="append", dest="labels", help="label of the node; repeatable")
    flags.add_argument(
        "--isolation",
        dest="isolation.users",
        metavar="HOW",
        help="as whom jobs run: auto, range, accounts, owner or shared (docs/isolation.md)",
    )
    flags.add_argument(
        "--shared-account",
        dest="isolation.users",
        action="store_const",
        const=SHARED,
        help="run the jobs of all users as this agent's account. Each of them can then read, change and end whatever "
        "that account can: all other jobs here, their files and secrets, and this node's credential",
    )
    flags.add_argument("--owner", metavar="USER", help="whose jobs alone it takes, where it keeps no users apart")
    flags.add_argument("--token-file", metavar="FILE", help="file with the agent's token")
    flags.add_argument("--ca-file", metavar="FILE", help="authority that signed the scheduler's certificate")
    flags.add_argument(
        "--client-cert-file",
        metavar="FILE",
        help="this node's certificate with its key, where one is asked for",
    )
    flags.add_argument(
        "--shared-root",
        dest="files.shared_root",
        metavar="DIR",
        help="folder that people see, too: files of jobs that lie in it are read there",
    )
    flags.add_argument("--insecure", action="store_const", const=True, help="no TLS beyond this machine")
    flags.add_argument(
        "--verify", action="store_true", help="check spools and records of the data folder, change nothing, and leave"
    )
    flags.add_argument("--config", metavar="FILE", help="settings file; default: agent.toml")
    flags.add_argument("--check-settings", action="store_true", help="say what is wrong with the settings, and leave")
    flags.add_argument("--verbose", action="store_true", help="same as --log-level debug")
    flags.add_argument("--log-level", dest="log.level", metavar="LEVEL", help="debug, info, warning or error")
    flags.add_argument("--log-format", dest="log.format", metavar="FORMAT", help="text or json")
    commands = flags.add_subparsers(dest="command", metavar="[stop-keeper]")
    stop = commands.add_parser(STOP_KEEPER, help="end the keeper of a data folder whose agent has stopped")
    # Without a default: the flag may also stand before the command, where its value is kept.
    stop.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help="the agent's data folder")
    stop.add_argument("--kill", action="store_true", help="end running jobs by the grace rule first")
    return flags


def reader_of(arguments: argparse.Namespace) -> Callable[[], Resolved[AgentSettings]]:
    """Reads the settings, now and again at a reload."""
    level = vars(arguments)["log.level"] or ("debug" if arguments.verbose else None)
    count = None if wants_automatic_gpu(arguments) else arguments.virtual_gpus
    return settings_reader(AgentSettings, "agent", arguments, virtual_gpus=count, **{"log.level": level})


def wants_automatic_gpu(arguments: argparse.Namespace) -> bool:
    """Whether a virtual GPU is wanted where there is no real one."""
    return bool(arguments.virtual_gpus == AUTO)


def node_name(settings: AgentSettings) -> str:
    """The node's name; raises CONFIG_INVALID for one that no scheduler takes."""
    name = settings.node_id or socket.gethostname()
    if NODE_NAME.fullmatch(name) is None:
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"--node-id: {name[:80]!r} is not 1 to 63 letters, digits, '.', '-' or '_'",
            next_step="Name the node with --node-id NAME.",
        )
    return name


def token_of(settings: AgentSettings) -> str | None:
    """The agent's token: --token-file, GPUCTL_TOKEN, or that of a scheduler of this account on this machine."""
    local = state_dir("scheduler") / "agent.token"
    found = find_token(settings.token_file, os.environ, local if local.exists() else None)
    return found.token if found is not None else None
