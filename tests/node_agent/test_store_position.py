"""How far the scheduler's store is: kept as it was told, by this account alone, also where the disk takes it late."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest
from gpufleet.v1 import node_agent_pb2

from node_agent.core.delivery import Inbox, Judgement, Receipt
from node_agent.heartbeat import Heartbeats
from node_agent.store_position import POSITION_CHARS_MAX, POSITION_FILE, StorePosition
from tests.node_agent.test_heartbeat import Duties


def test_the_newest_is_there_after_a_restart_and_for_this_account_alone(tmp_path: Path) -> None:
    kept = StorePosition(tmp_path)
    assert kept.text == ""
    kept.keep("first", is_synced=True)
    kept.keep("second")
    kept.keep("")  # of a scheduler that tells none
    kept.keep("x" * (POSITION_CHARS_MAX + 1))
    assert StorePosition(tmp_path).text == "second"
    assert stat.S_IMODE((tmp_path / POSITION_FILE).stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [POSITION_FILE]


def test_a_disk_that_takes_nothing_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = StorePosition(tmp_path)
    (tmp_path / f".{POSITION_FILE}.new").mkdir()
    with caplog.at_level(logging.WARNING):
        for text in ("first", "second"):
            kept.keep(text)
    assert kept.text == "second" and caplog.text.count("cannot be written down") == 1


def test_what_comes_with_a_message_is_kept_before_it_is_carried_out() -> None:
    heard: list[str] = []

    class Listening(Duties):
        def heard_position(self, position: str) -> None:
            heard.append(position)

        def carry_out(
            self, message: node_agent_pb2.HeartbeatResponse, heartbeat_sent_us: int | None, receipt: Receipt
        ) -> None:
            heard.append("a command")

    heartbeats = Heartbeats("n1", 1, 0, Listening())
    launch = node_agent_pb2.HeartbeatResponse(term=1, sequence=1, store_position="so far")
    launch.refresh_samples.SetInParent()
    heartbeats._take(launch)
    heartbeats._take(node_agent_pb2.HeartbeatResponse(term=1, sequence=2))
    assert heard == ["so far", "a command"]


def test_terms_of_another_store_count_anew() -> None:
    inbox = Inbox(7)
    assert inbox.judge(1, 1) is Judgement.STALE_TERM
    inbox.another_store()
    inbox.stream_opened()
    assert inbox.judge(1, 1) is Judgement.NEW and inbox.highest_term == 1
