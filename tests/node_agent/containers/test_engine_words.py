"""Why a container is not made or does not start, by the words of real engines."""

from __future__ import annotations

import docker.errors
import pytest

from node_agent.containers.containers import _why_not_made
from node_agent.core.launch import RefusalReason
from node_agent.keeper.containers.runner import not_started

TOOLKIT = {
    "docker without the toolkit": 'could not select device driver "nvidia" with capabilities: [[gpu]]',
    "docker of before": 'could not select device driver "" with capabilities: [[gpu]]',
    "docker without cdi": 'could not select device driver "cdi" with capabilities: []',
    "docker with nothing that describes them": "CDI device injection failed: unresolvable CDI devices "
    "nvidia.com/gpu=GPU-4fe4c5b3-9e5e-7b60-3b77-6f2d3a7b1d0f",
    "docker of before with nothing that describes them": "failed to create task for container: failed to create shim "
    "task: OCI runtime create failed: could not apply required modification to OCI specification: error modifying OCI "
    "spec: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all: unknown",
    "podman": "setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-1",
    "podman 4.3": "container create: stat nvidia.com/gpu=GPU-1: no such file or directory",
    "the run time is gone": "failed to create task for container: failed to start shim: start failed: : fork/exec "
    "/usr/bin/nvidia-container-runtime: no such file or directory: unknown",
    "the driver is gone": "failed to create task for container: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: error running prestart hook "
    "#0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy' nvidia-container-cli: initialization error: "
    "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory: unknown",
    "another driver was loaded": "error running prestart hook #0: exit status 1, stdout: , stderr: "
    "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
    "another machine's GPU": "error running prestart hook #0: exit status 1, stdout: , stderr: nvidia-container-cli: "
    "device error: GPU-4fe4c5b3-9e5e-7b60-3b77-6f2d3a7b1d0f: unknown device: unknown",
}

DRIVER = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: error running prestart hook #0: exit status 1, "
    "stdout: , stderr: Auto-detected mode as 'legacy' nvidia-container-cli: requirement error: unsatisfied condition: "
    "cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container: unknown"
)

OF_THE_IMAGE = {
    "docker": (
        "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create "
        'failed: unable to start container process: exec: "nvidia-smi": executable file not found in $PATH: unknown',
        "COMMAND_NOT_FOUND",
    ),
    "podman": (
        "crun: executable file `nvidia-smi` not found in $PATH: No such file or directory: OCI runtime attempted to "
        "invoke a command that was not found",
        "COMMAND_NOT_FOUND",
    ),
    "a path": (
        'runc create failed: unable to start container process: exec: "/opt/nvidia/cdi": stat /opt/nvidia/cdi: no such '
        "file or directory: unknown",
        "COMMAND_NOT_FOUND",
    ),
    "no program": (
        "crun: open executable: Permission denied: OCI permission denied",
        "NOT_EXECUTABLE",
    ),
    "another processor's": ("exec /usr/local/nvidia/run: exec format error", "NOT_EXECUTABLE"),
    "podman's control groups": (
        "creating cgroup directory `/sys/fs/cgroup/unified/libpod_parent/libpod-1`: No such file or directory: OCI "
        "runtime attempted to invoke a command that was not found",
        "CONTAINER_FAILED",
    ),
    "docker's control groups": (
        "runc create failed: unable to start container process: unable to apply cgroup configuration: mkdir "
        "/sys/fs/cgroup/pids/docker/1: no such file or directory: unknown",
        "CONTAINER_FAILED",
    ),
    "anything else": ("the disk quota was exceeded", "CONTAINER_FAILED"),
}


@pytest.mark.parametrize("said", TOOLKIT.values(), ids=TOOLKIT.keys())
def test_an_engine_that_gives_no_gpus_is_told_apart_when_it_makes_one_and_when_it_starts_one(said: str) -> None:
    found = not_started(said)
    assert (found.failure, said in found.detail) == ("NO_GPU_CONTAINERS", True)
    trouble = _why_not_made(docker.errors.APIError("500 Server Error", explanation=said))
    assert trouble is not None and trouble.refusal.reason is RefusalReason.NO_GPU_CONTAINERS
    assert said in trouble.refusal.detail


@pytest.mark.parametrize(
    "said", [DRIVER, "nvidia-container-runtime: requirements not met: unsatisfied condition: cuda>=12.8 (12.2)"]
)
def test_an_image_that_needs_a_newer_driver_is_told_so_with_what_it_needs(said: str) -> None:
    found = not_started(said)
    assert found.failure == "IMAGE_NEEDS_DRIVER"
    assert found.detail.startswith("the image needs a newer GPU driver: ") and "cuda>=12.8" in found.detail


@pytest.mark.parametrize(("said", "failure"), OF_THE_IMAGE.values(), ids=OF_THE_IMAGE.keys())
def test_what_a_program_or_a_path_is_called_says_nothing_of_gpus(said: str, failure: str) -> None:
    assert not_started(said).failure == failure
    trouble = _why_not_made(docker.errors.APIError("500 Server Error", explanation=said))
    assert trouble is not None and trouble.refusal.reason is RefusalReason.CONTAINER_FAILED
