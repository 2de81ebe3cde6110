"""Names of things: ids are small typed values, never bare strings or numbers."""

from dataclasses import dataclass
from typing import NewType

JobId = NewType("JobId", int)
NodeName = NewType("NodeName", str)
DeviceUuid = NewType("DeviceUuid", str)
TokenId = NewType("TokenId", str)
UserName = NewType("UserName", str)
ModelName = NewType("ModelName", str)


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """A numbered run of a job; numbers count from 1."""

    job: JobId
    number: int

    def __str__(self) -> str:
        return f"{self.job}/{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class RankKey:
    """One node's part of an attempt; ranks count from 0."""

    job: JobId
    attempt: int
    rank: int

    @property
    def attempt_id(self) -> AttemptId:
        """The attempt that this is a part of."""
        return AttemptId(self.job, self.attempt)

    def __str__(self) -> str:
        return f"{self.job}/{self.attempt}" if self.rank == 0 else f"{self.job}/{self.attempt}.{self.rank}"
