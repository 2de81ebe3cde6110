"""What the services do on a machine with a real systemd: start again, hold on to jobs, refuse what is wrong."""

from __future__ import annotations

import pytest

from tests.services.installation import PLACE
from tests.services.machine import Machine

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

SCHEDULER, AGENT = "gpufleet-scheduler.service", "gpufleet-agent.service"
TO_SCHEDULER = "--scheduler 127.0.0.1:50051 --token-file /var/lib/gpufleet/scheduler"
AS_ADMIN = "GPUCTL_SCHEDULER=127.0.0.1:50051 GPUCTL_TOKEN_FILE=/var/lib/gpufleet/scheduler/admin.token"


@pytest.fixture(scope="module")
def installed(machine: Machine) -> Machine:
    """A machine with a scheduler and an agent."""
    machine.type("gpuctl install scheduler")
    machine.type(f"gpuctl install agent -- {TO_SCHEDULER}/agent.token --virtual-gpus 1 --shared-account")
    return machine


@pytest.mark.parametrize(
    "words, why",
    [
        ("scheduler -- --port 99999999", "port"),
        ("scheduler -- --no-such-option", "--no-such-option"),
        ("scheduler -- --host 0.0.0.0", "tls.cert_file"),
        ("agent -- --token-file /nowhere/token", "/nowhere/token"),
        ("gateway -- --data /elsewhere", "--data"),
        ("worker", "scheduler, agent, gateway"),
    ],
)
def test_settings_that_a_program_does_not_take_are_refused_and_nothing_is_written(
    machine: Machine, words: str, why: str
) -> None:
    before = machine.type("ls /etc/systemd/system")
    assert why in machine.type(f"gpuctl install {words}", code=2)
    assert machine.type("ls /etc/systemd/system") == before


@pytest.mark.parametrize("program", ["scheduler", "gateway"])
def test_a_service_of_what_lies_below_tmp_is_refused_because_it_has_a_tmp_of_its_own(
    machine: Machine, program: str
) -> None:
    machine.type(f"mkdir -p /tmp/below && cp -a '{PLACE}/bin' '{PLACE}/lib' '{PLACE}/pyvenv.cfg' /tmp/below")
    said = machine.type(f"/tmp/below/bin/python -P -m gpufleet.cli install {program}", code=4)
    assert "could not read /tmp/below/bin/python: a service has a /tmp of its own" in said
    assert "sudo pipx install --global gpufleet" in said
    machine.type("touch /tmp/settings.toml")
    assert "/tmp/settings.toml" in machine.type(f"gpuctl install {program} --config /tmp/settings.toml", code=4)
    assert "gpufleet" not in machine.type("ls /etc/systemd/system")


def test_a_unit_that_somebody_else_wrote_is_left_alone(machine: Machine) -> None:
    file = "/etc/systemd/system/gpufleet-gateway.service"
    machine.type(f"echo '[Unit]' >{file}")
    try:
        for command in (
            "install gateway -- --token-file /var/lib/gpufleet/scheduler/gateway.token",
            "uninstall gateway",
        ):
            assert "was not written by gpuctl install" in machine.type(f"gpuctl {command}", code=4)
        assert machine.type(f"cat {file}") == "[Unit]\n"
    finally:
        machine.type(f"rm {file}")


def test_a_scheduler_that_is_killed_starts_again(installed: Machine) -> None:
    before = installed.property(SCHEDULER, "MainPID")
    restarts = int(installed.property(SCHEDULER, "NRestarts"))
    installed.type(f"kill -9 {before}")
    _until_restarted(installed, SCHEDULER, restarts + 1)
    installed.until("it serves", f"systemctl is-active {SCHEDULER}", "active")
    assert installed.property(SCHEDULER, "MainPID") != before


def _until_restarted(machine: Machine, unit: str, times: int) -> None:
    machine.until("it has started again", f"systemctl show --value --property NRestarts {unit}", str(times))


@pytest.mark.parametrize("unit", [SCHEDULER, AGENT])
def test_a_program_that_stands_still_is_ended_by_the_watchdog_and_starts_again(installed: Machine, unit: str) -> None:
    folder = f"/run/systemd/system/{unit}.d"
    installed.type(f"mkdir -p {folder} && printf '[Service]\\nWatchdogSec=3\\n' >{folder}/short.conf")
    installed.type(f"systemctl daemon-reload && systemctl restart {unit}")
    restarts = int(installed.property(unit, "NRestarts"))
    installed.type(f"kill -STOP {installed.property(unit, 'MainPID')}")
    _until_restarted(installed, unit, restarts + 1)
    installed.until("it serves", f"systemctl is-active {unit}", "active")
    installed.type(f"rm -r {folder} && systemctl daemon-reload && systemctl restart {unit}")


def test_a_job_outlives_a_restart_of_its_agents_service(installed: Machine) -> None:
    script = "echo begun; while ! test -e /run/outside/go; do sleep 0.1; done; echo ended"
    job = installed.type(f"{AS_ADMIN} gpuctl submit --cwd / -o name -- sh -c '{script}'").strip()
    installed.until("it has begun", f"{AS_ADMIN} gpuctl logs {job}", "begun")
    installed.type(f"systemctl restart {AGENT}")
    installed.type("touch /run/outside/go")
    installed.type(f"{AS_ADMIN} gpuctl wait {job}")
    assert installed.type(f"{AS_ADMIN} gpuctl logs {job}") == "begun\nended\n"


def test_a_program_that_is_started_by_hand_beside_its_service_says_so_and_leaves(installed: Machine) -> None:
    for program, sentence in (
        ("scheduler --port 0", "is in use by pid"),
        (f"agent {TO_SCHEDULER}/agent.token", "already uses the data folder"),
    ):
        data = f"/var/lib/gpufleet/{program.partition(' ')[0]}"
        assert sentence in installed.type(f"gpuctl {program} --data {data}", code=1)
    assert installed.property(SCHEDULER, "ActiveState") == "active"


def test_other_options_change_the_unit_and_start_it_anew(installed: Machine) -> None:
    said = installed.type("gpuctl install scheduler -- --log-level debug")
    assert "changed /etc/systemd/system/gpufleet-scheduler.service" in said and "restart" in said
    assert "--log-level debug" in installed.property(SCHEDULER, "ExecStart")
    assert "nothing to do" in installed.type("gpuctl install scheduler -- --log-level debug")
