"""Virtual devices that play back a recorded load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpufleet.devices.device import TroubleKind
from gpufleet.devices.playback import PlaybackReader, read_load
from gpufleet.devices.virtual import VirtualDevices

IDLE = {"seconds": 0, "utilization_percent": 0, "memory_used_bytes": 0, "power_mw": 70_000}
BUSY = {"seconds": 10, "gpu": 1, "utilization_percent": 97, "memory_used_bytes": 12 * 10**9, "temperature_c": 60}
GONE = {"seconds": 20, "gpu": 1, "trouble": "VANISHED"}


def load_of(folder: Path, *lines: Any) -> Path:
    file = folder / "load.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def test_a_load_is_played_over_and_over(tmp_path: Path) -> None:
    now = 100.0
    first, second = VirtualDevices(node="n1", count=2).list()
    load = read_load(load_of(tmp_path, GONE, IDLE, "", BUSY))
    reader = PlaybackReader((first, second), load, clock=lambda: now)
    assert reader.read(first).utilization_percent == 0
    # Lines of its own stand in place of those for all; before the first of them nothing is known.
    assert reader.read(second).utilization_percent is None
    now = 115.0
    sample = reader.read(second)
    assert (sample.utilization_percent, sample.memory_free_bytes, sample.temperature_c) == (97, 4 * 10**9, 60)
    assert sample.power_mw is None and sample.is_healthy
    now = 120.5
    assert [trouble.kind for trouble in reader.read(second).troubles] == [TroubleKind.VANISHED]
    now = 100.0 + load.seconds + 15
    assert reader.read(second).utilization_percent == 97
    now = 50.0  # a clock that goes back is at the beginning
    assert reader.read(first).power_mw == 70_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "is no object"),
        ({"utilization_percent": 5}, '"seconds" must be'),
        ({"seconds": -1}, '"seconds" must be'),
        ({"seconds": 0, "gpu": "one"}, '"gpu" must be'),
        ({"seconds": 0, "load": 5}, '"load" is no counter'),
        ({"seconds": 0, "power_mw": 1.5}, '"power_mw" must be a whole number'),
        ({"seconds": 0, "trouble": "FIRE"}, '"trouble" must be one of'),
        ({"seconds": 0, "throttle_reasons": "hot"}, '"throttle_reasons" must be'),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        read_load(load_of(tmp_path, IDLE, line))
    assert "line 2" in str(caught.value)


def test_a_file_without_a_reading_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no reading"):
        read_load(load_of(tmp_path))
