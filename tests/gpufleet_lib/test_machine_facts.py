"""What programs tell of their machine and of how they stand."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from gpufleet.host.agent_state import AGENT_STATE_FILE, REFUSED, AgentState, read_agent_state, write_agent_state
from gpufleet.host.facts import first_installed, open_files_max


def test_the_first_distribution_that_is_installed_is_told() -> None:
    assert first_installed(("no-such-distribution-anywhere", "grpcio", "pytest")) == version("grpcio")
    assert first_installed(("no-such-distribution-anywhere",)) == ""
    assert open_files_max() > 0


def test_the_version_of_torch_is_told_without_importing_it() -> None:
    code = (
        "import sys\n"
        "from gpufleet.host.facts import first_installed\n"
        "print(first_installed(('torch',)), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [version("torch"), "False"]


def test_the_state_of_an_agent_comes_back_as_written_and_rubbish_as_nothing(tmp_path: Path) -> None:
    state = AgentState(node="n1", scheduler="head:50051", state=REFUSED, reason="NODE_ID_TAKEN", message="held", pid=7)
    write_agent_state(tmp_path, state)
    assert read_agent_state(tmp_path) == state
    file = tmp_path / AGENT_STATE_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "a field of a later version": 1}))
    assert read_agent_state(tmp_path) == state
    for rubbish in ("", "[]", "3", "{}", '{"node": "n1"'):
        file.write_text(rubbish)
        assert read_agent_state(tmp_path) is None
    assert read_agent_state(tmp_path / "nowhere") is None
