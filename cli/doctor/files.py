"""How files come to each node, and how fast: by the scheduler, and in a folder that it sees, too. `doctor --files`."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import files_pb2, node_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import Client, translated
from gpufleet.fleet.finding import Finding, failed, ok, warning
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.sharing import probe_in, real_folder
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.jobs.shared_root import RootUnusable, id_of
from gpufleet.text.units import counted

PROBE_BYTES = 8 * 2**20
"""So much is sent by each way to each node. The scheduler drops its copy as it does all that no job needs."""
NODES_MAX = 16
"""So many nodes are looked at, one after the other."""


def check_files(
    settings: Settings, client: Client, nodes: Sequence[node_pb2.Node], shared_root: Path | None
) -> Iterator[Finding]:
    """A line for the way to the scheduler, and one for each node that is heard."""
    heard = [node for node in nodes if node.state != node_pb2.NODE_STATE_LOST]
    try:
        if shared_root is None:
            yield from _by(client, settings, heard, None, "", secrets.token_bytes(PROBE_BYTES), "")
            return
        folder = real_folder(shared_root)
        root = id_of(folder)
        with probe_in([folder], folder, PROBE_BYTES) as (probe, content):
            yield from _by(client, settings, heard, shared_root, root, content, probe)
    except RootUnusable as problem:
        fix = f"Make {shared_root} writable for you at its top, or have an admin make the id that files.md tells of"
        yield warning("shared root", f"{shared_root} cannot be shared: {problem}", fix)
        yield from _by(client, settings, heard, None, "", secrets.token_bytes(PROBE_BYTES), "")
    except GpufleetError as problem:
        if problem.reason is not Reason.METHOD_UNKNOWN:
            raise
        yield warning("files", "the scheduler is older, and cannot be asked how files come", "Upgrade the scheduler")


def _by(
    client: Client,
    settings: Settings,
    nodes: Sequence[node_pb2.Node],
    shared_root: Path | None,
    root: str,
    content: bytes,
    probe: str,
) -> Iterator[Finding]:
    digest = hashlib.sha256(content).hexdigest()
    begun = time.monotonic()
    try:
        client.scheduler.UploadBlob(_pieces(content, digest), timeout=settings.connection_timeout_s)
    except grpc.RpcError as problem:
        error = translated(problem, settings)
        yield failed("uploads", f"nothing can be uploaded: {error.message}", error.next_step)
        return
    yield ok("uploads", f"to the scheduler {_rate(time.monotonic() - begun)}")
    asked = files_pb2.CheckFilesRequest(digest=digest, size_bytes=len(content), by_store=True)
    yield from _stored(client.call(client.scheduler.CheckFiles, asked))
    for node in nodes[:NODES_MAX]:
        asked = files_pb2.CheckFilesRequest(
            root=root, probe=probe, digest=digest, size_bytes=len(content), by_wire=True, nodes=[node.name]
        )
        (found,) = client.call(client.scheduler.CheckFiles, asked).nodes
        yield _judged(node, found, shared_root)
    if len(nodes) > NODES_MAX:
        yield ok("files", f"{counted(len(nodes) - NODES_MAX, 'more node')} not looked at")


def _stored(found: files_pb2.CheckFilesResponse) -> Iterator[Finding]:
    """Where the scheduler stores files, and how fast; nothing of one that is older."""
    if found.store_problem:
        fix = "See why: gpuctl logs --program scheduler; files.md says how it is set"
        yield failed("file store", found.store_problem, fix)
    elif found.HasField("store_write_duration"):
        written, read = _rate(_seconds(found.store_write_duration)), _rate(_seconds(found.store_read_duration))
        yield ok("file store", f"{found.store}: written {written}, read {read}")


def _judged(node: node_pb2.Node, found: files_pb2.FilesOnNode, shared_root: Path | None) -> Finding:
    what = f"files {node.name}"
    if found.wire_problem:
        fix = f"See why: gpuctl logs --program agent:{node.name}"
        return failed(what, f"nothing comes from the scheduler: {found.wire_problem}", fix)
    wire = f"from the scheduler {_rate(_seconds(found.wire_duration))}"
    if shared_root is None:
        there = node.info.shared_root_folder
        return ok(what, f"{wire}; it has the shared folder {there}" if there else wire)
    if not found.is_same_root:
        sentence = f"{wire}; it does not see {shared_root}: {found.root_problem}"
        there = node.info.shared_root_folder or "DIR"
        return warning(what, sentence, f"On it: mount that folder at {there}, and gpuctl agent --shared-root {there}")
    return ok(what, f"{wire}, in {shared_root} {_rate(_seconds(found.root_duration))}")


def _pieces(content: bytes, digest: str) -> Iterator[files_pb2.UploadBlobRequest]:
    yield files_pb2.UploadBlobRequest(digest=digest, size_bytes=len(content))
    for offset in range(0, len(content), PIECE_BYTES_MAX):
        yield files_pb2.UploadBlobRequest(offset=offset, data=content[offset : offset + PIECE_BYTES_MAX])


def _seconds(span: Duration) -> float:
    return float(span.ToMicroseconds() / 1e6)


def _rate(seconds: float) -> str:
    """Of the probe: what such a span makes of it."""
    return f"{PROBE_BYTES / 1e6 / max(seconds, 1e-6):,.0f} MB/s"
