"""What a container is made of, in the engine's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.devices.device import Device, Vendor
from gpufleet.jobs.runs import InputMode
from node_agent.containers.engine import BY_CDI, BY_NVIDIA, EngineFacts
from node_agent.containers.making import PublishedPort, Wanted, request_of
from node_agent.core.launch import Mount

DOCKER = EngineFacts(socket="/s", name="docker 28", nvidia_by=BY_NVIDIA)
GPU = Device(uuid="GPU-1", index=3, name="H100", vendor=Vendor.NVIDIA, memory_bytes=1)
WANTED = Wanted(
    image="busybox",
    argv=("train", "--fast"),
    env={"A": "1", "NVIDIA_VISIBLE_DEVICES": "all"},
    cwd="/work",
    input=None,
    uid=1900000001,
    gid=1900000001,
    groups=(7,),
    memory_bytes=4096,
    machine_memory_bytes=1_000_000,
    cpus=2,
    processes_max=100,
    mounts=(Mount(source="/data", target="/sets", is_read_only=True),),
    files="/agent/files/1",
    home="/agent/home",
    devices=(),
    nodes=(),
    labels={"gpufleet.job": "1"},
    mark="m",
)


def variables(request: dict[str, list[str]]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in request["Env"])


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (DOCKER, {"DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ["GPU-1"], "Capabilities": [["gpu"]]}]}),
        (
            replace(DOCKER, nvidia_by=BY_CDI),
            {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}]},
        ),
        (
            replace(DOCKER, nvidia_by=BY_CDI, is_podman=True),
            {"Devices": [{"PathOnHost": "nvidia.com/gpu=GPU-1"}]},
        ),
    ],
)
def test_it_is_given_exactly_its_gpus_and_no_variable_numbers_them_beside_that(
    facts: EngineFacts, wanted: dict[str, object]
) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "5", "NVIDIA_VISIBLE_DEVICES": "all"}
    request = request_of(replace(WANTED, devices=(GPU,), env=env), facts)
    assert wanted.items() <= request["HostConfig"].items()
    assert variables(request) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "GPUFLEET_CONTAINER": "m"}


def test_one_without_gpus_is_given_none_whatever_its_image_and_its_job_say() -> None:
    request = request_of(WANTED, DOCKER)
    assert "DeviceRequests" not in request["HostConfig"]
    assert variables(request)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_it_is_its_users_within_its_limits_and_without_rights() -> None:
    request = request_of(WANTED, DOCKER)
    config = request["HostConfig"]
    assert request["User"] == "1900000001:1900000001"
    assert (config["CapDrop"], config["SecurityOpt"], config["Privileged"]) == (["ALL"], ["no-new-privileges"], False)
    assert (config["Memory"], config["MemorySwap"], config["NanoCpus"], config["PidsLimit"]) == (
        4096,
        4096,
        2 * 10**9,
        100,
    )
    assert config["ShmSize"] == 2048
    assert config["LogConfig"]["Type"] == "none"
    assert [(each["Source"], each["Target"], each["ReadOnly"]) for each in config["Mounts"]] == [
        ("/agent/files/1", "/run/gpufleet/files", False),
        ("/agent/home", "/run/gpufleet/home", False),
        ("/data", "/sets", True),
    ]


@pytest.mark.parametrize(
    ("mode", "has_input", "has_terminal"),
    [(None, False, False), (InputMode.PIPE, True, False), (InputMode.TERMINAL, True, True)],
)
def test_its_input_is_what_its_job_has(mode: InputMode | None, has_input: bool, has_terminal: bool) -> None:
    request = request_of(replace(WANTED, input=mode), DOCKER)
    assert (request["OpenStdin"], request["StdinOnce"], request["Tty"]) == (has_input, has_input, has_terminal)


def test_a_port_of_its_own_is_published_on_loopback_alone_and_its_network_is_its_own() -> None:
    port = PublishedPort(in_container=80, on_loopback=10500)
    request = request_of(replace(WANTED, port=port, argv=()), DOCKER)
    config = request["HostConfig"]
    assert request["ExposedPorts"] == {"80/tcp": {}}
    assert config["PortBindings"] == {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "10500"}]}
    assert (config["NetworkMode"], config["Sysctls"]) == ("default", {"net.ipv4.ip_unprivileged_port_start": "0"})
    assert request["Cmd"] is None, "what the image runs by itself"
    usual = request_of(WANTED, DOCKER)
    assert usual["HostConfig"]["NetworkMode"] == "host" and "ExposedPorts" not in usual
