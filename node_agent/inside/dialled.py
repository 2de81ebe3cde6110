"""Calls that the agent dials because the scheduler asks for them, one task each, as long as there is a link."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gpufleet.errors import Reason

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)


class Asked(Protocol):
    """What the scheduler asked for."""

    @property
    def channel_id(self) -> str:
        """Under which id it is to be dialled."""
        ...


C = TypeVar("C", bound=Asked)


class NotOpened(Exception):
    """What was asked for is not there. `reason` is one of the error table."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Dialled(ABC, Generic[C]):
    """The calls of one link to the scheduler after another; `hold` as long as there is one."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._stub: NodeAgentAsyncStub | None = None
        self._channels: dict[str, asyncio.Task[None]] = {}

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Dial on this link until cancelled."""
        self._stub = stub
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            tasks = tuple(self._channels.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def open(self, command: C) -> None:
        """Begin to do what is asked, and to carry."""
        if self._stub is None or command.channel_id in self._channels:
            return
        is_one_too_many = len(self._channels) >= self._count_max
        task = asyncio.create_task(self._serve(self._stub, command, is_one_too_many=is_one_too_many))
        self._channels[command.channel_id] = task
        task.add_done_callback(lambda done: self._ended(command, done))

    def close(self, channel_id: str) -> None:
        """Break one off, whatever is under way to it; one that has ended stays so."""
        if (task := self._channels.get(channel_id)) is not None:
            task.cancel()

    @abstractmethod
    async def _serve(self, stub: NodeAgentAsyncStub, command: C, *, is_one_too_many: bool) -> None:
        """Dial, and carry until one side ends."""

    def _ended(self, command: C, task: asyncio.Task[None]) -> None:
        del self._channels[command.channel_id]
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("%s failed", command, exc_info=problem)
