"""What is told of a pull: little, whatever the engine says, and true."""

from __future__ import annotations

from typing import Any

from node_agent.containers.pulling import FAR_TOLD_MAX, QUIET_SECONDS_MAX, Pull

MB = 1_000_000


def step(layer: str, come: int, total: int) -> dict[str, Any]:
    return {"status": "Downloading", "id": layer, "progressDetail": {"current": come, "total": total}}


def test_each_fourth_is_told_once_of_all_layers_together() -> None:
    pull = Pull(begun_at=0.0)
    said = [pull.take(step("a", come * MB, 60 * MB), 1.0) for come in range(61)]
    said += [pull.take(step("b", come * MB, 40 * MB), 2.0) for come in range(41)]
    assert [each for each in said if each] == [
        "15MB of 60MB have come",
        "30MB of 60MB have come",
        "45MB of 60MB have come",
    ]
    assert pull.end(250 * MB, 63.2) == "250MB, in 1m03s"


def test_a_slow_one_is_told_of_now_and_again_and_never_more_than_so_often() -> None:
    pull = Pull(begun_at=0.0)
    total = 10_000 * MB
    now, said = 0.0, []
    for second in range(20 * 3600):
        now = float(second)
        said.append(pull.take(step("a", 1 + second, total), now))
    told = [number for number, each in enumerate(said) if each]
    assert len(told) == FAR_TOLD_MAX
    assert told[0] == QUIET_SECONDS_MAX


def test_what_an_engine_says_in_another_way_is_no_progress() -> None:
    pull = Pull(begun_at=0.0)
    for strange in (
        {},
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Downloading", "id": "a", "progressDetail": {}},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": -1, "total": 4}},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 9, "total": 4}},
        {"status": "Downloading", "id": 3, "progressDetail": {"current": 1, "total": 4}},
        {"status": "Extracting", "id": "a", "progressDetail": {"current": 4, "total": 4}},
        {"status": "Download complete", "id": "a"},
    ):
        assert pull.take(strange, 1000.0) == ""
    assert pull.take(step("a", 1, 4), 1000.0)
