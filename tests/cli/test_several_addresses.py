"""gpuctl with several addresses of a scheduler: calls find the one that serves, and a wrong list is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gpufleet.v1 import scheduler_pb2

from gpufleet.config.cli_settings import load_cli
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import TAKEOVER_S_MAX, Client, RetryPauses, may_be_repeated, pauses_of
from gpufleet.fleet.following.core import FOLLOWING_REDIAL_S_MAX, Follower, TimeOuts
from gpufleet.fleet.settings import Settings
from tests.cli.conftest import Gpuctl
from tests.cli.doctor.test_doctor import free_port
from tests.cli.fake_scheduler import FakeScheduler


def settings_of_list(text: str) -> Settings:
    return Settings(load_cli({"scheduler": text}))


def test_a_command_is_done_by_whichever_serves(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    with free_port() as port:
        done = gpuctl("version", "--scheduler", f"127.0.0.1:{port},{fake.address}")
    assert done.code == 0, done.err
    assert f"127.0.0.1:{port},{fake.address}" in done.text


def test_where_none_serves_the_call_waits_for_a_takeover_and_then_names_all(
    gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufleet.fleet.client.TAKEOVER_S_MAX", 0.5)
    with free_port() as first, free_port() as second:
        done = gpuctl("nodes", "--scheduler", f"127.0.0.1:{first},127.0.0.1:{second}")
        assert done.code == 5
        assert f"no scheduler answers at 127.0.0.1:{first},127.0.0.1:{second} (--scheduler)" in done.err
        assert "of the last address: nothing listens there" in done.err


def test_a_wrong_list_is_refused_and_the_part_is_named(gpuctl: Gpuctl) -> None:
    done = gpuctl("nodes", "--scheduler", "gpu1,gpu2:x")
    assert done.code == 2
    assert 'address 2 of 2: "gpu2:x" is not an address' in done.err


def test_a_call_that_came_to_nobody_is_made_again_and_one_that_may_have_been_done_is_not() -> None:
    several, one = settings_of_list("h1,h2"), settings_of_list("h1")
    unreached = GpufleetError(Reason.SCHEDULER_UNREACHABLE)
    changing, reading = scheduler_pb2.SignalJobRequest(), scheduler_pb2.GetJobRequest()
    for request in (changing, reading):
        assert may_be_repeated(unreached, several, request) and not may_be_repeated(unreached, one, request)
    broken = GpufleetError(Reason.OUTCOME_UNKNOWN)
    assert may_be_repeated(broken, several, reading) and not may_be_repeated(broken, several, changing)
    pauses = pauses_of(several, 0.0)
    assert pauses.after(unreached, TAKEOVER_S_MAX - 1.0) is not None
    assert pauses.after(unreached, TAKEOVER_S_MAX) is None
    assert RetryPauses(30.0, 0.0).after(unreached, 3.0) is None, "for one address a mistake is told soon"


def test_a_follower_of_several_dials_again_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of_list("h1,h2").time_outs.redial_s_max == FOLLOWING_REDIAL_S_MAX
    assert settings_of_list("h1").time_outs.redial_s_max > FOLLOWING_REDIAL_S_MAX
    follower = Follower(TimeOuts(redial_s_max=FOLLOWING_REDIAL_S_MAX), 0.0)
    now = 0.0
    for _ in range(12):
        follower.broke(now)
        assert follower.redial_at is not None
        assert follower.redial_at - now <= FOLLOWING_REDIAL_S_MAX
        now = follower.redial_at


def test_a_context_keeps_its_list_and_is_found_by_one_of_its_addresses(gpuctl: Gpuctl, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("gf_" + "a" * 43)
    token.chmod(0o600)
    made = gpuctl("config", "context", "add", "lab", "--scheduler", "gpu1,gpu2:7", "--token-file", str(token))
    assert made.code == 0, made.err
    assert "gpu1:50051,gpu2:7" in gpuctl("config", "context", "list").text
    for typed in ("gpu2:7", "gpu1", "gpu2:7,gpu1"):
        found = load_cli({"scheduler": typed}, environment={"XDG_CONFIG_HOME": str(tmp_path / "config")})
        assert found.context == "lab", typed
    wrong = gpuctl("config", "context", "add", "other", "--scheduler", "gpu1,gpu1", "--token-file", str(token))
    assert wrong.code == 2
    assert "address 2 of 2: gpu1:50051 is in the list already" in wrong.err


def test_the_token_of_a_context_goes_to_no_address_that_it_does_not_have(tmp_path: Path) -> None:
    config = tmp_path / "config"
    (config / "gpufleet").mkdir(parents=True)
    (config / "gpufleet" / "contexts.toml").write_text('[contexts.lab]\nscheduler = ["gpu1", "gpu2"]\n')
    folder = tmp_path / "project"
    (folder / "gpuctl.toml").write_text('scheduler = "gpu1,evil.example"\n')
    with pytest.raises(GpufleetError, match="no context of yours has this address"):
        load_cli({}, environment={"XDG_CONFIG_HOME": str(config)}, folder=folder)
    (folder / "gpuctl.toml").write_text('scheduler = "gpu2"\n')
    found = load_cli({}, environment={"XDG_CONFIG_HOME": str(config)}, folder=folder)
    assert found.context == "lab"
    assert [address.host for address in found.settings.scheduler] == ["gpu1", "gpu2"]


def test_a_call_of_threads_finds_the_one_that_serves(fake: FakeScheduler) -> None:
    fake.server.user = "ada"
    with free_port() as port:
        client = Client(settings_of_list(f"127.0.0.1:{port},{fake.address}"))
        answer = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        assert answer.user == fake.server.user
        client.close()


def test_calls_of_asyncio_do_alike(fake: FakeScheduler) -> None:
    from gpufleet.fleet.async_client import connected_async

    async def asked(text: str) -> str:
        async with connected_async(settings_of_list(text)) as client:
            answer = await client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
            return answer.user

    fake.server.user = "ada"
    with free_port() as port:
        assert asyncio.run(asked(f"127.0.0.1:{port},{fake.address}")) == fake.server.user
