"""Ends the logins of whom the file of users, or the settings, know no longer."""

import asyncio
import logging

from gpufleet.telemetry.logs import fields

from ..engine import Engine, StoreAway, TooManyEvents
from ..state.events import RevokeRequested
from ..state.ids import UserName
from .ways import Ways

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the file is looked at: what changed in it ends logins within this."""

FIRST_LOOK_S_MAX = 5.0
"""How long a start waits for the first look, before it serves: ending a login takes a commit, and a store may hang."""

BY = UserName("scheduler")


async def look_after_logins(engine: Engine, ways: Ways, looked: asyncio.Event) -> None:
    """Look until cancelled, from the start on: the file may have changed while nobody served. `looked`: once it has."""
    while True:
        await end_lost_logins(engine, ways)
        looked.set()
        await asyncio.sleep(LOOK_S)


async def end_lost_logins(engine: Engine, ways: Ways) -> None:
    """Look once. A login that has expired is revoked, too: by it a name would stay its user's."""
    for token in list(engine.view.durable.tokens.values()):
        if token.login and token.revoked_at is None and not ways.still_holds(token):
            log.info("a login was ended", extra=fields(user=token.user, token=token.id, why="its user is not known"))
            try:
                await engine.request(RevokeRequested(at=engine.now(), by=BY, token=token.id))
            except (StoreAway, TooManyEvents) as problem:
                log.warning("logins could not be ended; it is tried again", extra=fields(why=str(problem)))
                return
