"""Another command in the world of a running job: what is asked is checked here, and its call relayed."""

import shlex
from collections.abc import AsyncIterator
from typing import Any

from gpufleet.v1 import job_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.runs import SIGNAL_MAX
from gpufleet.net.carrying import PIECE_BYTES_MAX

from ..output.attaching import checked_size
from .tunnels import AgentSide, Direction, relay

ARGV_BYTES_MAX = 128 * 1024
"""All words of a command together; a longer program goes along as a file or by its standard input."""

TERMINAL_TYPE_CHARS_MAX = 64
COMMAND_CHARS_TOLD = 200
"""So much of a command stands in the story."""

LINE_BREAKS = str.maketrans("\n\t", "  ")

Request = scheduler_pb2.ExecJobRequest
Response = scheduler_pb2.ExecJobResponse


def check_start(start: job_pb2.ExecStart) -> None:
    """Refuse what is no command. Errors: INVALID_ARGUMENT."""
    if not start.argv or not start.argv[0]:
        raise invalid("start.argv", "names no command", next_step="say it behind --: gpuctl exec 41 -- nvidia-smi")
    if any("\0" in word for word in start.argv):
        raise invalid("start.argv", "holds a NUL character")
    size = sum(len(word.encode()) + 1 for word in start.argv)
    if size > ARGV_BYTES_MAX:
        said = f"has {size:,} bytes; at most {ARGV_BYTES_MAX:,} are taken"
        raise invalid("start.argv", said, next_step="give a script by the standard input: gpuctl exec -i 41 -- sh < it")
    terminal = start.terminal_type
    if len(terminal) > TERMINAL_TYPE_CHARS_MAX or not (terminal.isprintable() and terminal.isascii()):
        raise invalid("start.terminal_type", f"must be at most {TERMINAL_TYPE_CHARS_MAX} plain characters")
    if start.HasField("size"):
        checked_size(start.size, "start.size")


def story_line(start: job_pb2.ExecStart) -> str:
    """A command as the story has it: one line that a shell would read as it, cut where it is long."""
    words = (word.translate(LINE_BREAKS) for word in start.argv)
    line = shlex.join("".join(each if each.isprintable() else "�" for each in word) for word in words)
    return line if len(line) <= COMMAND_CHARS_TOLD else f"{line[: COMMAND_CHARS_TOLD - 1]}…"


async def relay_command(requests: AsyncIterator[Request], context: Any, side: AgentSide) -> None:
    """Pass on what comes, until the command has ended. A caller that says nothing more goes on to listen."""
    has_ended_input = False

    async def read() -> Request:
        """What comes next; behind the last of it the end of the input, in case it was not said."""
        return await anext(requests, None) or Request(is_end=True)

    async def up(request: Request) -> bool:
        nonlocal has_ended_input
        is_last = request == Request(is_end=True) and has_ended_input
        if not is_last:
            await side.context.write(_passed_on(request))
        has_ended_input = has_ended_input or request.is_end
        return not is_last

    async def down(message: node_agent_pb2.CarryExecRequest) -> bool:
        has_exit = message.HasField("exit")
        exit_status = message.exit if has_exit else None
        answer = Response(data=message.data, stream=message.stream, exit=exit_status, problem=message.problem)
        await context.write(answer)
        return not has_exit

    from_agent = Direction(lambda: anext(side.requests, None), down)
    await relay(side, Direction(read, up), from_agent, ends_with_down=True)


def _passed_on(request: Request) -> node_agent_pb2.CarryExecResponse:
    if request.HasField("start"):
        raise invalid("start", "belongs into the first message only")
    if len(request.data) > PIECE_BYTES_MAX:
        raise invalid("data", f"holds {len(request.data):,} bytes; at most {PIECE_BYTES_MAX:,} a message")
    if not 0 <= request.signal <= SIGNAL_MAX:
        raise invalid("signal", f"is {request.signal}; it must be 1 to {SIGNAL_MAX}")
    size = checked_size(request.size, "size") if request.HasField("size") else None
    return node_agent_pb2.CarryExecResponse(data=request.data, is_end=request.is_end, size=size, signal=request.signal)
