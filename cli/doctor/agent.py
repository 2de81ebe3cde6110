"""This machine's own agent: whether it runs, and whether its scheduler has taken it."""

from __future__ import annotations

import os
from pathlib import Path

from gpufleet.config.agent_settings import AgentSettings
from gpufleet.config.merged import load_program
from gpufleet.config.paths import program_config_file, state_dir
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.finding import Finding, failed, ok, warning
from gpufleet.host.agent_state import LOST, REFUSED, REGISTERED, AgentState, read_agent_state

ABOUT_TOKENS = frozenset(
    each.name for each in (Reason.TOKEN_INVALID, Reason.TOKEN_MISSING, Reason.TOKEN_REVOKED, Reason.PERMISSION_DENIED)
)


def agent_folder(named: Path | None) -> Path:
    """The data folder of this machine's agent: the one named, else where an agent of this account would keep it."""
    if named is not None:
        return named.expanduser()
    try:
        file = program_config_file("agent")
        settings = load_program(
            AgentSettings, "agent", flags={}, environment=os.environ, file=file, file_is_named=False
        )
    except GpufleetError:
        return state_dir("agent")
    return settings.settings.data


def check_agent(folder: Path, *, is_named: bool) -> Finding | None:
    """A finding about the agent of this folder; None where there never was one and nobody asked for it."""
    state = read_agent_state(folder)
    if state is None:
        if not is_named:
            return None
        return failed("agent", f"no agent has kept its data in {folder}", "Name the folder of its --data DIR")
    return judge_agent(state, runs=is_running(state.pid))


def is_running(pid: int) -> bool:
    """Whether this process is an agent; another one may have got its number since."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"node_agent") for word in words)


def judge_agent(state: AgentState, *, runs: bool) -> Finding:
    """What the agent's own words come to."""
    start = f"gpuctl agent --scheduler {state.scheduler}"
    if not runs:
        return warning("agent", f"this machine's agent, node {state.node}, does not run", f"Start it with: {start}")
    if state.state == REGISTERED:
        return ok("agent", f"this machine is node {state.node} of {state.scheduler}")
    if state.state == LOST:
        sentence = f"the connection of node {state.node} to {state.scheduler} ended: {state.message}"
        return warning("agent", sentence, f"It dials again by itself; see why with: {_doctor(state)}")
    if state.state == REFUSED:
        sentence = f"{state.scheduler} refuses this machine as node {state.node}: {state.message} ({state.reason})"
        return failed("agent", sentence, _fix(state))
    sentence = f"node {state.node} does not reach {state.scheduler}: {state.message}"
    return failed("agent", sentence, f"See why with: {_doctor(state)}")


def _doctor(state: AgentState) -> str:
    return f"gpuctl doctor --scheduler {state.scheduler}"


def _fix(state: AgentState) -> str:
    if state.reason in ABOUT_TOKENS:
        return (
            "It needs the agent.token of that scheduler's data folder, in a file of mode 0600 named by --token-file; "
            "a file that is replaced is read again at the next try"
        )
    return state.next_step
