"""Browsers that mean ill: each ends only its own connection, with the code that docs/web-protocol.md names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http.client import HTTPConnection
from typing import Any

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import sessions_pb2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from gateway.app import REFUSED_ADDRESS
from gateway.person import MESSAGE_REFUSED, SILENT, TOO_FAST
from gateway.sockets import ADDRESS_OTHERS_MAX
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.stage import Browser, Stage, browser, cookie_of

CLICK = {"type": "pointer", "seq": 1, "x": 0.5, "y": 0.5, "buttons": 1, "button_change": True}
PEOPLE_MAX = 8
MESSAGES_MAX = 500
TURN_SECONDS = 3_600
NO_CODE = 1006
"""Of a connection that is cut."""


@asynccontextmanager
async def watching(
    stage: Stage, model: str, *, gateway: str = ""
) -> AsyncIterator[Callable[[], Coroutine[None, None, None]]]:
    """Somebody who means well, with a turn; what is yielded returns once their frames have gone on.

    They lose their turn by nothing that they do not do: a test may look elsewhere for as long as it takes.
    """
    spans: dict[str, Any] = {name: Duration(seconds=TURN_SECONDS) for name in ("idle", "turn")}
    served = sessions_pb2.Model(name=model, limits=sessions_pb2.SessionLimits(**spans))
    async with stage.fleet.client() as admin:
        await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=served), timeout=DEADLINE_SECONDS)
    async with browser(stage, gateway=gateway) as ann:
        await ann.hello(model)
        await ann.text("turn")

        async def goes_on() -> None:
            clicked = await ann.click(0.5, 0.5)
            while (await ann.frame())[1] < clicked:
                pass

        await goes_on()
        yield goes_on
        await goes_on()
        await ann.say(type="leave")
        await ann.text("end")


async def test_each_wrong_message_ends_the_connection_that_sent_it_and_no_other(stage: Stage) -> None:
    worker = stage.worker("wronged")
    await worker.is_served()
    wrong: list[tuple[list[str | bytes], int]] = [
        (["{"], MESSAGE_REFUSED),
        ([b"\x00\x01"], MESSAGE_REFUSED),
        (['{"type": "hello", "version": 1, "model": "wronged"}'], MESSAGE_REFUSED),
        ([json.dumps({**CLICK, "x": 10**400})], MESSAGE_REFUSED),
        ([json.dumps({**CLICK, "buttons": 32})], MESSAGE_REFUSED),
        ([json.dumps({**CLICK, "x": float("nan")})], MESSAGE_REFUSED),
        ([json.dumps({**CLICK, "seq": 0})], MESSAGE_REFUSED),
        ([json.dumps({**CLICK, "seq": -1})], MESSAGE_REFUSED),
        ([json.dumps({**CLICK, "seq": 10**30})], MESSAGE_REFUSED),
        ([json.dumps(CLICK), json.dumps(CLICK)], MESSAGE_REFUSED),
        (["[" * 16_000], MESSAGE_REFUSED),
        (["x" * 16_385], 1009),
    ]
    async with watching(stage, "wronged") as goes_on:
        for messages, code in wrong:
            async with browser(stage) as eve:
                await eve.hello("wronged")
                await eve.text("turn")
                for message in messages:
                    await eve.socket.send(message)
                assert await eve.closed() == code, messages
            await goes_on()
        async with browser(stage) as eve:
            await eve.hello("wronged")
            await eve.text("turn")
            await _send_frame(eve.socket, Frame(Opcode.TEXT, b"\xff\xfe"))
            assert await eve.closed() == 1007
            await goes_on()
    worker.end()


async def people_at(address: tuple[str, int]) -> int:
    """How many people a gateway says that it has."""

    def ask() -> int:
        connection = HTTPConnection(*address, timeout=DEADLINE_SECONDS)
        try:
            connection.request("GET", "/healthz")
            return int(json.loads(connection.getresponse().read())["people"])
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def _send_frame(socket: ClientConnection, frame: Frame) -> None:
    """A frame that the library itself would not send."""
    socket.transport.write(frame.serialize(mask=True))


async def test_who_sends_too_fast_is_disconnected(stage: Stage) -> None:
    worker = stage.worker("hasty")
    await worker.is_served()
    # So few that a busy machine, too, takes more of them in a second.
    file = stage.folder / "slow.toml"
    file.write_text(f"[limits]\nmessages_per_second_max = {MESSAGES_MAX}\n")
    side = stage.another_gateway("slow", "--config", str(file))
    address = await side.address()
    async with (
        watching(stage, "hasty", gateway=address) as goes_on,
        browser(stage, gateway=address) as eve,
    ):
        await eve.hello("hasty")
        await eve.text("turn")
        flood = json.dumps({"type": "ping", "number": 1})
        with suppress(ConnectionClosed):
            for number in range(20 * MESSAGES_MAX):
                await eve.socket.send(flood)
                if number % 100 == 0:
                    await asyncio.sleep(0)  # else the library reads nothing, and hears of no close
        assert await eve.closed() == TOO_FAST
        await goes_on()
    side.end()
    worker.end()


async def test_a_place_key_and_a_cookie_are_good_for_their_own_person_only(stage: Stage) -> None:
    worker = stage.worker("stolen", seats="2")
    await worker.is_served()
    async with browser(stage) as ann:
        await ann.hello("stolen")
        turn = await ann.text("turn")
        cookie = cookie_of(ann)
        name, _, value = cookie.partition("=")
        person, _, signature = value.rpartition(".")
        forged = [f"{name}={person}.{signature[::-1]}", f"{name}={person}", f"{name}=", f"{name}=%00", "x" * 4_000]
        for number, wrong in enumerate(forged):
            async with browser(stage, wrong) as eve:
                assert cookie_of(eve) != cookie, "a forged cookie is no cookie: another person"
                await eve.hello("stolen", turn["place_key"])
                other = await eve.text("turn")
                assert (other["session"] == turn["session"], other["is_resumed"]) == (False, False), number
                assert other["place_key"] != turn["place_key"]
                await eve.say(type="leave")
                await eve.text("end")
            clicked = await ann.click(0.5, 0.5)
            while (await ann.frame())[1] < clicked:
                pass
        await ann.say(type="leave")
        await ann.text("end")
    worker.end()


async def test_one_address_gets_so_many_sessions_and_no_more(stage: Stage) -> None:
    worker = stage.worker("wanted")
    await worker.is_served()
    file = stage.folder / "small.toml"
    file.write_text(f"[limits]\npeople_per_address_max = {PEOPLE_MAX}\n")
    side = stage.another_gateway("small", "--config", str(file))
    address = await side.address()
    # Who waits in a line stays, however long a busy machine takes over the others.
    async with stage.fleet.client() as admin:
        model = sessions_pb2.Model(name="nobody-serves")
        await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model), timeout=DEADLINE_SECONDS)
    async with watching(stage, "wanted") as goes_on, AsyncExitStack() as line:
        crowd = [await line.enter_async_context(browser(stage, gateway=address)) for _ in range(PEOPLE_MAX)]
        for each in crowd:
            await each.hello("nobody-serves")
            await each.text("place")
        for _ in range(4 * PEOPLE_MAX):
            async with connect(f"ws://{address}/ws", proxy=None) as refused:
                assert await Browser(refused).closed() == REFUSED_ADDRESS
        await goes_on()
        await crowd[0].say(type="leave")
        await crowd[0].text("end")
        host, _, port = address.rpartition(":")

        async def has_room() -> bool:
            return await people_at((host, int(port))) < PEOPLE_MAX

        await until("there is room for one", has_room)
        async with browser(stage, gateway=address) as next_one:
            await next_one.hello("wanted")
            await next_one.text("turn")
            await next_one.say(type="leave")
            await next_one.text("end")
    side.end()
    worker.end()


async def test_a_crowd_from_one_address_is_cut_before_it_costs_anything(stage: Stage) -> None:
    file = stage.folder / "tiny.toml"
    file.write_text("[limits]\npeople_per_address_max = 1\n")
    side = stage.another_gateway("tiny", "--config", str(file))
    host, _, port = (await side.address()).rpartition(":")
    most = 1 + ADDRESS_OTHERS_MAX
    crowd = [await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0)) for _ in range(most + 20)]
    try:
        for reader, _ in crowd[most:]:
            async with asyncio.timeout(DEADLINE_SECONDS):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        crowd[0][1].write(b"GET /healthz HTTP/1.1\r\nHost: me\r\n\r\n")
        assert (await crowd[0][0].readline()).startswith(b"HTTP/1.1 ")
        async with browser(stage, gateway=f"{host}:{port}") as elsewhere:
            await elsewhere.hello("nothing")
            await elsewhere.text("end")
    finally:
        for _, writer in crowd:
            writer.close()
    side.end()


async def test_nobody_is_waited_for(stage: Stage) -> None:
    """Who says nothing, says half of something, or does not read: all at once, for each takes its time."""
    worker = stage.worker("patient", rate="100")
    await worker.is_served()
    async with watching(stage, "patient") as goes_on:
        cases = (_says_no_hello, _falls_silent, _says_nothing_at_all, _says_half_a_request, _does_not_read)

        async def keep_going() -> None:
            while True:
                await goes_on()
                await asyncio.sleep(0.5)

        going = asyncio.create_task(keep_going(), name="ann")
        async with asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(case(stage, "patient"))
        assert not going.done(), going
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
    worker.end()


async def _says_no_hello(stage: Stage, model: str) -> None:
    async with connect(f"ws://{stage.gateway}/ws", proxy=None) as socket:
        assert await Browser(socket).closed() == SILENT


async def _falls_silent(stage: Stage, model: str) -> None:
    async with connect(f"ws://{stage.gateway}/ws", proxy=None) as socket:
        await socket.send(json.dumps({"type": "hello", "version": 1, "model": model}))
        assert await Browser(socket).closed() == SILENT


async def _says_nothing_at_all(stage: Stage, model: str) -> None:
    assert await _answered(stage, b"") == b""


async def _says_half_a_request(stage: Stage, model: str) -> None:
    assert await _answered(stage, b"GET /healthz HTTP/1.1\r\nHost: me\r\n") == b""


async def _answered(stage: Stage, said: bytes) -> bytes:
    """What comes back until the gateway ends the connection."""
    host, _, port = stage.gateway.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(said)
        async with asyncio.timeout(DEADLINE_SECONDS):
            with suppress(ConnectionResetError):
                return await reader.read()
        return b""
    finally:
        writer.close()


async def _does_not_read(stage: Stage, model: str) -> None:
    """Says that frames are shown, and takes none of them."""
    async with connect(f"ws://{stage.gateway}/ws", proxy=None, max_queue=1) as socket:
        await socket.send(json.dumps({"type": "hello", "version": 1, "model": model, "encodings": ["raw"]}))
        number = 0
        async with asyncio.timeout(DEADLINE_SECONDS):
            with suppress(ConnectionClosed):
                while True:
                    number += 1
                    await socket.send(json.dumps({"type": "shown", "frame": number}))
                    await asyncio.sleep(0.05)
        # What was under way still comes; then the connection is found to be cut.
        assert await Browser(socket).closed() == NO_CODE
