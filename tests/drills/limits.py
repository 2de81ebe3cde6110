"""Control groups on a drill's machines, where this one has any: a namespace shows its programs none by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from node_agent.control_groups.files import CONTROLLERS, V1
from node_agent.control_groups.finding import find_groups
from tests.several_nodes.network import Machine

PROCESSES_MAX = 100

SETTINGS = f"export GPUCTL_AGENT_ISOLATION_LIMITS=memory,processes GPUCTL_AGENT_ISOLATION_PROCESSES_MAX={PROCESSES_MAX}"
"""CPUs are left out: a drill's times are those of a machine whose nodes share all of its CPUs."""


def keep_within_limits(machines: Sequence[Machine]) -> bool:
    """Have the agents on these machines keep jobs within limits; False, and said, where that is not possible."""
    facts = find_groups()
    if facts.controllers != CONTROLLERS or facts.version != V1:
        why = facts.why_not or "those of version 2 are not mounted in a namespace yet"
        print(f"hostile jobs neither eat memory nor fork: no control groups, as {why}", file=sys.stderr)
        return False
    mounts = [
        f"mkdir /sys/fs/cgroup/{name} && mount -t cgroup -o {name} none /sys/fs/cgroup/{name}" for name in CONTROLLERS
    ]
    prepare = " && ".join(["mount -t tmpfs none /sys/fs/cgroup", *mounts, SETTINGS])
    for machine in machines:
        machine.prepare = prepare
    return True
