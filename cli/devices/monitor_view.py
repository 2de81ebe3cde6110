"""The live view of `monitor`: GPUs as they are, again and again, until the person leaves."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpufleet.devices.snapshots import DeviceSnapshot

from .. import screen
from ..errors import INTERRUPTED
from ..full_screen.terminal import CLOSE, END_OF_LINE, OPEN
from ..quitting import Left, until_told_to_leave
from ..render.stats import monitor_lines

HOME, END_OF_SCREEN = "\x1b[H", "\x1b[J"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesView:
    """GPUs at one moment: `users` says whose each is, where that is known; `stale` that they are old, and why."""

    devices: tuple[DeviceSnapshot, ...]
    users: tuple[str, ...]
    stale: str = ""


async def until_left(name: str, look: Callable[[], Awaitable[DevicesView]], form: str, interval_seconds: float) -> int:
    """Show what each look gives; answers the exit code. Ctrl-C is how it ends, and no failure."""
    is_drawn = form in ("table", "wide") and sys.stdout.isatty()
    try:
        if is_drawn:
            sys.stdout.write(OPEN)
        await until_told_to_leave(_show(name, look, form, interval_seconds, is_drawn=is_drawn))
    except Left as left:
        return 0 if left.code == INTERRUPTED else left.code
    finally:
        if is_drawn:
            sys.stdout.write(CLOSE)
            sys.stdout.flush()
    return 0


async def _show(
    name: str, look: Callable[[], Awaitable[DevicesView]], form: str, interval_seconds: float, *, is_drawn: bool
) -> None:
    while True:
        seen = await look()
        if is_drawn:
            _draw(name, seen, form)
        elif form == "jsonl" and not seen.stale:
            told = {"node": name, "devices": [device.as_dict() for device in seen.devices]}
            screen.print_lines([json.dumps(told, ensure_ascii=False)])
        await asyncio.sleep(interval_seconds)


def _draw(name: str, seen: DevicesView, form: str) -> None:
    size = shutil.get_terminal_size()
    head = seen.stale or f"{name} · Ctrl-C ends it and shows what was used"
    lines = [head[: size.columns], *monitor_lines(seen.devices, seen.users, screen.look(form))]
    body = f"{END_OF_LINE}\r\n".join(lines[: max(1, size.lines - 1)]) + END_OF_LINE
    sys.stdout.write(HOME + body + END_OF_SCREEN)
    sys.stdout.flush()
