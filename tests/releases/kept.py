"""A kept release, opened: its store unpacked, its transcript, and its messages by its own descriptors."""

from __future__ import annotations

import gzip
import json
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.releases.keep import FACTS, FOLDER, IMAGE, KILLED, STORE
from tests.releases.wire import DOWN, FILE, MARK, OPEN, UP, Line, calls_of, read_lines


@dataclass(frozen=True)
class Release:
    """One folder of kept files."""

    name: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @cached_property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / FACTS).read_text())
        return found

    @property
    def jobs(self) -> dict[str, int]:
        """What each job is for, and its number."""
        found: dict[str, int] = self.facts["jobs"]
        return found

    @cached_property
    def lines(self) -> list[Line]:
        return list(read_lines(self.folder / FILE))

    @cached_property
    def before(self) -> list[Line]:
        """What was said up to the moment whose store was kept."""
        return self.lines[: self._killed]

    @cached_property
    def after(self) -> list[Line]:
        """What was said from then on."""
        return self.lines[self._killed + 1 :]

    @property
    def _killed(self) -> int:
        return next(at for at, line in enumerate(self.lines) if line.kind == MARK and line.text == KILLED)

    def unpack_store(self, folder: Path) -> None:
        """Put the scheduler's data folder there."""
        folder.mkdir(mode=0o700, parents=True)
        with tarfile.open(self.folder / STORE) as archive:
            archive.extractall(folder, filter="data")

    @cached_property
    def _pool(self) -> DescriptorPool:
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(gzip.decompress((self.folder / IMAGE).read_bytes())).file:
            pool.Add(file)
        return pool

    @cached_property
    def methods(self) -> dict[str, Any]:
        """Its calls, by their paths."""
        services = (self._pool.FindServiceByName(f"gpufleet.v1.{name}") for name in ("Scheduler", "NodeAgent"))
        return {f"/{each.full_name}/{method.name}": method for each in services for method in each.methods}

    def asked(self, method: str, data: bytes) -> Message:
        """A message of a client, as that release reads it."""
        message: Message = GetMessageClass(self.methods[method].input_type).FromString(data)
        return message

    def answered(self, method: str, data: bytes) -> Message:
        """A message of the server, as that release reads it."""
        message: Message = GetMessageClass(self.methods[method].output_type).FromString(data)
        return message


def releases() -> list[Release]:
    """Every release that was kept."""
    return [Release(path.parent.name) for path in sorted(FOLDER.glob(f"*/{FACTS}"))]


def data_of(lines: list[Line], kind: str) -> list[bytes]:
    """The messages of one direction."""
    return [line.data for line in lines if line.kind == kind]


def answered_calls(lines: list[Line]) -> list[list[Line]]:
    """Calls that a server answered."""
    return [call for call in calls_of(lines).values() if data_of(call, DOWN) and data_of(call, UP)]


def path_of(call: list[Line]) -> str:
    """The method of a call."""
    assert call[0].kind == OPEN
    return call[0].text
