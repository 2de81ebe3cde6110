"""Which replica a request gets, and who waits: values only."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.core.choice import Replica, choose
from gateway.proxy.core.waiting import (
    ENDS_FORGOTTEN_S,
    WAITING_IN_ALL_MAX,
    WAITING_MAX,
    WAITING_PER_CALLER_MAX,
    Ends,
    Waiting,
    WaitingRequests,
)


def replicas(*under_way: int, seats: int = 4) -> list[Replica]:
    return [Replica(f"r{number}", seats, each) for number, each in enumerate(under_way)]


def test_a_request_goes_where_the_fewest_are_under_way_and_then_where_the_last_one_is_oldest() -> None:
    some = replicas(2, 1, 1)
    some[1].used, some[2].used = 8, 7
    assert choose(some, 0.0) is some[2]
    some[2].used = 9
    assert choose(some, 0.0) is some[1]


def test_a_full_replica_and_one_that_is_passed_over_get_nothing() -> None:
    some = replicas(4, 0)
    some[1].passed_over_until_s = 5.0
    assert choose(some, 4.9) is None
    assert choose(some, 5.0) is some[1]
    assert choose([], 0.0) is None


def test_a_replica_that_failed_a_request_gets_it_again_only_where_there_is_no_other() -> None:
    some = replicas(0, 3)
    assert choose(some, 0.0, avoided=some[0]) is some[1]
    some[1].under_way = 4
    assert choose(some, 0.0, avoided=some[0]) is some[0]


@given(st.text(min_size=1), st.integers(2, 8), st.data())
def test_a_session_keeps_its_replica_while_others_come_and_go(session: str, count: int, data: st.DataObject) -> None:
    some = replicas(*[0] * count)
    home = choose(some, 0.0, session)
    others = [each for each in some if each is not home]
    left = data.draw(st.lists(st.sampled_from(others), unique=True))
    kept = [each for each in some if each not in left]
    assert choose(kept, 0.0, session) is home
    assert home is not None
    home.under_way = home.seats
    assert choose(some, 0.0, session) is not home


def test_sessions_are_spread() -> None:
    some = replicas(0, 0, 0, 0)
    homes = Counter(choose(some, 0.0, f"session {number}") for number in range(400))
    assert len(homes) == 4 and min(homes.values()) > 50


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_who_waits_has_the_place_in_which_it_is_served(callers: list[int], data: st.DataObject) -> None:
    waiting = WaitingRequests[Waiting]()
    requests = [Waiting(f"caller {each}", float(at)) for at, each in enumerate(callers)]
    for each in requests:
        waiting.add(each)
    for left in data.draw(st.lists(st.sampled_from(requests), unique=True)):
        waiting.remove(left)
        requests.remove(left)
    places = {each: waiting.place_of(each) for each in requests}
    assert waiting.oldest_s() == min((each.since_s for each in requests), default=None)
    served = []
    while waiting.first() is not None:
        first = waiting.first()
        assert waiting.take() is first and first is not None
        served.append(first)
    assert len(waiting) == 0
    assert served == sorted(requests, key=lambda each: places[each])
    for caller in {each.caller for each in requests}:
        own = [each.since_s for each in served if each.caller == caller]
        assert own == sorted(own)


def test_one_caller_does_not_keep_the_others_from_waiting() -> None:
    waiting = WaitingRequests[Waiting]()
    for _ in range(WAITING_PER_CALLER_MAX):
        assert waiting.has_room("ann", 0)
        waiting.add(Waiting("ann", 0.0))
    assert not waiting.has_room("ann", 0)
    ben = Waiting("ben", 1.0)
    waiting.add(ben)
    assert waiting.place_of(ben) == 2
    assert not waiting.has_room("cem", WAITING_IN_ALL_MAX)
    for number in range(WAITING_MAX - len(waiting)):
        waiting.add(Waiting(f"other {number}", 2.0))
    assert not waiting.has_room("cem", 0)


def test_how_long_a_place_takes_is_said_only_where_it_is_known() -> None:
    ends = Ends()
    assert ends.estimate_s(3, 0.0) is None
    ends.add(0.0)
    assert ends.estimate_s(3, 1.0) is None
    ends.add(2.0)
    assert ends.estimate_s(3, 4.0) == 6.0
    assert ends.estimate_s(3, 2.1 + ENDS_FORGOTTEN_S) is None
