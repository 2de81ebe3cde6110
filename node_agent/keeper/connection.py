"""An agent's connection to one keeper: requests and their answers, and what the keeper says unasked."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

from .frames import PROTOCOL_VERSION, BadFrame, Unpacker, pack
from .state_dir import socket_address
from .values import Json

READ_BYTES = 256 * 1024
ANSWER_TIMEOUT_S = 30.0
"""A keeper answers within milliseconds; one that does not is stopped, or its disk is."""


class KeeperGone(Exception):
    """The keeper hung up or is dead; whether it carried the request out is not known. Read the inventory."""


class KeeperSilent(Exception):
    """The keeper lives and does not answer."""


class OtherProtocol(Exception):
    """The keeper lives and does not speak this agent's protocol: only the version that started it can use it."""


class KeeperConnection:
    """One connection; everything is lost to it when it closes, and nothing is to the keeper."""

    def __init__(
        self,
        keeper_id: str,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_report: Callable[[Json], None],
        on_closed: Callable[["KeeperConnection"], None],
    ) -> None:
        self.keeper_id = keeper_id
        self.build = ""
        self.pid = 0
        self.is_retired = False
        self.farewell: str | None = None
        self._reader, self._writer = streams
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._on_report = on_report
        self._on_closed = on_closed
        self._is_welcome = False
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        directory: Path,
        on_report: Callable[[Json], None],
        on_closed: Callable[["KeeperConnection"], None],
    ) -> "KeeperConnection":
        """Connect to the keeper of this directory and say hello; KeeperGone when nobody listens.

        `on_closed` is called when an opened connection closes, except by `close`.
        """
        try:
            directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise KeeperGone(f"{directory} is gone") from error
        try:
            streams = await asyncio.open_unix_connection(socket_address(directory_fd))
        except OSError as error:
            raise KeeperGone(f"{directory}: {error.strerror}") from error
        finally:
            os.close(directory_fd)
        connection = cls(directory.name, streams, on_report, on_closed)
        connection._task = asyncio.create_task(connection._listen(), name=f"keeper {directory.name}")
        try:
            hello = await connection.request("hello", {"protocol": PROTOCOL_VERSION})
        except BaseException as error:
            await connection.close()
            if connection.farewell == "PROTOCOL":
                raise OtherProtocol(f"keeper {directory.name} does not speak protocol {PROTOCOL_VERSION}") from error
            raise
        connection.build = str(hello["build"])
        connection.pid = int(hello["pid"])
        connection.is_retired = bool(hello["is_retired"])
        connection._is_welcome = True
        return connection

    async def request(self, do: str, fields: Json | None = None, *, timeout_s: float | None = ANSWER_TIMEOUT_S) -> Json:
        """Ask and wait for the answer. Raises KeeperGone, KeeperSilent; FrameTooLong, with nothing sent."""
        number = next(self._numbers)
        frame = pack({"id": number, "do": do, **(fields or {})})
        if self._task is None or self._task.done():
            raise KeeperGone(f"keeper {self.keeper_id} hung up")
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            if self._writer.is_closing():  # uvloop raises where asyncio says nothing, and no answer would come
                raise KeeperGone(f"keeper {self.keeper_id} hung up")
            self._writer.write(frame)
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the answer.
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise KeeperSilent(f"keeper {self.keeper_id} has not answered {do} in {timeout_s} s") from error
        finally:
            self._answers.pop(number, None)

    async def close(self) -> None:
        """Hang up; nobody is called any more."""
        self._is_welcome = False
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        unpacker = Unpacker()
        try:
            while data := await self._reader.read(READ_BYTES):
                for message in unpacker.feed(data):
                    self._take(message)
        except (OSError, BadFrame):
            pass
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(KeeperGone(f"keeper {self.keeper_id} hung up"))
            self._writer.close()
            if self._is_welcome:
                self._on_closed(self)

    def _take(self, message: Json) -> None:
        if "report" in message:
            self._on_report(message)
        elif "bye" in message:
            self.farewell = str(message["bye"])
        else:
            answer = self._answers.get(message.get("re", 0))
            if answer is not None and not answer.done():
                answer.set_result(message)
