"""Whether this machine lets tests keep users apart."""

from __future__ import annotations

import os

import pytest

from node_agent.keeper.linux import CLONE_NEWPID, enter_namespace


def _why_not() -> str:
    if os.geteuid() != 0:
        return "only root can run jobs as other accounts"
    fd = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        enter_namespace(fd, CLONE_NEWPID)
    except OSError as error:
        return f"this machine lets nobody make namespaces: {error}"
    finally:
        os.close(fd)
    return ""


WHY_NOT = _why_not()
needs_namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "users can be kept apart here: namespaces")
