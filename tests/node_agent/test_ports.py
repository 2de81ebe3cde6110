"""Ports for MASTER_PORT: free on every address, held until the rank begins, and of no use to whoever wants any port."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpufleet.jobs.runs import JobId, RankKey
from node_agent import ports
from node_agent.ports import PORT_MAX, PORT_MIN, MasterPorts, ports_nobody_is_given

FIRST, SECOND = RankKey(JobId(1), 1, 0), RankKey(JobId(2), 1, 0)


@pytest.fixture
def master_ports() -> Iterator[MasterPorts]:
    made = MasterPorts()
    yield made
    made.close()


def can_be_bound(port: int, address: str = "0.0.0.0") -> bool:
    """As a simple program binds it: without SO_REUSEADDR."""
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def test_a_reserved_port_is_held_and_not_listened_on_until_it_is_released(master_ports: MasterPorts) -> None:
    port = master_ports.reserve(FIRST)
    assert not can_be_bound(port) and not can_be_bound(port, "127.0.0.1")
    with socket.socket() as dialling:
        assert dialling.connect_ex(("127.0.0.1", port)) != 0, "somebody would answer in place of rank 0"
    master_ports.release(FIRST)
    assert can_be_bound(port), "rank 0 need not know of SO_REUSEADDR"
    master_ports.release(FIRST)


def test_a_port_that_somebody_listens_on_is_left_out_on_whatever_address(master_ports: MasterPorts) -> None:
    first = master_ports.reserve(FIRST)
    master_ports.release(FIRST)
    again = MasterPorts(first=lambda those: first)
    with socket.create_server(("127.0.0.1", first)):
        assert again.reserve(SECOND) != first
    again.close()


def test_a_port_comes_again_only_after_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_any_ports", lambda: (PORT_MIN, PORT_MAX - 256))
    made = MasterPorts()
    given = []
    for _ in range(256):
        given.append(made.reserve(FIRST))
        made.release(FIRST)
    made.close()
    assert len(set(given)) > 200, "but for those that are in use on this machine"


def test_two_gangs_have_two_ports_and_one_that_is_prepared_again_has_one(master_ports: MasterPorts) -> None:
    one, other = master_ports.reserve(FIRST), master_ports.reserve(SECOND)
    assert one != other
    again = master_ports.reserve(FIRST)
    assert again not in (one, other) and can_be_bound(one)


@pytest.mark.parametrize(
    ("any_ports", "expected"),
    [
        ((32_768, 60_999), range(61_000, 65_536)),
        ((32_768, 65_535), range(10_000, 32_768)),
        ((15_000, 65_500), range(10_000, 15_000)),
        ((1_024, 65_535), range(10_000, 65_536)),
    ],
)
def test_the_ports_are_those_that_linux_gives_to_nobody_who_asks_for_any(
    any_ports: tuple[int, int], expected: range
) -> None:
    assert ports_nobody_is_given(any_ports) == expected
