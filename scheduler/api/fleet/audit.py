"""The Scheduler service: what is asked of the audit."""

import re
from dataclasses import replace

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ...audit.limits import SEVERAL
from ...audit.log import LOST, AuditLog
from ...audit.texts import names
from ...state.audited import AuditedCall, AuditQuery, AuditRow
from ...state.ids import JobId
from ...state.units import Instant
from ...wire.convert import timestamp
from ...wire.validate import instant_of
from ..audited_calls import AUDITED_RPCS
from ..jobs.finding import JobsFound
from ..output.beginnings import YEAR_1_SECONDS
from ..paging import PageTokens, page_size
from ..roles import Caller, caller

WRITTEN_SECONDS_MAX = 2.0
"""How long a page waits for what has just been done to be written."""

PAGES_LOOKED_AT_MAX = 20
"""Rows of many jobs may name numbers around the one that is asked for: after so many pages of those one is answered."""

NAME_CHARS_MAX = 300
JOB = re.compile("job[ :]([0-9]{1,18})")
KNOWN_CALLS = {name.rpartition("/")[2] for name in AUDITED_RPCS} | {LOST, SEVERAL}


class AuditCalls(JobsFound):
    """What people ask of the audit."""

    audit: AuditLog
    pages: PageTokens

    async def ListAuditEntries(
        self, request: scheduler_pb2.ListAuditEntriesRequest
    ) -> scheduler_pb2.ListAuditEntriesResponse:
        """Who called what, newest first: admins see all, others themselves and what was done to a job of theirs."""
        size = page_size(request.page_size)
        asked = _asked(request)
        if not await self._sees_others(asked.job, request.user):
            asked = replace(asked, user=caller().user)
        bound = scheduler_pb2.ListAuditEntriesRequest()
        bound.CopyFrom(request)
        bound.ClearField("page_token")
        query = f"audit {asked.user} {bound.SerializeToString(deterministic=True).hex()}"
        cursor = self.pages.read(query, request.page_token)
        before = cursor[0] if cursor else None
        found: list[AuditRow] = []
        has_more = True
        for _ in range(PAGES_LOOKED_AT_MAX):
            rows = await self.audit.page(replace(asked, before=before, limit=size + 1), WRITTEN_SECONDS_MAX)
            has_more = len(rows) > size
            rows = rows[:size]
            found += [row for row in rows if not asked.job or names(row.call.jobs, asked.job)]
            before = rows[-1].sequence if rows else before
            if not has_more or len(found) >= size:
                break
        if len(found) > size:
            found, has_more = found[:size], True
            before = found[-1].sequence
        return scheduler_pb2.ListAuditEntriesResponse(
            entries=[_entry(row, caller()) for row in found],
            next_page_token=self.pages.sign(query, [before]) if has_more else "",
        )

    async def _sees_others(self, job: JobId, user: str) -> bool:
        """Whether what others did is shown, too. Errors: PERMISSION_DENIED, JOB_NOT_FOUND, NOT_YOUR_JOB."""
        if caller().is_admin:
            return True
        if job:
            self.check_owner(await self.find(job))
            return True
        if user not in ("", caller().user):
            raise GpufleetError(
                Reason.PERMISSION_DENIED,
                "only an admin sees what other users did",
                next_step="Leave the user out, or ask for a job of yours: gpuctl audit --on job:41",
            )
        return False


def _asked(request: scheduler_pb2.ListAuditEntriesRequest) -> AuditQuery:
    """The rows that are asked for. Errors: INVALID_ARGUMENT."""
    for path, value in (("user", request.user), ("target", request.target)):
        if len(value) > NAME_CHARS_MAX:
            raise invalid(path, f"is longer than {NAME_CHARS_MAX} characters")
    if request.call and request.call not in KNOWN_CALLS:
        raise invalid("call", f"{request.call[:64]!r} is no call", next_step="give the name of one, such as Submit")
    if request.after_sequence < 0:
        raise invalid("after_sequence", f"is {request.after_sequence}; it must be 0 or more")
    since: Instant | None = None
    if request.HasField("since_time"):
        since = instant_of(request.since_time, YEAR_1_SECONDS)
        if since is None:
            raise invalid("since_time", "is no time between the years 1 and 9999")
    job = JOB.fullmatch(request.target)
    kind, _, name = request.target.partition(":")
    return AuditQuery(
        user=request.user,
        call=request.call,
        target="" if job else f"{kind} {name}" if name and " " not in kind else request.target,
        job=JobId(int(job[1])) if job else JobId(0),
        since=since,
        only_refused=request.only_refused,
        after=request.after_sequence,
    )


def _entry(row: AuditRow, who: Caller) -> scheduler_pb2.AuditEntry:
    call = row.call
    # From where others called, and with which token, is the admins' matter.
    is_whole = who.is_admin or call.user == who.user
    return scheduler_pb2.AuditEntry(
        sequence=row.sequence,
        time=timestamp(call.at),
        user=call.user,
        action=call.call,
        target=_target(call),
        sentence=call.detail,
        role=call.role,
        token=call.token if is_whole else "",
        node=call.node,
        peer=call.peer if is_whole else "",
        passed_on_by=call.via if is_whole else "",
        code=call.code,
        reason=call.reason,
        message=call.message,
        count=call.count,
        is_open=call.is_open,
    )


def _target(call: AuditedCall) -> str:
    if not call.jobs:
        return call.target
    jobs = f"job {call.jobs}" if call.jobs.isdigit() else f"jobs {call.jobs}"
    return f"{call.target}: {jobs}" if call.target else jobs
