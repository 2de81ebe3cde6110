"""`batch --job`: the same command as a job of the person, which goes on where it was wherever it is begun again.

The job asks by its own token, in its owner's name; no token of a person is put into it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.client.http import parse_url
from gpufleet.client.routes import routes_of
from gpufleet.client.settings import VARIABLE_PREFIX, GivenSettings, load_settings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import all_pages, connected
from gpufleet.fleet.reading import names
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.requests import request_of, working_folder
from gpufleet.net.addresses import is_loopback, parse_address

from .. import screen
from ..submitting.submission import submit_job
from .job_options import BatchJobOptions
from .rows import check_source

NOT_PASSED = frozenset({"TOKEN", "TOKEN_FILE", "GATEWAY", "MODEL", "ADDRESSES", "BATCH_SIZE"})
"""Of the client's variables: tokens, which are nobody else's to see, and what the command line says."""

GPUCTL = (__package__ or "").rpartition(".")[0]
"""The module that is gpuctl, by its installed name or that of a checkout."""

LOST = (node_pb2.NODE_STATE_LOST,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as it was typed."""

    source: Path
    to: Path
    model: str
    as_they_come: bool


def submit_batch(settings: Settings, batch: Batch, given: GivenSettings, job: BatchJobOptions) -> None:
    """Submit it, and print the job's id. Raises what makes no sense before anything is submitted."""
    source, to = _checked_paths(settings, batch)
    resolved = load_settings(given)
    # What is wrong with gateway, token or addresses is told here, and not by a job that fails.
    routes = routes_of(resolved, has_callable=False)
    _check_reached_by_nodes(settings, [route.origin.url for route in routes], names(job.nodelist))
    words = [job.python or sys.executable, "-P", "-m", GPUCTL, "batch", source, "-o", to]
    words += ["--model", batch.model, "--batch-size", str(resolved.batch_size)]
    for address in resolved.addresses:
        words += ["--address", address]
    if not resolved.addresses:
        words += ["--gateway", _gateway_of(routes[0].origin.url)]
    for option, value in (("--gpu-mode", resolved.gpu_mode), ("--content-type", resolved.content_type)):
        if value:
            words += [option, value]
    if batch.as_they_come:
        words.append("--as-they-come")
    if resolved.insecure:
        words.append("--insecure")
    options = job.as_job_options(f"batch-{batch.model}", client_variables(os.environ))
    request = request_of(options, words, request_id=None, dry_run=False)
    submit_job(settings, request)


def client_variables(environment: Mapping[str, str]) -> list[str]:
    """What else is set of the client, as submit's --env takes it."""
    left_out = {VARIABLE_PREFIX + name for name in NOT_PASSED}
    found = sorted(name for name in environment if name.startswith(VARIABLE_PREFIX) and name not in left_out)
    return [f"{name}={environment[name]}" for name in found]


def _checked_paths(settings: Settings, batch: Batch) -> tuple[str, str]:
    """Both as absolute paths, checked here where the scheduler is on this machine: of another fleet a node has them."""
    if settings.is_local:
        check_source(batch.source, batch.to)
        if not batch.to.absolute().parent.is_dir():
            raise GpufleetError(Reason.FILE_NOT_FOUND, f"there is no folder {batch.to.absolute().parent}")
    elif not batch.source.exists():
        screen.say(f"{batch.source} is not on this machine: the job looks for it on its node")
    folder = PurePosixPath(working_folder())
    return str(folder / batch.source), str(folder / batch.to)


def _gateway_of(url: str) -> str:
    """The gateway's own address, of a route behind it."""
    return url.rpartition("/m/")[0]


def _check_reached_by_nodes(settings: Settings, urls: Sequence[str], nodelist: Sequence[str]) -> None:
    """Raises INVALID_ARGUMENT where an address of this machine alone would be asked from another one."""
    local = next((url for url in urls if is_loopback(parse_url(url).host)), None)
    if local is None:
        return
    with connected(settings) as client:
        pages = all_pages(client, client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest(page_size=1_000))
        nodes = [node for page in pages for node in page.nodes]
    elsewhere = [
        node.name
        for node in nodes
        if (not nodelist or node.name in nodelist) and node.state not in LOST and not _is_here(node.address)
    ]
    if elsewhere:
        url = _gateway_of(local) or local
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"the job would ask {url}, which is another machine on node {elsewhere[0]}",
            next_step="Say where the gateway is for nodes, --gateway https://HOST:7860, or name nodes of this machine: "
            "--nodelist NODE",
        )


def _is_here(address: str) -> bool:
    try:
        return not address or is_loopback(parse_address(address).host)
    except GpufleetError:
        return False
