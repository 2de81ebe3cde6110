"""An asyncio loop whose clock jumps: nothing waits, nothing runs beside it, and the same calls give the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class StandStill(Exception):
    """Nothing is left to happen, and the run has not ended."""


class _Jump:
    """Stands where a loop has its selector: in place of waiting for a socket it moves the clock."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StandStill
        if timeout > 0:
            self._loop.now += timeout
        return []

    def close(self) -> None:
        pass


class SimulatedLoop(asyncio.BaseEventLoop):
    """`on_executor` stands for every thread: it is given a call and the future that waits for it."""

    def __init__(self, on_executor: Callable[[Callable[[], Any], asyncio.Future[Any]], None]) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Jump(self)
        self._on_executor = on_executor

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        self._on_executor(lambda: func(*args), future)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        raise AssertionError("a thread called into the simulated loop")
