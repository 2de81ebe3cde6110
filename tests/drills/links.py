"""What can be wrong with a machine's cable, and how it is mended."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.drills.faults import Fault, Kind
from tests.e2e.processes import until
from tests.several_nodes.network import Machine, Network, NotPermitted, system

BURST = "16kb"
QUEUE = "500ms"
"""Of a slow line: what it lets through at once, and how long it lets packets wait before it drops them."""

SLOW_CABLE = Path(__file__).with_name("slow_cable.py")


def check_permitted() -> None:
    """Raise NotPermitted where links cannot be impaired."""
    if shutil.which("tc") is None:
        raise NotPermitted("there is no tc (iproute2)")
    if not Path("/dev/net/tun").exists():
        raise NotPermitted("there is no /dev/net/tun, which namespaces with long lines need")


class Links:
    """The cables of a network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._cables: dict[str, subprocess.Popen[bytes]] = {}

    async def spoil(self, fault: Fault) -> None:
        """Begin a fault of a link."""
        machine = self._network.machines[fault.node]
        match fault.kind:
            case Kind.CUT:
                self._network.cut(machine)
            case Kind.DEAF:
                machine.iptables("-A", "INPUT", "-i", "eth0", "-j", "DROP")
            case Kind.MUTE:
                machine.iptables("-A", "OUTPUT", "-o", "eth0", "-j", "DROP")
            case Kind.LOSS:
                chance = ("-m", "statistic", "--mode", "random", "--probability", f"{fault.amount}", "-j", "DROP")
                machine.iptables("-A", "INPUT", "-i", "eth0", *chance)
                machine.iptables("-A", "OUTPUT", "-o", "eth0", *chance)
            case Kind.RATE:
                limit = ("tbf", "rate", f"{fault.amount:.0f}kbit", "burst", BURST, "latency", QUEUE)
                for namespace, device in self._ends(machine):
                    _tc(namespace, "add", "dev", device, "root", *limit)
            case Kind.DELAY:
                await self._lengthen(machine, fault.amount)
            case _:
                raise AssertionError(f"no fault of a link: {fault}")

    def mend(self, fault: Fault) -> None:
        """End it."""
        machine = self._network.machines[fault.node]
        match fault.kind:
            case Kind.CUT:
                self._network.heal(machine)
            case Kind.DEAF | Kind.MUTE | Kind.LOSS:
                machine.iptables("-F", "INPUT")
                machine.iptables("-F", "OUTPUT")
            case Kind.RATE:
                for namespace, device in self._ends(machine):
                    _tc(namespace, "del", "dev", device, "root")
            case Kind.DELAY:
                self._shorten(machine)
            case _:
                raise AssertionError(f"no fault of a link: {fault}")

    def close(self) -> None:
        """End the long lines that a drill which failed has left."""
        for name in tuple(self._cables):
            self._shorten(self._network.machines[name])

    def _ends(self, machine: Machine) -> list[tuple[str, str]]:
        """Both ends of a machine's cable: what goes up and what comes down."""
        return [(machine.namespace, "eth0"), (self._network.switch, f"p-{machine.name}")]

    async def _lengthen(self, machine: Machine, milliseconds: float) -> None:
        switch, name = self._network.switch, machine.name
        near, far, own = f"s-{name}", f"t-{name}", f"b-{name}"
        cable = ["ip", "netns", "exec", switch, sys.executable, "-S", str(SLOW_CABLE), near, far, str(milliseconds)]
        process = subprocess.Popen(cable, stdin=subprocess.DEVNULL)  # noqa: ASYNC220
        self._cables[name] = process

        def is_there() -> bool:
            assert process.poll() is None, f"the long line of {name} left with {process.returncode}"
            shown = subprocess.run(["ip", "-n", switch, "-br", "link"], check=True, capture_output=True, text=True)
            return {near, far} <= {line.split()[0] for line in shown.stdout.splitlines()}

        await until(f"the long line of {name} is there", is_there)
        ip = ("ip", "-n", switch, "link")
        system(*ip, "add", own, "up", "type", "bridge")
        system(*ip, "set", near, "master", own, "up")
        system(*ip, "set", far, "master", "bridge", "up")
        system(*ip, "set", f"p-{name}", "master", own)

    def _shorten(self, machine: Machine) -> None:
        switch, name = self._network.switch, machine.name
        process = self._cables.pop(name)
        system("ip", "-n", switch, "link", "set", f"p-{name}", "master", "bridge")
        system("ip", "-n", switch, "link", "del", f"b-{name}")
        process.kill()
        process.wait()


def _tc(namespace: str, what: str, *words: str) -> None:
    system("ip", "netns", "exec", namespace, "tc", "qdisc", what, *words)
