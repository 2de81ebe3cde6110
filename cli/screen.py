"""What this terminal is: its width, its colours, and whether anybody looks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from gpufleet.fleet.notices import Notices

from .render.table import WIDTH, Look
from .render.terminal_text import for_terminal


def look(form: str) -> Look:
    """How to draw on stdout: the terminal's width, 80 columns without one, no limit for `wide`."""
    is_terminal = sys.stdout.isatty()
    width = WIDTH
    if is_terminal:
        import shutil

        width = shutil.get_terminal_size((WIDTH, 24)).columns
    is_wide = form == "wide"
    return Look(
        width=None if is_wide else max(width, 40),
        has_colour=has_colour(),
        is_wide=is_wide,
        terminal_width=width if is_terminal else None,
    )


def has_colour() -> bool:
    """Colour is for terminals; NO_COLOR and a dumb terminal turn it off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def with_tilde(text: str) -> str:
    """The text with this account's home folder as `~`, as people write paths."""
    home = str(Path.home()).rstrip("/")
    return re.sub(rf"(?<![\w.~/-]){re.escape(home)}/", "~/", text) if home else text


def local_now() -> datetime:
    """Now, in the zone of this machine."""
    return datetime.now().astimezone()


def print_lines(lines: Iterable[str]) -> None:
    """Print them; what the terminal's encoding lacks shows as `?`, and never as a traceback."""
    text = "".join(line + "\n" for line in lines)
    if sys.stdout.isatty():
        text = for_terminal(text.encode(errors="replace")).decode()
    sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))
    sys.stdout.buffer.flush()


def tell(text: str) -> None:
    """A line of advice on stderr, for terminals only: pipes get the answer and nothing else."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def say(text: str) -> None:
    """A line of ours on stderr, for whoever reads it."""
    print(f"gpuctl: {text}", file=sys.stderr, flush=True)


NOTICES = Notices(say, tell)
"""What the library says meanwhile, on stderr."""
