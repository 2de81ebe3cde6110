"""The order of the doctor's checks."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpufleet.v1 import scheduler_pb2, sessions_pb2

from gpufleet.config.paths import state_dir
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.encryption import check_tls, silence_fix
from gpufleet.fleet.finding import Finding, Verdict, failed, ok, warning
from gpufleet.fleet.settings import Settings
from gpufleet.net.listening import holder_of
from gpufleet.text.units import format_size

from .. import screen
from ..admin.version import own_version
from ..errors import FAILED
from ..nodes.node_calls import all_nodes
from ..render.table import Cell, Colour, Column, Look, draw, wrapped
from ..sessions.listing import all_models
from .agent import agent_folder, check_agent
from .cluster import FREE_BYTES_FAILED, compare_nodes, judge_nodes, judge_refusal, judge_server
from .each_address import check_each_address
from .network import check_name, check_port, own_address
from .page import check_page
from .versions import judge_programs
from .wishes import Wishes

COLUMNS: Sequence[Column[Finding]] = (
    Column("CHECK", lambda finding: finding.what.ljust(10)),
    Column("", lambda finding: _cell(finding)),
    Column("FINDING", lambda finding: screen.with_tilde(finding.sentence), least=20, wraps=True),
)
FIX_INDENT = 12
COLOURS = {Verdict.OK: Colour.GOOD, Verdict.WARNING: Colour.WARNING, Verdict.FAILED: Colour.BAD}


def _cell(finding: Finding) -> Cell:
    """The verdict in its colour."""
    return Cell(f"{finding.verdict.value:<4}", COLOURS[finding.verdict])


def run_doctor(settings: Settings, wishes: Wishes) -> int:
    """Print every finding as it is made; answers the exit code."""
    form = settings.format
    found: list[Finding] = []
    for finding in examine(settings, wishes):
        found.append(finding)
        if form == "jsonl":
            screen.print_lines([json.dumps(finding.as_object(), ensure_ascii=False)])
        elif form == "name":
            screen.print_lines([finding.what] if finding.verdict is not Verdict.OK else [])
        elif form != "json":
            look = screen.look(form) if sys.stdout.isatty() else Look(width=None)  # a line each for grep
            screen.print_lines(lines_of(finding, look))
    if form == "json":
        screen.print_lines([json.dumps([each.as_object() for each in found], indent=2, ensure_ascii=False)])
    if wishes.bundle is not None:
        from .bundle import write_bundle

        write_bundle(wishes.bundle, settings, found, agent_folder(wishes.agent_data))
    return FAILED if any(each.verdict is Verdict.FAILED for each in found) else 0


def lines_of(finding: Finding, look: Look) -> list[str]:
    """The finding, and below it what to do."""
    fix = screen.with_tilde(finding.fix)
    lines = draw(COLUMNS, [finding], look)[1:]
    below = wrapped(fix, look.width - FIX_INDENT - 2) if look.width else [fix]
    return lines + [
        f"{'':<{FIX_INDENT}}{'→ ' if not number else '  '}{line}" for number, line in enumerate(below) if fix
    ]


def examine(settings: Settings, wishes: Wishes) -> Iterator[Finding]:
    """The checks in their order; one that fails ends them where nothing behind it can be seen."""
    yield ok("settings", f"{settings.where}, from {settings.address_origin}")
    yield own_disk()
    agent = check_agent(agent_folder(wishes.agent_data), is_named=wishes.agent_data is not None)
    if agent is not None:
        yield agent
    looked = check_each_address(settings) if len(settings.addresses) > 1 else _check_the_address(settings)
    is_reached = True
    for finding in looked:
        yield finding
        is_reached = is_reached and finding.verdict is not Verdict.FAILED
    if not is_reached:
        return
    try:
        with connected(settings) as client:
            yield from _examine_cluster(settings, client, wishes)
            if gateway := settings.config.settings.gateway:
                yield check_page(gateway)
            if wishes.run:
                from .selftest import test_nodes

                yield from test_nodes(settings, client, wishes.python)
    except GpufleetError as problem:
        yield _judge_silence(settings, problem) or judge_refusal(problem)


def _check_the_address(settings: Settings) -> Iterator[Finding]:
    (address,) = settings.addresses
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: check_name(address.host),
        lambda: check_port(address),
        lambda: check_tls(settings.target()),
    )
    for check in checks:
        try:
            finding = check()
        except GpufleetError as problem:
            finding = judge_refusal(problem)
        yield finding
        if finding.verdict is Verdict.FAILED:
            return


def _judge_silence(settings: Settings, problem: GpufleetError) -> Finding | None:
    """A port that takes connections behind which no scheduler answers; None for another problem."""
    if len(settings.addresses) > 1:
        return None
    address = next(iter(settings.addresses))
    if problem.reason is Reason.DEADLINE:
        sentence = f"{address} takes connections and does not answer in {settings.connection_timeout_s:g} s"
        return failed("answer", sentence, silence_fix(address))
    if problem.reason is Reason.SCHEDULER_UNREACHABLE and "Connection refused" not in problem.metadata.get("grpc", ""):
        holder = holder_of(address.port) if own_address(address.host) else None
        sentence = f"what listens at {address} is no gpufleet scheduler" + (f": {holder}" if holder else "")
        return failed("answer", sentence, "Name where the scheduler is: --scheduler HOST:PORT")
    return None


def _examine_cluster(settings: Settings, client: Client, wishes: Wishes) -> Iterator[Finding]:
    token = settings.token()
    client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())  # which also connects
    asked_at = datetime.now(UTC)
    server = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
    answered_at = datetime.now(UTC)
    yield from judge_server(server, own_version(), asked_at, answered_at, token.origin if token else "nowhere")
    nodes = all_nodes(client)
    yield from judge_nodes(nodes, server.version, answered_at)
    yield from judge_programs(server, _models_in_sight(client))
    if wishes.nodes:
        yield from compare_nodes(nodes)
    if wishes.files:
        from .files import check_files

        yield from check_files(settings, client, nodes, wishes.shared_root or settings.config.settings.shared_root)


def _models_in_sight(client: Client) -> list[sessions_pb2.Model]:
    """All models; none for a token that may not list them, such as an agent's."""
    try:
        return all_models(client)
    except GpufleetError as problem:
        if problem.reason is not Reason.PERMISSION_DENIED:
            raise
        return []


def own_disk() -> Finding:
    """Whether this account has room for its own state."""
    folder = state_dir("scheduler")
    while not folder.exists() and folder != Path("/"):
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    sentence = f"{format_size(free_bytes)} are free here, at {folder}"
    if free_bytes < FREE_BYTES_FAILED:
        return warning("own disk", sentence, "Free it before an agent or scheduler runs here.")
    return ok("own disk", sentence)
