"""The token that a running job has of itself: told in its launch environment, and kept nowhere.

It follows from the key in the scheduler's data folder and names the attempt that it is of, so that a launch that is
sent twice says the same twice, a scheduler that starts again still knows it, and a call finds its job without a search.
It is good as long as the attempt is, and for that job alone (`api/own_job.py`).
"""

import struct

from gpufleet.jobs.variables import JOB_TOKEN_VARIABLE

from .keyed_tokens import KeyedTokens
from .state.commands import LaunchAttempt
from .state.durable import Durable
from .state.ids import JobId, RankKey, TokenId
from .state.jobs import Job

TOKEN_ID_PREFIX = "job-"

_NAMED = struct.Struct(">qi")


class JobTokens:
    """Makes and checks the tokens of running jobs by one key."""

    def __init__(self, key: bytes) -> None:
        self._keyed = KeyedTokens(key, "job", _NAMED.size)

    def token(self, key: RankKey) -> str:
        """The bearer token of this attempt, the same for all of its ranks."""
        return self._keyed.token(_NAMED.pack(key.job, key.attempt), key.lineage.encode())

    def environment(self, launch: LaunchAttempt) -> dict[str, str]:
        """What a launch says beside what its job says; a model's worker has a token of its own."""
        if launch.spec.serves:
            return {}
        return {JOB_TOKEN_VARIABLE: self.token(launch.key)}

    def job_of(self, token: str, durable: Durable) -> Job | None:
        """The job that has this token now; None for what is none, and for that of an attempt which is over."""

        def lineage(named: bytes) -> bytes | None:
            job = _job_of(named, durable)
            return None if job is None or job.attempt is None else job.attempt.lineage.encode()

        # A proof of the lineage, too: numbers may be given anew by a store that was put back.
        named = self._keyed.named_by(token, lineage)
        return None if named is None else _job_of(named, durable)


def _job_of(named: bytes, durable: Durable) -> Job | None:
    job_id, attempt = _NAMED.unpack(named)
    job = durable.jobs.get(job_id)
    return job if job is not None and job.attempt is not None and job.attempt.number == attempt else None


def token_id(job: Job, prefix: str = TOKEN_ID_PREFIX) -> TokenId:
    """The name of the token that a job's attempt has of itself now, or of its worker's with the prefix of those."""
    assert job.attempt is not None
    return TokenId(f"{prefix}{job.id}.{job.attempt.number}")


def is_good(name: TokenId, durable: Durable) -> bool:
    """Whether such a token may still be used: its attempt goes on."""
    job_id, _, number = name.partition("-")[2].partition(".")
    job = durable.jobs.get(JobId(int(job_id)))
    return job is not None and job.attempt is not None and job.attempt.number == int(number)
