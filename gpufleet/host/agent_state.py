"""How an agent stands with its scheduler: a small file in its data folder, for `gpuctl doctor` on the same machine.

A refused agent is not known to the scheduler, so only its own machine can tell why. The file holds no secret.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

AGENT_STATE_FILE = "link.json"
AGENT_STATE_BYTES_MAX = 16_384

REGISTERED, REFUSED, UNREACHABLE, LOST = "REGISTERED", "REFUSED", "UNREACHABLE", "LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """What came of the agent's newest try.

    `state` is REGISTERED, LOST (it was registered, and the connection ended), REFUSED (the scheduler answered, or this
    agent would not speak to it; `reason` says why) or UNREACHABLE. `at` is when this became so, RFC 3339.
    """

    node: str
    scheduler: str
    state: str
    reason: str = ""
    message: str = ""
    next_step: str = ""
    pid: int = 0
    at: str = ""


def write_agent_state(folder: Path, state: AgentState) -> None:
    """Replace the file, whole or not at all. Raises OSError; nothing depends on it but the doctor."""
    unfinished = folder / f".{AGENT_STATE_FILE}"
    unfinished.write_text(json.dumps(asdict(state)) + "\n")
    unfinished.replace(folder / AGENT_STATE_FILE)


def read_agent_state(folder: Path) -> AgentState | None:
    """What the agent of this folder wrote last; None where there is nothing to be read."""
    try:
        with (folder / AGENT_STATE_FILE).open("rb") as file:
            fields = json.loads(file.read(AGENT_STATE_BYTES_MAX))
        known = {name: fields[name] for name in AgentState.__dataclass_fields__ if name in fields}
        return AgentState(**known)
    except (OSError, ValueError, TypeError):
        return None


def now_in_words() -> str:
    """Now, RFC 3339 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
