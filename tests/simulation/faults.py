"""What goes wrong, and when: drawn from the seed, within what the guarantees allow for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.clock import STEP_SPAN
from scheduler.state.units import SECOND
from tests.simulation.machine import Machine
from tests.simulation.users import Users
from tests.simulation.world import World

TROUBLES = (12, 30, 60)
"""Faults of one run: few, so that a long silence comes to its end, or so many that they meet."""

DEVICE_LOST_PROBABILITY = 0.4

STEP_SECONDS = STEP_SPAN / SECOND
"""A wall clock that is off by more is not followed."""

STORE_FAULTS = (
    "crash before commit",
    "crash after commit",
    "crash between commands",
    "crash between replies",
    "store away",
    "store away",
    "answer lost",
)


class Troubles:
    """The plan of one run."""

    def __init__(
        self,
        world: World,
        machines: Mapping[str, Machine],
        users: Users,
        seconds: float,
        counts: tuple[int, ...] = TROUBLES,
    ) -> None:
        self._world = world
        self._rng = world.rng("troubles")
        self._machines = machines
        self._users = users
        kinds: tuple[tuple[Callable[[], None], int], ...] = (
            (self._break_streams, 9),
            (self._cut_off, 8),
            (self._arm_scheduler, 7),
            (self._crash_scheduler, 2),
            (self._crash_agent, 5),
            (self._crash_keeper, 3),
            (self._reboot, 2),
            (self._foreign_process, 3),
            (self._heat, 3),
            (self._drain, 1),
            (self._set_the_wall_clock, 3),
        )
        calls, weights = zip(*kinds, strict=True)
        for call in self._rng.choices(calls, weights, k=self._rng.choice(counts)):
            world.after(self._rng.uniform(4.0, seconds - 2.0), call)
        if self._rng.random() < 0.2:
            world.after(self._rng.uniform(30.0, seconds - 2.0), self._lose_for_good)
        self._rng_of_devices = world.rng("devices that are gone")
        if self._rng_of_devices.random() < DEVICE_LOST_PROBABILITY:
            world.after(self._rng_of_devices.uniform(10.0, seconds - 2.0), self._lose_a_device)

    def scheduler_away_seconds(self) -> float:
        """How long a scheduler that died is away; now and then longer than a fence."""
        if self._world.is_healed:
            return 0.5
        return self._rng.choice((0.05, 0.5, 2.0, 10.0, self._rng.uniform(5, 90)))

    def _machine(self) -> Machine:
        return self._machines[self._rng.choice(list(self._machines))]

    def _break_streams(self) -> None:
        machine = self._machine()
        self._world.note("network: the streams of {} break", machine.name)
        self._world.network.break_streams(machine.name)

    def _cut_off(self) -> None:
        machine = self._machine()
        seconds = self._rng.choice((0.5, 5.0, 15.0, 38.0, 45.0, 80.0, 110.0, 140.0))
        self._world.note("network: {} is cut off for {} s", machine.name, seconds)
        self._world.network.cut_off_node(machine.name, seconds)

    def _arm_scheduler(self) -> None:
        if self._world.scheduler is not None:
            fault = self._rng.choice(STORE_FAULTS)
            self._world.note("scheduler: next, {}", fault)
            self._world.scheduler.faults.arm(fault, 1 if "crash" in fault else self._rng.randint(1, 4))

    def _crash_scheduler(self) -> None:
        if self._world.scheduler is not None:
            self._world.scheduler.crash()

    def _crash_agent(self) -> None:
        machine = self._machine()
        machine.crash_agent()
        self._world.after(self._rng.choice((0.3, 3.0, 20.0)), machine.start_agent)

    def _crash_keeper(self) -> None:
        self._machine().crash_keeper()

    def _reboot(self) -> None:
        machine = self._machine()
        machine.power_off()
        self._world.network.break_streams(machine.name)
        self._world.after(self._rng.choice((2.0, 20.0, 80.0)), machine.power_on)

    def _foreign_process(self) -> None:
        machine = self._machine()
        if machine.info.devices:
            uuid = self._rng.choice([device.uuid for device in machine.info.devices])
            self._world.note("{}: somebody else uses {}", machine.name, uuid)
            machine.foreign.add(uuid)
            self._world.after(self._rng.uniform(3.0, 40.0), machine.foreign.discard, uuid)

    def _heat(self) -> None:
        machine = self._machine()
        if machine.info.devices:
            hot = {device.uuid for device in machine.info.devices}
            self._world.note("{}: it is too hot", machine.name)
            machine.hot |= hot
            self._world.after(self._rng.uniform(3.0, 60.0), machine.hot.difference_update, hot)

    def _lose_a_device(self) -> None:
        """One falls off the bus, and the agent, or the machine, is started anew and does not find it; later it does."""
        rng = self._rng_of_devices
        machine = rng.choice([each for each in self._machines.values() if each.devices])
        uuid = rng.choice([device.uuid for device in machine.devices])
        self._world.note("{}: {} is gone", machine.name, uuid)
        machine.find_devices(but=uuid)
        self._start_anew(machine)
        self._world.after(rng.uniform(5.0, 60.0), self._find_devices, machine)

    def _find_devices(self, machine: Machine) -> None:
        machine.find_devices()
        self._start_anew(machine)

    def _start_anew(self, machine: Machine) -> None:
        if self._rng_of_devices.random() < 0.3:
            machine.power_off()
            self._world.network.break_streams(machine.name)
            self._world.after(5.0, machine.power_on)
        else:
            machine.crash_agent()
            self._world.after(0.5, machine.start_agent)

    def _drain(self) -> None:
        machine = self._machine()
        self._users.drain(machine.name, is_draining=True)

    def _set_the_wall_clock(self) -> None:
        """Somebody sets it, or time is fetched from a server: now and then to a wrong one, or back to the right one."""
        off = self._rng.choice((0.0, -0.4, 3.0, -7.0, 40.0, -1_000.0, 4_000.0))
        self._world.note("scheduler: its wall clock steps, and is off by {} s", off)
        self._world.wall_is_off = off
        if abs(off) > STEP_SECONDS:
            self._world.met.add("a wall clock that stepped")

    def _lose_for_good(self) -> None:
        """A machine burns down, and a person says so."""
        machine = self._machine()
        machine.is_gone = True
        machine.power_off()
        self._world.network.break_streams(machine.name)
        self._world.note("{}: burns down", machine.name)
        self._forget(machine)

    def _forget(self, machine: Machine) -> None:
        """The scheduler refuses as long as it believes the node connected: a person asks again."""
        self._users.forget(machine.name)
        scheduler = self._world.scheduler
        if scheduler is None or machine.name in scheduler.state.durable.nodes:
            self._world.after(7.0, self._forget, machine)

    def put_back(self) -> None:
        """The store may know machines again that were forgotten since: the person says so once more."""
        for machine in self._machines.values():
            if machine.is_gone:
                self._forget(machine)

    def heal(self) -> None:
        for machine in self._machines.values():
            machine.foreign.clear()
            machine.hot.clear()
            if len(machine.info.devices) < len(machine.devices):
                machine.find_devices()
                machine.crash_agent()
            machine.power_on()
            machine.start_agent()
        if self._world.scheduler is not None:
            self._world.scheduler.faults.clear()
