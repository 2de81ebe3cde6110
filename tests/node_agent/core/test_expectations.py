"""When a node refuses a launch because of its devices."""

from __future__ import annotations

from node_agent.core.expectations import (
    SAMPLE_AGE_US_MAX,
    Expectations,
    Reading,
    Unfit,
    are_recent,
    misfit,
)

GB = 10**9
WANTED = Expectations(device_uuids=("GPU-a", "GPU-b"), memory_free_bytes=8 * GB)


def reading(uuid: str, **changed: object) -> Reading:
    fields: dict[str, object] = {"uuid": uuid, "age_us": 0, "memory_free_bytes": 80 * GB} | changed
    return Reading(**fields)  # type: ignore[arg-type]


def test_devices_as_expected_are_no_misfit() -> None:
    assert misfit(WANTED, [reading("GPU-a"), reading("GPU-b", memory_free_bytes=8 * GB)]) is None


def test_too_little_free_memory_makes_a_device_busy() -> None:
    found = misfit(WANTED, [reading("GPU-a"), reading("GPU-b", memory_free_bytes=8 * GB - 1)])
    assert found is not None
    assert (found.reason, found.uuids) == (Unfit.DEVICE_BUSY, ("GPU-b",))
    assert found.sentence == "device GPU-b: 7,999 MB are free, the job needs 8,000 MB"


def test_a_foreign_process_makes_a_device_busy_unless_it_is_allowed() -> None:
    readings = [reading("GPU-a", foreign_pids=(4242,)), reading("GPU-b")]
    found = misfit(WANTED, readings)
    assert found is not None and found.reason is Unfit.DEVICE_BUSY
    assert "4242" in found.sentence
    assert misfit(Expectations(device_uuids=("GPU-a",), allow_busy=True), readings) is None


def test_trouble_a_missing_device_and_silence_are_unhealthy() -> None:
    for second in (
        [reading("GPU-b", unhealthy_reason="XID 79")],
        [],
        [reading("GPU-b", age_us=SAMPLE_AGE_US_MAX + 1)],
    ):
        found = misfit(WANTED, [reading("GPU-a"), *second])
        assert found is not None
        assert (found.reason, found.uuids) == (Unfit.DEVICE_UNHEALTHY, ("GPU-b",))


def test_a_counter_that_a_device_lacks_refuses_nothing() -> None:
    assert misfit(WANTED, [reading("GPU-a", memory_free_bytes=None), reading("GPU-b")]) is None


def test_readings_are_recent_only_when_every_device_has_one() -> None:
    old = reading("GPU-b", age_us=SAMPLE_AGE_US_MAX + 1)
    assert are_recent(WANTED, [reading("GPU-a"), reading("GPU-b")])
    assert not are_recent(WANTED, [reading("GPU-a"), old])
    assert not are_recent(WANTED, [reading("GPU-a")])
