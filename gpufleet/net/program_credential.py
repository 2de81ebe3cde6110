"""The credential of one worker or gateway: for what its token is traded when it first joins, and renewed from then on.

The program makes each credential itself and keeps it before it asks, so that an answer that gets lost costs nothing:
it asks again, and is answered the same. A token that is not traded goes on being the one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.status import from_rpc_error
from gpufleet.security.tokens import hash_token, make_token, read_token_file, write_token_file
from gpufleet.v1 import scheduler_pb2, scheduler_pb2_grpc

log = logging.getLogger(__name__)

CREDENTIAL_FILE = "credential.token"
RENEWED_AFTER_SECONDS = 86_400.0
"""A program that starts with an older credential renews it."""
ANSWER_SECONDS_MAX = 5.0
ABSENT = (Reason.SCHEDULER_UNREACHABLE, Reason.SCHEDULER_STOPPING, Reason.DEADLINE, Reason.STORE_UNAVAILABLE)
ASKS_AGAIN = (Reason.METHOD_UNKNOWN,)
"""Said by a scheduler from before: tokens are not traded there."""


class ProgramCredential:
    """Kept in `file`, under `name`; of a worker of `model`. `joining` reads the token that it is traded for.

    Errors of `token` and `settle`: those of reading a token file, and what the scheduler refuses.
    """

    def __init__(self, file: Path, name: str, joining: Callable[[], str], model: str = "") -> None:
        self._file = file
        self._next = file.with_name(f"{file.name}.next")
        self._name = name
        self._joining = joining
        self._model = model
        self.is_settled = False

    def token(self) -> str:
        """What to send now."""
        return read_token_file(self._file) if self._file.exists() else self._joining()

    async def settle(self, targets: Iterable[Target]) -> None:
        """Trade or renew what is to be, at the first scheduler that answers; `is_settled` says whether one did."""
        if self.is_settled or self._is_fresh():
            self.is_settled = True
            return
        if not self._next.exists():
            write_token_file(self._next, make_token())
        for target in targets:
            try:
                await self._ask_as_one_of(target)
            except GpufleetError as problem:
                if problem.reason not in ABSENT:
                    raise
            else:
                self.is_settled = True
                return

    def _is_fresh(self) -> bool:
        return self._file.exists() and time.time() - self._file.stat().st_mtime < RENEWED_AFTER_SECONDS

    async def _ask_as_one_of(self, target: Target) -> None:
        """Ask by the credential, or by the next one, where the answer that made it good was lost."""
        proposed = read_token_file(self._next)
        is_renewed = self._file.exists()
        try:
            is_traded = await self._ask(target, self.token(), proposed)
        except GpufleetError as problem:
            if not is_renewed or problem.reason not in (Reason.TOKEN_INVALID, Reason.TOKEN_REVOKED):
                raise
            try:
                is_traded = await self._ask(target, proposed, proposed)
            except GpufleetError as other:
                raise (problem if other.reason is Reason.TOKEN_INVALID else other) from None
        if is_traded:
            self._next.replace(self._file)
            log.info("%s has %s credential of its own", self._name, "another" if is_renewed else "a")
        else:
            self._next.unlink(missing_ok=True)

    async def _ask(self, target: Target, token: str, proposed: str) -> bool:
        request = scheduler_pb2.JoinProgramRequest(name=self._name, digest=hash_token(proposed), model=self._model)
        channel = connect_async(replace(target, token=token))
        try:
            stub = scheduler_pb2_grpc.SchedulerStub(channel)
            answer = await stub.JoinProgram(request, timeout=ANSWER_SECONDS_MAX)
        except grpc.aio.AioRpcError as problem:
            error = from_rpc_error(problem)
            if error.reason in ASKS_AGAIN:
                return False
            raise error from None
        finally:
            await channel.close()
        return bool(answer.HasField("credential"))
