"""What a rank finds in its environment."""

from __future__ import annotations

from dataclasses import replace

from node_agent.core.environment import CHOOSES_DEVICES, Account, RankPlace, environment_of

ACCOUNT = Account(name="gpu", home="/home/gpu")
PLACE = RankPlace(
    job_id=7,
    attempt=2,
    rank=1,
    node_count=3,
    visibility={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    device_count=2,
    virtual_uuids=(),
    master_address="10.0.0.1",
    master_port=29500,
    traceparent="00-aa-bb-01",
)


def test_a_rank_knows_its_job_its_place_and_its_devices() -> None:
    environment = environment_of({"PATH": "/opt/bin", "LANG": "de_DE.UTF-8", "TERM": "xterm"}, ACCOUNT, PLACE)
    assert environment == {
        "PATH": "/opt/bin",
        "LANG": "de_DE.UTF-8",
        "TERM": "xterm",
        "HOME": "/home/gpu",
        "USER": "gpu",
        "LOGNAME": "gpu",
        "PYTHONUNBUFFERED": "1",
        "GPUFLEET_JOB_ID": "7",
        "GPUFLEET_ATTEMPT": "2",
        "GPUFLEET_NODE_RANK": "1",
        "GPUFLEET_NNODES": "3",
        "GPUFLEET_GPUS_PER_NODE": "2",
        "NODE_RANK": "1",
        "NNODES": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TRACEPARENT": "00-aa-bb-01",
    }


def test_what_the_submitter_set_wins_over_defaults_but_not_over_the_placement() -> None:
    submitted = {"HOME": "/data", "PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "NODE_RANK": "0"}
    environment = environment_of(submitted, ACCOUNT, PLACE)
    assert environment["HOME"] == "/data"
    assert environment["PYTHONUNBUFFERED"] == ""
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment["NODE_RANK"] == "1"


def test_what_chooses_devices_on_the_submitters_machine_chooses_none_here() -> None:
    """A shell with HIP_VISIBLE_DEVICES=2 and --env-all must not hide the only device that its job was given."""
    place = replace(PLACE, visibility={"ROCR_VISIBLE_DEVICES": "GPU-amd"})
    submitted = dict.fromkeys(CHOOSES_DEVICES, "2") | {"MINE": "2"}
    environment = environment_of(submitted, ACCOUNT, place)
    assert {name: environment[name] for name in environment if name in CHOOSES_DEVICES} == {
        "ROCR_VISIBLE_DEVICES": "GPU-amd"
    }
    assert environment["MINE"] == "2"


def test_a_job_with_a_share_is_told_how_much_it_has() -> None:
    place = replace(PLACE, share_milli=250, share_memory_bytes=20 * 10**9)
    environment = environment_of({"GPUFLEET_GPU_SHARE": "0.5"}, ACCOUNT, place)
    assert environment["GPUFLEET_GPU_SHARE"] == "0.25"
    assert environment["GPUFLEET_GPU_MEMORY_BYTES"] == "20000000000"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    whole = environment_of(environment, ACCOUNT, PLACE)
    assert "GPUFLEET_GPU_SHARE" not in whole and "GPUFLEET_GPU_MEMORY_BYTES" not in whole


def test_a_job_is_told_how_many_cpus_are_held_for_it_and_nobody_elses() -> None:
    assert environment_of({}, ACCOUNT, replace(PLACE, cpus=3))["GPUFLEET_CPUS_PER_NODE"] == "3"
    assert "GPUFLEET_CPUS_PER_NODE" not in environment_of({"GPUFLEET_CPUS_PER_NODE": "64"}, ACCOUNT, PLACE)


def test_without_a_path_commands_are_still_found() -> None:
    assert "/usr/bin" in environment_of({}, ACCOUNT, PLACE)["PATH"].split(":")
