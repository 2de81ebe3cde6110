"""A request for a program's statistics: every replica that is ready is asked, and the answer is the sum of theirs.

A replica counts what it has computed itself, so that one alone tells little of its program. Rule: 3.17 of
docs/rules/sessions.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.logs import fields

from ..dashboard.guard import on_a_thread_if_long
from .core.headers import Header, as_it_is, to_browser
from .core.statistics import Statistics, added, body_of, count_of, statistics_in
from .exchange import Client, Passed, pass_request
from .upstream import ReplicaFailed, Upstream
from .whole_answer import WholeAnswer

log = logging.getLogger(__name__)

REPLICA_S_MAX = 5.0
"""A replica that has not told its statistics for so long is left out."""

REPLICAS_MAX = 32
"""Replicas that are asked at a time for one request."""

TOLD_BYTES_MAX = 524_288
"""A longer answer of a replica is left out; one with 2,000 sizes of batches is shorter."""

NUMBERS_MAX = 50_000
"""A replica with which the sum would have more numbers is left out."""

REPLICAS_SAID = b"gpufleet-replicas"
"""What the answer says: how many replicas the sum is of, and how many are ready, such as 2/3."""

OK = 200


async def pass_statistics(model: str, replicas: Sequence[Upstream], passed: Passed, client: Client) -> None:
    """Answer a client with the sum of what these replicas say.

    One that says none in time is left out, which the answer tells. Where none says any, the answer is what one of them
    says in their place. Raises REPLICA_FAILED where none answers; TimeoutError where the client takes nothing.
    """
    gathering = _Gathering(model, passed._replace(headers=as_it_is(passed.headers)))
    async with asyncio.TaskGroup() as asking:
        for replica in replicas:
            asking.create_task(gathering.ask(replica), name="proxy-statistics")
    if gathering.told:
        body = body_of(gathering.total)
        headers: list[Header] = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        client.said.append((REPLICAS_SAID, b"%d/%d" % (gathering.told, len(replicas))))
        await client.begin(OK, to_browser(headers, passed.origin))
        await client.end(body)
    elif gathering.other is not None:
        await client.begin(gathering.other.status, gathering.other.headers)
        await client.end(bytes(gathering.other.answer))
    else:
        message = f"no replica of {model!r} has told its statistics: {gathering.why}"
        raise GpufleetError(Reason.REPLICA_FAILED, message)


class _Gathering:
    """What replicas of a program have answered to one request until now."""

    def __init__(self, model: str, passed: Passed) -> None:
        self._model = model
        self._passed = passed
        self._may_ask = asyncio.Semaphore(REPLICAS_MAX)
        self.total: Statistics = {}
        self.told = 0
        """Replicas that the total is of."""

        self.other: WholeAnswer | None = None
        """An answer that says no statistics."""

        self.why = ""
        """Why the last one that was left out was."""

    async def ask(self, replica: Upstream) -> None:
        """Add what a replica says, or leave it out."""
        try:
            async with self._may_ask, asyncio.timeout(REPLICA_S_MAX), replica.asked_beside:
                await self._ask(replica)
        except TimeoutError:
            self._leave_out(replica, f"it did not answer within {REPLICA_S_MAX:g} s")
        except ReplicaFailed as problem:
            self._leave_out(replica, str(problem))
        except GpufleetError as problem:
            self._leave_out(replica, problem.message)

    async def _ask(self, replica: Upstream) -> None:
        answer = WholeAnswer({"method": self._passed.method}, TOLD_BYTES_MAX)
        # On a new connection: a kept one may be about to close, and there is no second try.
        await pass_request(replica, self._passed, answer, is_new=True)
        said = None
        if answer.status == OK:
            said = await on_a_thread_if_long(len(answer.answer), lambda: statistics_in(answer.answer))
        if said is None:
            self.other = self.other or answer
            self._leave_out(replica, f"it answered with the status {answer.status}, and no statistics")
            return
        total = added(self.total, said)
        if count_of(total) > NUMBERS_MAX:
            self._leave_out(replica, f"with its statistics there would be more than {NUMBERS_MAX:,} numbers")
            return
        self.total, self.told = total, self.told + 1

    def _leave_out(self, replica: Upstream, why: str) -> None:
        self.why = why
        log.info("a replica is left out of statistics", extra=fields(model=self._model, replica=replica.id, why=why))
