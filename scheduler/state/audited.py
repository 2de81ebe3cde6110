"""A row of the audit, and a question for rows: plain values between who records, the store, and who asks."""

from dataclasses import dataclass

from .ids import JobId
from .units import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCall:
    """A call that was made, or several of the same kind that are counted together.

    `at`: when it ended, or began where it `is_open`. `call`: its name, such as "Submit". `user`, `role` and `token`
    (its id) are the caller's, empty where the token was good for nothing; `node` is that of an agent. `peer`: the
    address that it came from, as the gateway `via` said it, where one passed it on. `target`: what it was done to, such
    as "node n1"; `jobs`: numbers of jobs, such as "41-50,60", all of them between `first_job` and `last_job`; 0 where
    there are none. `detail`: a few words on what was asked. `code` and `reason`: how it ended, "OK" and "" where all is
    well. `message`: why it was refused. `count`: how many calls it stands for.
    """

    at: Instant
    call: str
    user: str = ""
    role: str = ""
    token: str = ""
    node: str = ""
    peer: str = ""
    via: str = ""
    target: str = ""
    jobs: str = ""
    first_job: int = 0
    last_job: int = 0
    detail: str = ""
    code: str = "OK"
    reason: str = ""
    message: str = ""
    count: int = 1
    is_open: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether it was refused, or failed. Who goes away while a call is served is not refused."""
        return self.code not in ("OK", "CANCELLED")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """A call as the store keeps it; `sequence` rises over all rows."""

    sequence: int
    call: AuditedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """A page of rows, newest first; what is empty, 0 or None asks for all.

    `before` and `after` are sequences, and neither is among the rows. `since`: an instant that is. `job` finds rows
    that may be about this job: where many jobs are named, others too.
    """

    user: str = ""
    call: str = ""
    target: str = ""
    job: JobId = JobId(0)
    since: Instant | None = None
    only_refused: bool = False
    before: int | None = None
    after: int = 0
    limit: int = 100
