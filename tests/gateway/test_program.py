"""The gateway as a program: its settings, its signals, and several side by side."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from gpufleet.v1 import sessions_pb2
from websockets.exceptions import ConnectionClosed

from gateway.app import REFUSED_ADDRESS
from gateway.person import SILENT_S_MAX
from gateway.sockets import RESTARTS
from gpufleet.net.addresses import Address
from gpufleet.net.listening import bound
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.gateway.stage import Stage, browser, cookie_of

pytestmark = pytest.mark.by_exec


async def test_who_is_told_to_connect_again_goes_on_at_another_gateway(stage: Stage) -> None:
    worker = stage.worker("moved")
    await worker.is_served()
    leaving = stage.another_gateway("leaving")
    address = await leaving.address()
    async with browser(stage, gateway=address) as ann:
        cookie = cookie_of(ann)
        await ann.hello("moved")
        turn = await ann.text("turn")
        await ann.frame()
        code = leaving.end()
        assert (code, await ann.closed()) == (0, RESTARTS)
    async with browser(stage, cookie) as again:
        await again.hello("moved", turn["place_key"])
        back = await again.text("turn")
        assert (back["session"], back["is_resumed"]) == (turn["session"], True)
        await again.frame()
        await again.say(type="leave")
        await again.text("end")
    worker.end()


async def test_a_hangup_reads_the_settings_again_and_a_mistake_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[limits]\npeople_per_address_max = 1\n")
    side = stage.another_gateway("reloaded", "--config", str(file))
    address = await side.address()
    assert side.process is not None

    async def is_refused() -> bool:
        async with browser(stage, gateway=address) as page:
            with suppress(ConnectionClosed):
                await page.hello("nothing")
            return await page.closed() == REFUSED_ADDRESS

    # Who waits says nothing but pings, for as long as a busy machine makes this test take.
    async with stage.fleet.client() as admin:
        model = sessions_pb2.Model(name="waited-for")
        await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model), timeout=DEADLINE_SECONDS)
    async with browser(stage, gateway=address) as first:
        await first.hello("waited-for")
        await first.text("place")
        assert await is_refused()
        for text, said in (
            ("[limits]\npeople_per_address_max = 0\n", "the settings stay as they are"),
            ("[limits]\npeople_per_address_max = 2\n", "limits.people_per_address_max: 1 -> 2"),
        ):
            assert await is_refused()
            file.write_text(text)
            side.process.send_signal(signal.SIGHUP)
            await until(f"the log says: {said}", lambda said=said: said in side.log.read_text())
        assert not await is_refused()
        await first.say(type="leave")
        await first.text("end")
    side.end()


async def test_who_spoke_while_the_gateway_was_held_up_was_not_silent(stage: Stage) -> None:
    worker = stage.worker("held-up")
    await worker.is_served()
    side = stage.another_gateway("held-up")
    address = await side.address()
    assert side.process is not None
    async with browser(stage, gateway=address) as ann:
        await ann.hello("held-up")
        await ann.text("turn")
        # Nothing is under way as it stops: a claim or a frame that is cut would be told as such.
        clicked = await ann.click(0.4, 0.4)
        while (await ann.frame())[1] < clicked:
            pass
        side.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(SILENT_S_MAX + 1)
            clicked = await ann.click(0.5, 0.5)
        finally:
            side.process.send_signal(signal.SIGCONT)
        while (await ann.frame())[1] < clicked:
            pass
        await ann.say(type="leave")
        await ann.text("end")
    side.end()
    worker.end()


async def test_a_gateways_log_is_followed_on_its_own_machine(stage: Stage) -> None:
    folder = stage.folder / "gateway"
    following = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.cli", "logs", "-f", "--program", f"gateway:{folder}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(stage.folder, {}),
    )
    assert following.stdout is not None
    async with asyncio.timeout(DEADLINE_SECONDS):
        while f"listening on {stage.gateway}" not in (await following.stdout.readline()).decode():
            pass
    following.send_signal(signal.SIGINT)
    async with asyncio.timeout(DEADLINE_SECONDS):
        _, err = await following.communicate()
    assert following.returncode == 130
    assert f"Come back with: gpuctl logs -f --program gateway:{folder}" in err.decode()


def test_a_second_one_in_the_same_folder_is_refused_and_says_what_to_do(stage: Stage) -> None:
    command = [sys.executable, "-P", "-m", "gpufleet.gateway", "--port", "0"]
    flags = ["--data", str(stage.folder / "gateway"), "--token-file", stage.token_file("gateway")]
    done = subprocess.run(
        [*command, *flags],
        env=clean_environment(stage.folder, {}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "already uses the data folder" in done.stderr and "--data DIR" in done.stderr


async def test_small_messages_do_not_wait_for_each_other() -> None:
    listening = bound(Address("127.0.0.1", 0), backlog=1)
    taken: asyncio.Queue[bool] = asyncio.Queue()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made: socket.socket = writer.get_extra_info("socket")
        taken.put_nowait(bool(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        writer.close()

    async with await asyncio.start_server(take, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await taken.get()
        writer.close()
        await writer.wait_closed()
