"""Whom a worker that went down is put down to."""

from dataclasses import replace

from scheduler.policy.sessions.suspicion import FADES_AFTER, SAME_INPUT_FADES_AFTER, WORKER_DEATHS_MAX, worker_deaths
from scheduler.state.sessions.session import Identity, ModelName, Session, SessionId, Suspicion
from scheduler.state.units import SECOND, Instant, Span

NEW = Session(id=SessionId(1), model=ModelName("m"), identity=Identity("ann"), key_digest="key", joined_at=Instant(0))
SHORT = Span(SECOND)


def suspicion(given: str = "", *, was_alone: bool = True) -> Suspicion:
    return Suspicion(at=Instant(0), input=given, was_alone=was_alone)


def deaths(*each: tuple[Suspicion, Span]) -> int:
    """Of a session under which workers went down one after the other."""
    session = NEW
    for suspected, good in each:
        count = worker_deaths(session, suspected, good)
        session = replace(session, worker_deaths=count, suspicion=suspected)
    return session.worker_deaths


def test_who_was_alone_in_the_middle_of_a_step_is_to_blame_the_second_time() -> None:
    assert deaths((suspicion("a"), SHORT)) == 1
    assert deaths((suspicion("a"), SHORT), (suspicion("b"), SHORT)) == WORKER_DEATHS_MAX


def test_among_others_only_the_same_input_tells() -> None:
    one = suspicion("a", was_alone=False)
    assert deaths((one, SHORT), (suspicion("b", was_alone=False), SHORT), (suspicion("c", was_alone=False), SHORT)) == 0
    assert deaths((one, SHORT), (one, SHORT)) == WORKER_DEATHS_MAX
    nothing = suspicion(was_alone=False)
    assert deaths((nothing, SHORT), (nothing, SHORT)) == 0, "two steps without an input are no same input"


def test_a_suspicion_fades_with_a_good_turn_and_that_of_the_same_input_later() -> None:
    first = (suspicion("a"), SHORT)
    assert deaths(first, (suspicion("b"), FADES_AFTER)) == 1
    assert deaths(first, (suspicion("a"), FADES_AFTER)) == WORKER_DEATHS_MAX
    assert deaths(first, (suspicion("a"), SAME_INPUT_FADES_AFTER)) == 1
    among_others = suspicion("a", was_alone=False)
    assert deaths((among_others, SHORT), (among_others, FADES_AFTER)) == 0
