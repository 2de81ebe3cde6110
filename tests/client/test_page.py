"""The examples of docs/inference-client.md run as they stand."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.client.servers import MODEL, says, serving

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/inference-client.md").read_text(), re.DOTALL)


async def python(code: str, **variables: str) -> str:
    """What a program prints; it must say nothing on stderr and end well."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "gen")])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-c", code),
        env={**os.environ, "PYTHONPATH": paths, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complaints = await process.communicate()
    assert (process.returncode, complaints) == (0, b"")
    return printed.decode()


async def test_the_first_example_prints_answers() -> None:
    async with serving(says(503)) as server:
        printed = await python(EXAMPLES[0], GPUFLEET_INFERENCE_ADDRESSES=server.address)
    assert printed == "2 gpu 2\n4 gpu 2\n6 gpu 2\n1.0\n"


@pytest.mark.parametrize("is_up", [True, False])
async def test_the_second_example_says_where_the_callable_answered(is_up: bool) -> None:
    async with serving(ready_status=200 if is_up else 404) as server:
        # What it does without workers is a warning in the log, which without a handler goes to stderr.
        quiet = "import logging; logging.disable()\n"
        printed = await python(quiet + EXAMPLES[1], GPUFLEET_INFERENCE_ADDRESSES=server.address)
        lines = printed.splitlines()
        assert len(lines) == (0 if is_up else 1_000)
        assert all(f"None http://{server.address} is refused" in line for line in lines)
        assert MODEL in EXAMPLES[0]
