"""Which programs there are for whoever asks."""

from __future__ import annotations

from gpufleet.v1 import sessions_pb2
from starlette.requests import HTTPConnection

from .serving import OPEN as OPEN
from .serving import Proxy


async def programs_for(
    proxy: Proxy, request: HTTPConnection, login: str | None = None
) -> tuple[list[sessions_pb2.Model], str]:
    """The programs that this person may use, and who it is; empty for a stranger, who is told the open ones. `login` is
    as in `Access.user_of`. Raises LOGIN_NEEDED for a stranger where none is open."""
    programs = await proxy.watching.programs()
    open_ones = [each for each in programs if each.limits.access == OPEN]
    if open_ones and not proxy.access.brings_token(request, login):
        return open_ones, ""
    # A wrong token is told, though some need none: else a list that lacks the others would be a riddle.
    return programs, await proxy.access.user_of(request, sessions_pb2.MODEL_ACCESS_LOGIN, login)
