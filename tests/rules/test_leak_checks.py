"""The leak checks themselves: each kind of leak fails a test and is named; what ends in time is no leak."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.leaks import MARK, Session

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "[sys.executable, '-S', '-c', 'import time; time.sleep(60)']"

INNER_CONFTEST = """
import tests.conftest
import tests.leaks
from tests.conftest import *
from tests.conftest import _allowed, _leaves_no_tasks, _leaves_nothing, _session, _tasks_at_the_end

tests.leaks.SETTLE_SECONDS = 1.0  # most of these tests leak, and would wait the whole span
tests.conftest.TASKS_SETTLE_SECONDS = 0.5
"""


def run_inner(
    tmp_path: Path, body: str, *, arguments: Sequence[str] = (), conftest: str = INNER_CONFTEST, **environment: str
) -> str:
    """Run `body` as a test file under this repository's conftest in a session of its own; its output and exit code."""
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_inner.py").write_text(
        "import asyncio, os, pytest, socket, subprocess, sys, threading, time\n" + body
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command += [f"--rootdir={folder}", f"--basetemp={tmp_path / 'base'}", str(folder), *arguments]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CI": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{result.stdout}{result.stderr}\nexit code {result.returncode}"


LEAKS = {
    "thread 'lingerer'": """
    threading.Thread(target=time.sleep, args=(60,), name="lingerer", daemon=True).start()
""",
    "file descriptor": """
    os.open(__file__, os.O_RDONLY)
""",
    "time.sleep(60)": f"""
    process = subprocess.Popen({SLEEP})
    process.returncode = 0  # so that its destructor does not complain first
""",
    "nobody waited for it": """
    pid = os.posix_spawn("/bin/true", ["true"], {})
""",
    "task 'forgotten'": """
    kept.append(asyncio.create_task(asyncio.sleep(60), name="forgotten"))
""",
    # With the session's mark.
    "sleep 60": """
    subprocess.run(["sh", "-c", "setsid sleep 60 >&2 &"])
""",
    # By the fork server.
    "gpufleet.scheduler": """
    command = [sys.executable, "-P", "-m", "gpufleet.scheduler", "--port", "0", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    process.returncode = 0
""",
    # With an environment of its own, in a directory of the test.
    "sleep 61": """
    subprocess.run(["sh", "-c", "setsid sleep 61 >&2 &"], env={}, cwd=tmp_path)
""",
}
"""By what it is called: what a test does that leaves it behind."""


@pytest.fixture(scope="module")
def told_of_leaks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a session says whose tests each leave something else behind, and one nothing."""
    body = "kept = []\n"
    for number, leak in enumerate(LEAKS.values()):
        body += f"{'async ' if 'asyncio' in leak else ''}def test_{number}(tmp_path):{leak}"
    return run_inner(tmp_path_factory.mktemp("leaks"), body + "def test_clean(): pass\n")


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_fails_the_test_and_is_named(name: str, told_of_leaks: str) -> None:
    _, *told = re.split(r"^_+ ERROR at teardown of (test_\w+) _+$", told_of_leaks, flags=re.MULTILINE)
    of_each = dict(zip(told[::2], told[1::2], strict=True))
    of_this = of_each[f"test_{list(LEAKS).index(name)}"].partition("\n===")[0]
    assert "the test left behind" in of_this
    assert [each for each in LEAKS if each in of_this] == [name], "this and nothing else"
    assert f"{len(LEAKS) + 1} passed, {len(LEAKS)} errors" in told_of_leaks


def test_a_process_is_the_sessions_while_it_changes_its_program_too() -> None:
    session = Session(os.environ[MARK], Path("/nowhere"))
    for _ in range(40):
        process = subprocess.Popen(["env", "env", "env", "env", "sleep", "60"])
        try:
            assert all(session.has_touched(process.pid) for _ in range(60))
        finally:
            process.kill()
            process.wait()


def test_what_ends_soon_after_the_test_is_no_leak(tmp_path: Path) -> None:
    output = run_inner(
        tmp_path,
        """
def test_it():
    threading.Timer(0.3, lambda: None).start()

async def test_that():
    asyncio.create_task(asyncio.sleep(0.1))
""",
    )
    assert "2 passed" in output
    assert "error" not in output


def test_the_loop_stays_for_what_grpc_hands_it(tmp_path: Path) -> None:
    output = run_inner(
        tmp_path,
        """
async def test_it():
    is_handed = threading.Event()
    threading.Thread(target=is_handed.wait, args=(60,), name="Thread-1 (_poll_wrapper)", daemon=True).start()
    asyncio.get_running_loop().call_later(0.3, is_handed.set)
""",
    )
    assert "1 passed" in output and "error" not in output


def test_what_a_longer_lived_fixture_registers_may_stay_until_the_session_ends(tmp_path: Path) -> None:
    output = run_inner(
        tmp_path,
        f"""
@pytest.fixture(scope="session")
def server(long_lived):
    with long_lived("server"):
        process = subprocess.Popen({SLEEP}, stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()

def test_first(request):
    request.getfixturevalue("server")

def test_second(server):
    assert server.poll() is None
""",
    )
    assert "2 passed" in output
    assert "error" not in output


def test_a_session_fixture_that_does_not_end_its_process_fails_the_session(tmp_path: Path) -> None:
    output = run_inner(
        tmp_path,
        """
@pytest.fixture(scope="session")
def server():
    subprocess.run(["sh", "-c", "setsid sleep 60 >&2 &"])

def test_it(server):
    pass
""",
    )
    assert "the session's fixtures left behind" in output
    assert "1 passed, 1 error" in output


def test_ci_turns_a_skip_for_want_of_a_required_tool_into_a_failure(tmp_path: Path) -> None:
    body = """
def test_needy():
    pytest.skip("no PostgreSQL server programs here")

def test_modest():
    pytest.skip("needs a real GPU")

@pytest.mark.xfail
def test_known():
    raise AssertionError("gcc is not found")
"""
    output = run_inner(tmp_path, body, CI="true")
    assert "1 failed, 1 skipped, 1 xfailed" in output
    assert "CI must have what this test needs" in output


def test_a_skipped_module_counts_in_ci_as_well_and_elsewhere_stays_a_skip(tmp_path: Path) -> None:
    body = "pytest.skip('gcc is not installed', allow_module_level=True)"
    output = run_inner(tmp_path, body)
    assert "1 skipped" in output
    assert "gcc is not installed" in output
    other = tmp_path / "other"
    other.mkdir()
    assert "1 error" in run_inner(other, body, CI="true")
