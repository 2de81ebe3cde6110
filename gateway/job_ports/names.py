"""Which port of which job an address stands for. Pure.

    http://job-41-port-8888.gpus.example/tree          at a host of its own, where any page works
    http://gpus.example/jobs/41/ports/8888/tree        below the gateway's own, in a sandbox

`job-41-rank-1-port-8888` and `/jobs/41/ranks/1/ports/8888/` are a port of another rank than the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.net.carrying import PORT_MAX

_NUMBER = r"(0|[1-9][0-9]{0,17})"
_HOST = re.compile(rf"job-{_NUMBER}(?:-rank-{_NUMBER})?-port-{_NUMBER}")
_PATH = re.compile(rf"/jobs/{_NUMBER}(?:/ranks/{_NUMBER})?/ports/{_NUMBER}(/.*)?".encode(), re.DOTALL)
RANK_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class JobPort:
    """A port of a job's rank."""

    job: int
    port: int
    rank: int = 0

    @property
    def host_name(self) -> str:
        """What its host is called, below a name of the gateway's."""
        rank = f"-rank-{self.rank}" if self.rank else ""
        return f"job-{self.job}{rank}-port-{self.port}"

    @property
    def prefix(self) -> str:
        """Where it lies below the gateway's own address."""
        rank = f"/ranks/{self.rank}" if self.rank else ""
        return f"/jobs/{self.job}{rank}/ports/{self.port}"

    @property
    def own_host(self) -> str:
        """What its program is told to be called: where it listens, as many take no other name there."""
        return f"127.0.0.1:{self.port}"


def port_called(host_name: str) -> JobPort | None:
    """The port whose host is called so; each has one name."""
    found = _HOST.fullmatch(host_name)
    port = _port(*found.groups()) if found is not None else None
    return port if port is not None and port.host_name == host_name else None


def port_at(raw_path: bytes) -> tuple[JobPort, bytes] | None:
    """The port, and the path there as the client wrote it, which is empty where no slash ends the prefix."""
    found = _PATH.fullmatch(raw_path)
    if found is None:
        return None
    *numbers, path = found.groups()
    port = _port(*(None if each is None else each.decode() for each in numbers))
    return None if port is None else (port, path or b"")


def _port(job: str | None, rank: str | None, port: str | None) -> JobPort | None:
    found = JobPort(int(job or 0), int(port or 0), int(rank or 0))
    return found if found.job and 0 < found.port <= PORT_MAX and found.rank <= RANK_MAX else None
