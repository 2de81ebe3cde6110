"""Which event loop a program gets, and what it says where that one is not there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.event_loop import ASYNCIO, AUTO, CHOICES, UVLOOP, run, running_loop_in_words

WITHOUT = {"uvloop": None}
"""As `sys.modules` is where uvloop is not installed."""


async def which() -> str:
    return running_loop_in_words()


WHICH = """
from gpufleet.host.event_loop import run, running_loop_in_words

async def which():
    return running_loop_in_words()

print([run(which(), choice) for choice in ("auto", "", "uvloop", "asyncio")])
"""
"""In a process of its own: what uvloop opens first stays open."""


def test_uvloop_is_taken_where_it_is_installed_and_asyncio_where_that_is_said() -> None:
    installed = f"uvloop {version('uvloop')}"
    said = subprocess.run([sys.executable, "-c", WHICH], check=True, capture_output=True, text=True).stdout
    assert said == f"{[installed, installed, installed, 'asyncio']}\n"


def test_without_uvloop_a_program_runs_on_asyncio_unless_uvloop_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in WITHOUT.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert run(which(), AUTO) == "asyncio"
    with pytest.raises(GpufleetError) as refused:
        run(which(), UVLOOP)
    assert refused.value.reason is Reason.EXTRA_MISSING
    assert "pip install 'gpufleet[uvloop]'" in refused.value.next_step


def test_another_word_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(GpufleetError) as refused:
        run(which(), "trio")
    assert refused.value.reason is Reason.INVALID_ARGUMENT
    assert refused.value.message == f"GPUFLEET_EVENT_LOOP: 'trio' is none of {', '.join(CHOICES)}"


def test_what_the_program_answers_and_raises_comes_out() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        run(fails(), ASYNCIO)


WITHOUT_THE_TESTS_OWN = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}

PROGRAMS = """
import asyncio
import gpufleet.host.grpc_forks
import grpc
from gpufleet.host.event_loop import run

async def main():
    async def answer(calls, context):
        async for call in calls:
            yield call

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("s", {"m": grpc.stream_stream_rpc_method_handler(answer)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    codes = set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/s/m")()

        async def speak():
            while True:
                await call.write(b"x")
                await call.read()

        speaking = asyncio.create_task(speak())
        for _ in range(200):
            process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.DEVNULL)
            codes.add(await process.wait())
        speaking.cancel()
    await server.stop(None)
    print(codes)

run(main(), "uvloop")
"""


def test_programs_that_are_started_while_grpc_speaks_begin_on_uvloop_as_well() -> None:
    command = [sys.executable, "-c", PROGRAMS]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=WITHOUT_THE_TESTS_OWN).stdout
    assert said == "{0}\n"


LOOK_UP = """
import sys, grpc
with grpc.insecure_channel("localhost:1") as channel:
    try:
        channel.unary_unary("/s/m")(b"", timeout=10)
    except grpc.RpcError as problem:
        print(problem.code())
"""

PROGRAM_IMPORTS = [
    f"import gpufleet.{program}.__main__" for program in ("scheduler", "node_agent", "gateway", "inference")
]
COMMAND_IMPORTS = "from gpufleet.net.grpc_import import import_grpc_lightly; import_grpc_lightly()"


@pytest.mark.parametrize("imports", [*PROGRAM_IMPORTS, COMMAND_IMPORTS, "import gpufleet; gpufleet.connect"])
def test_names_are_resolved_by_the_system_and_not_by_grpcs_own_resolver(imports: str) -> None:
    tracing = {**WITHOUT_THE_TESTS_OWN, "GRPC_VERBOSITY": "debug", "GRPC_TRACE": "cares_resolver"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{imports}\n{LOOK_UP}"], check=True, capture_output=True, text=True, env=tracing
    )
    assert done.stdout == "StatusCode.UNAVAILABLE\n"
    assert "gRPC Tracers: cares_resolver" in done.stderr
    assert "c-ares" not in done.stderr


@pytest.mark.parametrize("program", ["scheduler", "node_agent", "gateway", "inference"])
def test_each_program_keeps_grpcs_fork_handlers_out_before_it_imports_grpc(program: str) -> None:
    code = f"import gpufleet.{program}.__main__, sys; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    imported = subprocess.run(command, check=True, capture_output=True, text=True, env=WITHOUT_THE_TESTS_OWN)
    found = imported.stdout.split()
    assert found.index("gpufleet.host.grpc_forks") < (found.index("grpc") if "grpc" in found else len(found))
