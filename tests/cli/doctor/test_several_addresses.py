"""The doctor where a scheduler has several addresses: which of them serves, and what is wrong with the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cli.doctor import each_address
from gpufleet.errors import GpufleetError, Reason
from tests.cli.conftest import Gpuctl
from tests.cli.doctor.test_doctor import free_port, healthy
from tests.cli.fake_scheduler import FakeScheduler


@contextmanager
def silent_port() -> Iterator[int]:
    """Connections are taken there, and nobody says anything, as of a scheduler that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def fleet(fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    healthy(fake)
    monkeypatch.setattr("cli.doctor.checks.own_version", lambda: "0.1.0")
    monkeypatch.setattr(each_address, "ANSWER_SECONDS_MAX", 0.5)
    return fake


def test_an_address_that_refuses_is_that_of_a_standby_while_another_one_serves(
    fleet: FakeScheduler, gpuctl: Gpuctl
) -> None:
    with free_port() as port:
        done = gpuctl("doctor", "--scheduler", f"127.0.0.1:{port},{fleet.address}")
    assert done.code == 0, done.text
    assert f"address     ok    1 of 2, 127.0.0.1:{port}: nothing listens" in done.text
    assert f"address     ok    2 of 2, {fleet.address}: serves, version 0.1.0" in done.text
    assert "token       ok    ada (admin)" in done.text


def test_one_that_takes_connections_and_says_nothing_is_a_warning(fleet: FakeScheduler, gpuctl: Gpuctl) -> None:
    with silent_port() as port:
        done = gpuctl("doctor", "--scheduler", f"127.0.0.1:{port},{fleet.address}")
    assert done.code == 0, done.text
    assert f"address     warn  1 of 2, 127.0.0.1:{port}: takes connections and does not answer in 0.5 s" in done.text
    assert "is the scheduler stopped, or its disk hung?" in done.text


def test_a_name_that_is_not_known_is_a_warning_while_another_address_serves(
    fleet: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_INSECURE", "true")
    done = gpuctl("doctor", "--scheduler", f"{fleet.address},no-such-host.invalid")
    assert done.code == 0, done.text
    assert 'address     warn  2 of 2, no-such-host.invalid:50051: "no-such-host.invalid" is not known' in done.text


def test_where_none_serves_each_says_why_and_nothing_more_is_asked(gpuctl: Gpuctl) -> None:
    with free_port() as first, free_port() as second:
        done = gpuctl("doctor", "--scheduler", f"127.0.0.1:{first},127.0.0.1:{second}")
    assert done.code == 1
    assert f"address     FAIL  1 of 2, 127.0.0.1:{first}: nothing listens at" in done.text
    assert f"address     FAIL  2 of 2, 127.0.0.1:{second}: nothing listens at" in done.text
    assert "token" not in done.text


def test_a_token_that_one_refuses_is_told_once(fleet: FakeScheduler, gpuctl: Gpuctl) -> None:
    fleet.faults["GetServerInfo"] += [GpufleetError(Reason.TOKEN_INVALID)] * 2
    with free_port() as port:
        done = gpuctl("doctor", "--scheduler", f"{fleet.address},127.0.0.1:{port}")
    assert done.code == 1
    assert f"address     ok    1 of 2, {fleet.address}: serves" in done.text
    assert done.text.count("The scheduler does not know this token.") == 1
