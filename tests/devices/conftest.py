"""The fake driver library, for every test about devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.fake_nvml import FakeNvml, compiler


@pytest.fixture
def gpus(tmp_path: Path) -> FakeNvml:
    """A machine with two GPUs, nothing running on them."""
    if compiler() is None:
        pytest.skip("the NVML test library needs gcc; Debian, Ubuntu: apt-get install gcc libc6-dev")
    return FakeNvml(tmp_path)
