"""Gives each test a node of its own, and makes sure that nothing of it is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node_agent.keeper.keeping import Node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    cwd = tmp_path / "work"
    cwd.mkdir()
    node = Node(tmp_path / "state", cwd)
    yield node
    await node.close()
