"""A program that an agent runs in a container: the process that is started here only carries it.

Its container was made before, with its port. How it ended, or why it never ran, its process writes into a file of JSON
before it ends: `exit_code`, `detail` (a sentence, empty for none) and `is_out_of_memory`, as far as they are known.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .child import Exit, exit_of

SIGNALLED = 128
SIGNALS_MAX = 64


class ContainerOfProgram:
    """What is known of it here. `port` is where it listens, in words; empty where that is a port of the node."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._state: Path = given.program_state
        self.port = f"port {given.container_port} of its container" if given.container_port else ""

    def end(self, carried: Exit) -> Exit:
        """How the program ended, where `carried` is how the process did that carried it."""
        try:
            told = json.loads(self._state.read_bytes())
            code, detail, is_out_of_memory = told["exit_code"], told["detail"], told["is_out_of_memory"]
        except (OSError, ValueError, KeyError, TypeError):
            return carried
        if not isinstance(code, int):
            return carried  # that process was ended, and its container is by those who run it
        if detail:
            return Exit(code, str(detail))
        if is_out_of_memory:
            return Exit(code, "the program was ended for want of memory")
        # An engine tells 128 + N of what signal N has ended.
        return exit_of(SIGNALLED - code if SIGNALLED < code <= SIGNALLED + SIGNALS_MAX else code)
