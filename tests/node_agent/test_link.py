"""How the agent finds its scheduler, and what it says when it does not."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.tokens import make_token, write_token_file
from tests.node_agent.agent_process import AgentProcess
from tests.node_agent.fake_scheduler import FakeScheduler


def lines_with(agent: AgentProcess, text: str) -> list[str]:
    return [line for line in agent.log.read_text(errors="replace").splitlines() if text in line]


async def test_connected_and_registered_are_logged_once_each(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    await scheduler.wait_for(lambda: len(scheduler.messages) > 5, "some beats")
    await scheduler.wait_for(lambda: lines_with(agent, "registered with the scheduler"), "the lines in the log")
    assert len(lines_with(agent, "connected to")) == 1
    assert len(lines_with(agent, "registered with the scheduler")) == 1
    assert len(lines_with(agent, "GPU 1: gpufleet virtual GPU, 16,000 MB")) == 1


@pytest.mark.parametrize("reason", [Reason.NODE_ID_TAKEN, Reason.AGENT_VERSION_UNSUPPORTED])
async def test_why_a_registration_is_refused_is_logged_once_and_tried_again(
    scheduler: FakeScheduler, tmp_path: Path, reason: Reason
) -> None:
    scheduler.refuse_register = GpufleetError(reason)
    async with AgentProcess(scheduler, tmp_path) as agent:
        await scheduler.wait_for(lambda: len(scheduler.registrations) >= 4, "several tries")
        (line,) = lines_with(agent, "not registered")
        assert reason.name in line
        assert reason.next_step in line
        scheduler.refuse_register = None
        await scheduler.wait_connected()


async def test_a_wrong_token_is_named_and_a_corrected_file_is_read_again(
    scheduler: FakeScheduler, tmp_path: Path
) -> None:
    agent = AgentProcess(scheduler, tmp_path)
    wrong, scheduler.token = scheduler.token, make_token()
    async with agent:
        await scheduler.wait_for(lambda: lines_with(agent, "TOKEN_INVALID"), "the refusal in the log")
        assert wrong not in agent.log.read_text()
        write_token_file(tmp_path / "n1.token", scheduler.token)
        await scheduler.wait_connected()


async def test_an_absent_scheduler_is_logged_once_and_waited_for(tmp_path: Path) -> None:
    async with FakeScheduler() as scheduler:
        await scheduler.stop()
        async with AgentProcess(scheduler, tmp_path) as agent:
            await scheduler.wait_for(lambda: lines_with(agent, "not connected to"), "the problem in the log")
            await scheduler.start()
            await scheduler.wait_connected()
            assert len(lines_with(agent, "not connected to")) == 1


async def test_several_addresses_are_tried_in_turn(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        absent = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with FakeScheduler() as scheduler:
            both = f"{absent},{scheduler.address}"
            flags = ("--virtual-gpus", "1", "--scheduler", both)
            async with AgentProcess(scheduler, tmp_path, *flags) as agent:
                await scheduler.wait_connected()
                # A thread writes the log: what was said before the stream may come to the file after it.
                await scheduler.wait_for(lambda: lines_with(agent, f"not connected to {absent}"), "the first address")


async def test_hang_up_reads_the_settings_again(scheduler: FakeScheduler, tmp_path: Path) -> None:
    settings = tmp_path / "agent.toml"
    settings.write_text("[log]\nlevel = 'error'\n")
    agent = AgentProcess(scheduler, tmp_path, "--virtual-gpus", "1", "--config", str(settings))
    agent.command.remove("--log-level")
    agent.command.remove("debug")
    async with agent:
        await scheduler.wait_connected()
        assert not lines_with(agent, "registered")
        settings.write_text("cpus = 3\nlabels = { rack = 'b2' }\n[log]\nlevel = 'info'\n")
        agent.signal(signal.SIGHUP)
        await scheduler.wait_for(lambda: lines_with(agent, "cpus"), "the reload in the log")
        assert "needs a restart" in lines_with(agent, "cpus")[0]
        await scheduler.wait_for(lambda: lines_with(agent, "registered"), "a new registration, in the log")
        assert [dict(each.info.labels) for each in scheduler.registrations] == [{}, {"rack": "b2"}]
        settings.write_text("cpus = 'many'\n")
        agent.signal(signal.SIGHUP)
        await scheduler.wait_for(lambda: lines_with(agent, "left as they are"), "the refusal of a wrong file")
        assert "agent.toml" in lines_with(agent, "left as they are")[0]


async def test_a_flag_that_makes_no_sense_names_itself_and_changes_nothing(
    scheduler: FakeScheduler, tmp_path: Path
) -> None:
    agent = AgentProcess(scheduler, tmp_path)
    for flags, named in (
        (["--virtual-gpus", "-1"], "--virtual-gpus"),
        (["--cpus", "0"], "--cpus"),
        (["--cpus", "16385"], "--cpus"),
        (["--scheduler", "http://x"], "http://x"),
        (["--log-level", "loud"], "--log-level"),
        (["--node-id", "a b"], "--node-id"),
    ):
        code, said = await agent.run(*agent.command[4:], *flags)
        assert code == 1 and named in said, said
    assert not agent.data.exists()
