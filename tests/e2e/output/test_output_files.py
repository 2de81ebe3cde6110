"""The copy of a job's output on its node: what it is called, what stands in it, and what happens where it cannot be."""

from __future__ import annotations

from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet


def written_in(folder: Path) -> dict[str, str]:
    """The files of a folder, by name."""
    return {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}


async def test_a_copy_is_called_as_the_pattern_says_and_holds_both_streams(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    script = "echo out; sleep 0.2; echo err >&2; sleep 0.2; printf end"
    job = await person.submit(
        "sh", "-c", script, cwd=str(tmp_path), name="res/net", output_file="%x_%j_%6j_%N_%t_%u_%A_100%%.log"
    )
    ended = await person.wait(job)
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, ended.exit_message
    name = f"res_net_{job}_{job:06}_n1_0_{ended.user}_{job}_100%.log"
    assert written_in(tmp_path) == {name: "out\nerr\nend"}
    assert (await person.stdout(job)) == b"out\nend", "the scheduler has it as always"


async def test_items_of_an_array_and_ranks_of_a_gang_have_files_of_their_own(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    for name in ("n1", "n2"):
        await fleet.add_node(name, "--virtual-gpus", "1")
    array = await admin.submit(
        *("sh", "-c", "echo $GPUFLEET_ARRAY_INDEX"),
        array=job_pb2.ArraySpec(indices="3-4"),
        output_file=str(tmp_path / "item-%A-%2a"),
    )
    gang = await admin.submit(
        "sh", "-c", "echo $GPUFLEET_NODE", gpus=2, node_count=2, output_file=str(tmp_path / "rank-%r-%N")
    )
    await admin.wait(array)
    known = await admin.wait(gang)
    nodes = [rank.node for rank in known.attempts[-1].ranks]
    assert written_in(tmp_path) == {
        f"item-{array}-03": "3\n",
        f"item-{array}-04": "4\n",
        **{f"rank-{rank}-{node}": f"{node}\n" for rank, node in enumerate(nodes)},
    }


async def test_what_is_there_is_appended_to(shared_fleet: Fleet, person: Client, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before\n")
    for word in ("one", "two"):
        await person.run("echo", word, output_file=str(file))
    assert file.read_text() == "before\none\ntwo\n"


async def test_a_file_that_cannot_be_opened_ends_the_job_before_it_begins_and_says_why(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    ended = await person.run("touch", str(tmp_path / "ran"), output_file=str(tmp_path / "no" / "such" / "log"))
    assert (ended.state, ended.exit_reason) == (job_pb2.JOB_STATE_FAILED, "OUTPUT_FILE_UNUSABLE")
    assert str(tmp_path / "no" / "such" / "log") in ended.exit_message
    assert "No such file or directory" in ended.exit_message
    assert not (tmp_path / "ran").exists()
    folder = await person.run("true", output_file=str(tmp_path))
    assert (folder.exit_reason, "Is a directory" in folder.exit_message) == ("OUTPUT_FILE_UNUSABLE", True)
