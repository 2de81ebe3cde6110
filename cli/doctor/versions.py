"""Whether gateways and workers have the scheduler's version; the versions of agents stand with their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpufleet.v1 import scheduler_pb2, sessions_pb2

from gpufleet.fleet.finding import Finding, ok, warning
from gpufleet.text.units import counted

from ..admin.program_versions import gateway_versions, worker_versions

NAMES_SHOWN_MAX = 5
UNKNOWN = "unknown"


def judge_programs(
    server: scheduler_pb2.GetServerInfoResponse, models: Sequence[sessions_pb2.Model]
) -> Iterator[Finding]:
    """One line for all gateways and workers; nothing where there are none."""
    gateways, workers = gateway_versions(server), worker_versions(models)
    counts = [counted(len(each), word) for each, word in ((gateways, "gateway"), (workers, "worker")) if each]
    if not counts:
        return
    odd = {what: version for what, version in (gateways | workers).items() if _differs(version, server.version)}
    if not odd:
        have = "has" if len(gateways) + len(workers) == 1 else "have"
        yield ok("programs", f"{' and '.join(counts)} {have} the scheduler's version")
        return
    named = [f"{what} has version {version}" for what, version in list(odd.items())[:NAMES_SHOWN_MAX]]
    named += [f"and {counted(len(odd) - len(named), 'more program')} differ"] if len(odd) > len(named) else []
    fixes = []
    if odd.keys() & gateways.keys():
        fixes.append(f"Where the gateway runs: pip install gpufleet=={server.version}, then start it again")
    if odd.keys() & workers.keys():
        fixes.append(f"Where the worker runs: pip install gpufleet=={server.version}, then: gpuctl models drain WORKER")
    yield warning("programs", f"{', '.join(named)}; the scheduler has {server.version}", ". ".join(fixes))


def _differs(version: str, server_version: str) -> bool:
    return version != server_version and UNKNOWN not in (version, server_version)
