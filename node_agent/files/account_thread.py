"""A thread that does one thing after another by the rights of an account, and none of the agent's own on files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from ..core.launch import Isolation
from ..keeper.linux import take_file_rights

T = TypeVar("T")
Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class AccountThread:
    """`with AccountThread(account) as thread`; None leaves it the agent's own rights.

    What a job made of its folder may stand still for ever: nobody waits for the thread then, neither at its end.
    """

    def __init__(self, account: Isolation | None) -> None:
        self._account = account
        self._loop = asyncio.get_running_loop()
        self._todo: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="files-of-a-job", daemon=True)

    def __enter__(self) -> AccountThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._todo.put(None)

    async def run(self, work: Callable[[], T]) -> T:
        """What it answers, or raises. OSError where the account's rights cannot be taken on."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._todo.put((work, done))
        return await done

    def _work(self) -> None:
        refused: OSError | None = None
        if self._account is not None:
            try:
                take_file_rights(self._account.uid, self._account.gid, self._account.groups)
            except OSError as problem:
                refused = problem
        while (todo := self._todo.get()) is not None:
            work, done = todo
            result: Any = None
            failure: Exception | None = refused
            if failure is None:
                try:
                    result = work()
                except Exception as error:  # told to who waits
                    failure = error
            with suppress(RuntimeError):  # the agent has left meanwhile
                self._loop.call_soon_threadsafe(_settle, done, result, failure)


def _settle(done: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if done.done():
        return
    if problem is None:
        done.set_result(result)
    else:
        done.set_exception(problem)
