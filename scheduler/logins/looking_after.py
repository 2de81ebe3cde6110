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

BY = UserName("scheduler")


async def look_after_logins(engine: Engine, ways: Ways) -> None:
    """Look again and again until cancelled; the first time is before the scheduler serves, by `end_lost_logins`."""
    while True:
        await asyncio.sleep(LOOK_S)
        await end_lost_logins(engine, ways)


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
