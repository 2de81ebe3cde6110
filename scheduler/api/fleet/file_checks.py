"""The Scheduler service: CheckFiles, whether nodes see the folder that a person sees, and how fast files come."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from gpufleet.v1 import files_pb2, node_agent_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import is_digest, trouble_with_path
from gpufleet.jobs.shared_root import MARKER, PATHS_MAX, PROBE_BYTES_MAX, is_probe, is_root_id

from ...blobs.store import BlobStore
from ...engine import Engine
from ...links import Links, OpenCheck
from ...state.events import SharedRootChecked
from ...state.ids import NodeName
from ...state.nodes import Node
from ...wire.validate import check_nodes, node_name
from ..answers import Calls, reply_of
from ..roles import caller

NODES_MAX = 10_000
ROOT_SECONDS_MAX = 15.0
"""A node that has not said in this time whether it sees a folder counts as one that does not."""
WIRE_SECONDS_MAX = 75.0
"""The same where it fetches the probe, too."""


class FileCheckCalls(Calls):
    """What people ask of files' ways. Each public method is one RPC."""

    engine: Engine
    links: Links
    blobs: BlobStore
    one_stream: Callable[[], AbstractContextManager[None]]

    async def CheckFiles(self, request: files_pb2.CheckFilesRequest) -> files_pb2.CheckFilesResponse:
        """Ask the nodes at the same time; what they find of the folder is stored before it is answered."""
        if request.by_store:
            _check_size(request)
            with self.one_stream():
                return await self._store_checked(request.size_bytes)
        nodes = self._nodes_asked(request)
        with self.one_stream():
            found = await asyncio.gather(*(self._checked(node, request) for node in nodes))
        return files_pb2.CheckFilesResponse(nodes=found, store=self.blobs.place.words)

    async def _store_checked(self, size: int) -> files_pb2.CheckFilesResponse:
        """How fast the place of stored files takes and gives so many bytes; nothing of them stays there."""
        answer = files_pb2.CheckFilesResponse(store=self.blobs.place.words)
        try:
            write_s, read_s = await self.blobs.on_thread(self.blobs.measure, caller().user, secrets.token_bytes(size))
        except GpufleetError as problem:
            if problem.reason is not Reason.STORE_UNAVAILABLE:
                raise
            answer.store_problem = problem.message
        else:
            answer.store_write_duration.FromMicroseconds(round(write_s * 1e6))
            answer.store_read_duration.FromMicroseconds(round(read_s * 1e6))
        return answer

    def _nodes_asked(self, request: files_pb2.CheckFilesRequest) -> Sequence[Node]:
        if request.root and not is_root_id(request.root):
            step = f"give the 32 hexadecimal digits that the folder's {MARKER} says"
            raise invalid("root", "is not the id of a shared folder", next_step=step)
        if (request.root or request.probe) and (not is_probe(request.probe) or trouble_with_path(request.probe)):
            step = "name a file .gpufleet-probe- and 32 hexadecimal digits, by its path in the shared folder"
            raise invalid("probe", "is not the path of a probe", next_step=step)
        if not is_digest(request.digest):
            raise invalid("digest", "is not a SHA-256 in lower-case hexadecimal", next_step="give that of the probe")
        _check_size(request)
        if len(request.paths) > PATHS_MAX:
            raise invalid("paths", f"holds {len(request.paths):,}; at most {PATHS_MAX:,} are looked for at once")
        for number, path in enumerate(request.paths):
            if why := trouble_with_path(path):
                raise invalid(f"paths[{number}]", why, next_step="give the path below the shared folder")
        if request.by_wire and self.blobs.size_of(caller().user, request.digest) != request.size_bytes:
            raise GpufleetError(Reason.FILE_NOT_UPLOADED, f"the probe {request.digest} is not stored")
        if len(request.nodes) > NODES_MAX:
            raise invalid("nodes", f"holds {len(request.nodes):,}; at most {NODES_MAX:,} are asked at once")
        known = self.engine.view.durable.nodes
        names = [node_name(name, f"nodes[{number}]") for number, name in enumerate(request.nodes)] or list(known)
        check_nodes(names, known, "nodes")
        return [known[name] for name in sorted(set(names))]

    async def _checked(self, node: Node, request: files_pb2.CheckFilesRequest) -> files_pb2.FilesOnNode:
        found = files_pb2.FilesOnNode(node=node.name, is_lost=node.is_lost)
        if request.root and (why := _other_root(node, request.root)):
            found.root_problem = why
            if not request.by_wire:
                return found
        answer = await self._asked(node.name, request, is_root_asked=not found.root_problem)
        if isinstance(answer, str):
            found.root_problem = found.root_problem or (answer if request.root else "")
            found.wire_problem = answer if request.by_wire else ""
            return found
        if request.root and not found.root_problem:
            found.is_same_root, found.root_problem = not answer.root_problem, answer.root_problem
            found.unreadable.extend(each for each in answer.unreadable if 0 <= each < len(request.paths))
            found.unreadable_reason = answer.unreadable_reason
            if found.is_same_root:
                checked = SharedRootChecked(at=self.engine.now(), node=node.name, root=request.root)
                await reply_of(self.engine.request(checked))
        if answer.HasField("root_duration"):
            found.root_duration.CopyFrom(answer.root_duration)
        if answer.HasField("wire_duration"):
            found.wire_duration.CopyFrom(answer.wire_duration)
        found.wire_problem = answer.wire_problem
        return found

    async def _asked(
        self, name: NodeName, request: files_pb2.CheckFilesRequest, *, is_root_asked: bool
    ) -> node_agent_pb2.FilesChecked | str:
        """What a node answers, or why it does not."""
        connection = self.links.of(name)
        if connection is None:
            return "its agent is not connected"
        number, user = self.links.next_request(), caller().user
        waiting: asyncio.Future[node_agent_pb2.FilesChecked] = asyncio.get_running_loop().create_future()
        connection.checks[number] = OpenCheck(user, request.digest, waiting)
        asked = node_agent_pb2.CheckFilesOnNode(
            request=number,
            root=request.root if is_root_asked else "",
            probe=request.probe,
            digest=request.digest,
            size_bytes=request.size_bytes,
            user=user,
            paths=request.paths if is_root_asked else (),
            by_wire=request.by_wire,
        )
        connection.put(node_agent_pb2.HeartbeatResponse(check_files=asked))
        span_s = WIRE_SECONDS_MAX if request.by_wire else ROOT_SECONDS_MAX
        try:
            async with asyncio.timeout(span_s):
                return await waiting
        except TimeoutError:
            return f"its agent did not answer within {span_s:.0f} s"
        finally:
            connection.checks.pop(number, None)


def _check_size(request: files_pb2.CheckFilesRequest) -> None:
    if not 0 <= request.size_bytes <= PROBE_BYTES_MAX:
        raise invalid("size_bytes", f"is {request.size_bytes:,}; it must be 0 to {PROBE_BYTES_MAX:,}")


def _other_root(node: Node, root: str) -> str:
    """Why it need not be asked; empty where it must be."""
    info = node.info
    if node.is_lost:
        return "the node is lost"
    if not info.shared_root_folder:
        return "its agent has no --shared-root"
    if info.shared_root_problem:
        return f"{info.shared_root_folder} there: {info.shared_root_problem}"
    return "" if info.shared_root == root else f"{info.shared_root_folder} there is another folder"
