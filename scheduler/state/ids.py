"""Names of things: ids are small typed values, never bare strings or numbers."""

from typing import NewType

from gpufleet.jobs.runs import JobId as JobId  # these two a node knows as well
from gpufleet.jobs.runs import RankKey as RankKey

NodeName = NewType("NodeName", str)
DeviceUuid = NewType("DeviceUuid", str)
TokenId = NewType("TokenId", str)
UserName = NewType("UserName", str)
ModelName = NewType("ModelName", str)
SecretName = NewType("SecretName", str)
SecretKey = tuple[UserName, SecretName]
