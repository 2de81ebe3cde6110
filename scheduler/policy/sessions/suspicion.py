"""Whether a session brings workers down. Being there when one is killed from outside is no evidence.

Suspected is who had a step under way as the worker went: alone on it, or with the same input as the time before. A
suspicion fades while the session has a turn that gives frames.
"""

from ...state.sessions.session import Session, Suspicion
from ...state.units import SECOND, Span

WORKER_DEATHS_MAX = 2
"""Workers that may go down under a suspected session: it is not given another one."""

FADES_AFTER = Span(60 * SECOND)
"""A turn with frames that has lasted so long on one worker clears its session of the workers before."""

SAME_INPUT_FADES_AFTER = Span(600 * SECOND)
"""The same where nobody else was there, and the same input was under way both times: that is hardly chance."""


def worker_deaths(session: Session, suspicion: Suspicion, good: Span) -> int:
    """How many workers the session may have brought down with this one, where it had frames for `good`."""
    before = session.suspicion
    is_same = before is not None and before.input != "" and before.input == suspicion.input
    is_alike = is_same and before is not None and before.was_alone and suspicion.was_alone
    if before is None or good >= (SAME_INPUT_FADES_AFTER if is_alike else FADES_AFTER):
        return int(suspicion.was_alone)
    if is_same:
        return max(1, session.worker_deaths) + 1
    return session.worker_deaths + suspicion.was_alone
