"""The energy that a device counted, where asking it is dear."""

from __future__ import annotations

from gpufleet.devices.nvml_energy import COSTLY_CALLS, COSTLY_S, EVERY_S, EnergyCount


class Driver:
    """A device's count, and how often it was asked for it."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.now_s = self.used_s = 0.0
        self.count: int | None = 1_000_000
        self.asked = 0
        self.energy = EnergyCount(lambda: self.now_s, lambda: self.used_s)

    def ask(self) -> int | None:
        self.asked += 1
        self.used_s += self.cost_s
        return self.count

    def get_dear(self) -> None:
        """Read as often as it takes to know that a call is dear."""
        for _ in range(COSTLY_CALLS):
            self.read()

    def read(self, after_s: float = 1.0, power_mw: int | None = 700_000) -> int | None:
        self.now_s += after_s
        return self.energy.read(self.ask, power_mw)


def test_a_cheap_count_is_asked_for_at_each_reading() -> None:
    driver = Driver(cost_s=COSTLY_S / 2)
    for count in (5, 6, 9):
        driver.count = count
        assert driver.read() == count
    assert driver.asked == 3


def test_a_dear_one_is_asked_for_seldom_and_carried_on_by_the_power() -> None:
    driver = Driver(cost_s=COSTLY_S)
    assert [driver.read() for _ in range(COSTLY_CALLS)] == [1_000_000] * COSTLY_CALLS
    assert [driver.read() for _ in range(3)] == [1_700_000, 2_400_000, 3_100_000]
    assert driver.asked == COSTLY_CALLS
    driver.count = 9_000_000
    assert driver.read(EVERY_S) == 9_000_000 and driver.asked == COSTLY_CALLS + 1


def test_a_call_that_was_dear_once_is_made_at_each_reading() -> None:
    driver = Driver(cost_s=COSTLY_S)
    for number in range(10):
        driver.cost_s = COSTLY_S if number % COSTLY_CALLS else 0.0
        driver.count = number
        assert driver.read() == number
    assert driver.asked == 10


def test_it_stands_still_where_the_power_promised_too_much_until_the_count_is_there() -> None:
    driver = Driver(cost_s=COSTLY_S)
    driver.get_dear()
    assert driver.read(9.0) == 7_300_000
    driver.count = 7_000_000
    assert driver.read(EVERY_S) == 7_300_000
    driver.count = 8_000_000
    assert driver.read(EVERY_S) == 8_000_000


def test_a_count_that_fell_is_taken_as_it_is() -> None:
    driver = Driver(cost_s=COSTLY_S)
    driver.get_dear()
    driver.count = 500
    assert driver.read(EVERY_S) == 500
    assert driver.read() == 700_500


def test_without_a_count_or_power_nothing_is_made_up() -> None:
    driver = Driver(cost_s=COSTLY_S)
    driver.count = None
    assert driver.read() is None and driver.read() is None and driver.asked == 2
    driver.count = 700
    assert driver.read() == 700
    assert driver.read(power_mw=None) == 700 and driver.asked == 4
