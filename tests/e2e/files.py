"""Files that go with jobs, as a test uploads and names them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

from gpufleet.v1 import files_pb2, job_pb2

from tests.e2e.client import Client

PIECE = 5


async def upload(person: Client, data: bytes, digest: str = "", piece: int = PIECE) -> int:
    """Upload in small pieces; how many bytes are stored."""
    digest = digest or hashlib.sha256(data).hexdigest()

    async def pieces() -> AsyncIterator[files_pb2.UploadBlobRequest]:
        yield files_pb2.UploadBlobRequest(digest=digest, size_bytes=len(data))
        for offset in range(0, len(data), piece):
            yield files_pb2.UploadBlobRequest(offset=offset, data=data[offset : offset + piece])

    answer: Any = await person.stub.UploadBlob(pieces())
    return int(answer.stored_bytes)


def file(path: str, data: bytes, *, is_executable: bool = False) -> job_pb2.InputFile:
    digest = hashlib.sha256(data).hexdigest()
    return job_pb2.InputFile(path=path, digest=digest, size_bytes=len(data), is_executable=is_executable)
