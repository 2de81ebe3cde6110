"""What a replica is and what is done about it, from what happens: tables without a clock, a program or a socket."""

from __future__ import annotations

import pytest

from inference.core.replicas import (
    DRAIN_US_MAX,
    PROBE_US,
    PROBE_US_FIRST,
    PROBE_US_STARTING_MAX,
    QUIET_US,
    SECOND_START_US_MAX,
    STOP_US_MAX,
    Act,
    Phase,
    Replica,
)

S = 1_000_000
START, TERMINATE, KILL, LEAVE = Act.START, Act.TERMINATE, Act.KILL, Act.LEAVE
STARTING, READY, UNREADY, DRAINING, FAILED = Phase

Step = tuple[int, str, Phase, Act | None]
"""When, what happens, and what the replica is then and what is done."""


def happen(replica: Replica, what: str, now_us: int) -> None:
    word, _, rest = what.partition(" ")
    match word:
        case "ok":
            replica.probed("")
        case "miss":
            replica.probed(rest or "a miss")
        case "open":
            replica.connected(int(rest), now_us)
        case "drain":
            replica.drain(now_us)
        case "stop":
            replica.stop(now_us)
        case "exit" | "exit-taken":
            replica.exited(int(rest), f"it ended with {rest}", now_us, is_port_taken=word == "exit-taken")
        case _:
            assert word == "time"


COURSES: dict[str, list[Step]] = {
    "it is ready once it is well": [
        (1, "miss", STARTING, None),
        (2, "miss", STARTING, None),
        (3, "ok", READY, None),
        (4, "ok", READY, None),
    ],
    "three misses in a row leave it, and one answer brings it back": [
        (1, "ok", READY, None),
        (2, "miss", READY, None),
        (3, "miss", READY, None),
        (4, "ok", READY, None),
        (5, "miss", READY, None),
        (6, "miss", READY, None),
        (7, "miss", UNREADY, None),
        (8, "miss", UNREADY, None),
        (9, "ok", READY, None),
        (10, "miss", READY, None),
    ],
    "a program that ends by itself has failed": [(1, "ok", READY, None), (5 * S, "exit 0", FAILED, LEAVE)],
    "one that never became ready, too": [(1, "miss", STARTING, None), (2, "exit 3", FAILED, LEAVE)],
    "a port that somebody else has: it is started again, once": [
        (1, "exit-taken 1", STARTING, START),
        (2, "exit-taken 1", FAILED, LEAVE),
    ],
    "also when whoever has it answers": [(1, "ok", READY, None), (2, "exit-taken 1", STARTING, START)],
    "not after two seconds": [(SECOND_START_US_MAX + 1, "exit-taken 1", FAILED, LEAVE)],
    "not when it is drained": [(1, "drain", DRAINING, None), (2, "exit-taken 1", FAILED, LEAVE)],
    "stopped: SIGTERM, and SIGKILL 5 s later": [
        (1, "ok", READY, None),
        (1, "open 3", READY, None),
        (10, "stop", DRAINING, TERMINATE),
        (11, "stop", DRAINING, None),
        (9 + STOP_US_MAX, "time", DRAINING, None),
        (10 + STOP_US_MAX, "time", DRAINING, KILL),
        (11 + STOP_US_MAX, "time", DRAINING, None),
        (12 + STOP_US_MAX, "exit 137", DRAINING, LEAVE),
        (13 + STOP_US_MAX, "ok", DRAINING, LEAVE),
    ],
    "drained without a connection: after a second, in which one may come": [
        (1, "ok", READY, None),
        (2, "drain", DRAINING, None),
        (3, "ok", DRAINING, None),
        (1 + QUIET_US, "time", DRAINING, None),
        (2 + QUIET_US, "time", DRAINING, TERMINATE),
        (3 + QUIET_US, "exit 143", DRAINING, LEAVE),
    ],
    "drained with connections: a second after the last": [
        (1, "ok", READY, None),
        (2, "open 2", READY, None),
        (3, "drain", DRAINING, None),
        (3 + 90 * S, "open 0", DRAINING, None),
        (4 + 90 * S, "drain", DRAINING, None),
        (3 + 91 * S - 1, "open 1", DRAINING, None),
        (3 + 92 * S, "open 0", DRAINING, None),
        (3 + 93 * S - 1, "time", DRAINING, None),
        (3 + 93 * S, "time", DRAINING, TERMINATE),
    ],
    "drained with a connection that stays: after 170 s": [
        (1, "open 1", STARTING, None),
        (2, "drain", DRAINING, None),
        (1 + DRAIN_US_MAX, "time", DRAINING, None),
        (2 + DRAIN_US_MAX, "time", DRAINING, TERMINATE),
    ],
    "drained, it ends well by itself": [
        (1, "open 1", STARTING, None),
        (2, "drain", DRAINING, None),
        (3, "exit 0", DRAINING, LEAVE),
    ],
    "drained, it crashes": [
        (1, "open 1", STARTING, None),
        (2, "drain", DRAINING, None),
        (3, "exit 139", FAILED, LEAVE),
    ],
    "what failed is not drained any more": [(1, "exit 2", FAILED, LEAVE), (2, "stop", FAILED, LEAVE)],
}


@pytest.mark.parametrize("course", COURSES)
def test_what_a_replica_is_follows_from_what_happens(course: str) -> None:
    replica = Replica()
    assert replica.act(0) is START
    assert replica.act(0) is None
    for now_us, what, phase, act in COURSES[course]:
        happen(replica, what, now_us)
        assert (replica.phase, replica.act(now_us)) == (phase, act), (now_us, what)


def test_one_that_is_told_to_end_before_it_began_never_starts() -> None:
    for tell in (Replica.drain, Replica.stop):
        replica = Replica()
        tell(replica, 0)
        assert (replica.act(0), replica.phase, replica.status) == (LEAVE, DRAINING, None)


def test_it_is_asked_again_when_something_is_due() -> None:
    replica = Replica()
    replica.act(0)
    assert replica.due_us is None
    replica.connected(1, 5)
    replica.drain(7)
    assert replica.due_us == 7 + DRAIN_US_MAX
    replica.connected(0, 9)
    assert replica.due_us == 9 + QUIET_US
    replica.stop(10)
    assert replica.act(10) is TERMINATE and replica.due_us == 10 + STOP_US_MAX
    assert replica.act(10 + STOP_US_MAX) is KILL and replica.due_us is None


def test_the_message_says_why_it_is_not_ready_and_how_it_ended() -> None:
    replica = Replica()
    replica.probed("waits for the port")
    assert replica.message == "waits for the port"
    replica.probed("GET /health answers 503")
    assert replica.message == "GET /health answers 503"
    replica.probed("")
    assert replica.message == ""
    for _ in range(3):
        replica.probed("GET /health answers 500")
    assert (replica.phase, replica.message) == (UNREADY, "GET /health answers 500")
    replica.exited(3, "the program ended with exit code 3", 9 * S)
    assert (replica.status, replica.message) == (3, "the program ended with exit code 3")


def test_probes_are_frequent_until_it_is_ready_and_also_after_a_second_start() -> None:
    replica = Replica()
    replica.act(0)
    pauses = [replica.probe_pause_us]
    for _ in range(8):
        replica.probed("a miss")
        pauses.append(replica.probe_pause_us)
    assert pauses[0] == PROBE_US_FIRST and pauses[-1] == PROBE_US_STARTING_MAX and pauses == sorted(pauses)
    replica.exited(1, "it ended", 1, is_port_taken=True)
    assert replica.probe_pause_us == PROBE_US_FIRST
    for miss in ("", "a miss", "a miss", "a miss", "a miss"):
        replica.probed(miss)
        assert replica.probe_pause_us == PROBE_US
