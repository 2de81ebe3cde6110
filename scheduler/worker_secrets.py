"""What a worker that the fleet starts is told in its launch environment, and nowhere else: its token, and the secret
that signs the tickets of its turns.

Both follow from one key in the scheduler's data folder and from the attempt, so that nothing of them is stored, a
launch that is sent twice says the same twice, and a scheduler that starts again still knows them. The token is good as
long as the attempt is.
"""

import base64
import hmac
import secrets
from pathlib import Path

from gpufleet.security.tickets import SECRET_BYTES
from gpufleet.security.tokens import TOKEN_PREFIX, TOKEN_VARIABLE

from .job_tokens import JobTokens
from .key_files import read_or_make_key
from .node_tokens import NodeTokens
from .origins import Origins
from .position_seal import PositionSeal
from .state.commands import LaunchAttempt
from .state.durable import Durable
from .state.ids import RankKey
from .state.jobs import Job

KEY_FILE = "worker.key"
SECRET_VARIABLE = "GPUFLEET_TICKET_SECRET"
TOKEN_ID_PREFIX = "worker-"


class WorkerSecrets:
    """Makes the secrets of each attempt from one key. `key` is for tests; by default it is new.

    `jobs` makes the tokens that jobs have of themselves, `nodes` the credentials of nodes, and `origins` what
    launches say of their jobs, of the same key, and `positions` seals what nodes are told of the store.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(SECRET_BYTES) if key is None else key
        self.jobs = JobTokens(self._key)
        self.nodes = NodeTokens(self._key)
        self.origins = Origins(self._key)
        self.positions = PositionSeal(self._key)

    def ticket_secret(self, key: RankKey) -> bytes:
        """What signs the tickets of this attempt's worker, which is its rank 0."""
        return self._of("tickets", key)

    def token(self, key: RankKey) -> str:
        """The bearer token of this attempt's worker."""
        return TOKEN_PREFIX + base64.urlsafe_b64encode(self._of("token", key)).decode().rstrip("=")

    def environment(self, launch: LaunchAttempt) -> dict[str, str]:
        """What the launch of a worker says beside what its job says; nothing for any other job."""
        if not launch.spec.serves:
            return {}
        return {SECRET_VARIABLE: self.ticket_secret(launch.key).hex(), TOKEN_VARIABLE: self.token(launch.key)}

    def job_of(self, token: str, durable: Durable) -> Job | None:
        """The job whose worker has this token now."""
        found: Job | None = None
        for jobs in durable.services.values():
            for job_id in jobs:
                job = durable.jobs[job_id]
                attempt = job.attempt
                if attempt is not None and hmac.compare_digest(self.token(attempt.keys(job_id)[0]), token):
                    found = job
        return found

    def _of(self, purpose: str, key: RankKey) -> bytes:
        # An attempt of before lineages keeps what it was told: it may run through the upgrade.
        named = f"{key.job}.{key.attempt}" + (f".{key.lineage}" if key.lineage else "")
        return hmac.digest(self._key, f"gpufleet worker {purpose}\0{named}".encode(), "sha256")


def read_or_make(data: Path) -> WorkerSecrets:
    """The secrets of this data folder; its key is made at the first start.

    Errors: TOKEN_FILE_EXPOSED, CONFIG_INVALID.
    """
    step = "Remove it and start again: workers that run now are then refused, and started anew."
    return WorkerSecrets(read_or_make_key(data / KEY_FILE, step))
