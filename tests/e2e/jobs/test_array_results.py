"""What the items of an array left, with real programs: listed and brought here together, a folder for each item."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gpufleet.v1 import files_pb2, job_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.processes import DEADLINE_SECONDS

LEAVES = (
    "mkdir -p out; [ $GPUFLEET_ARRAY_INDEX = 4 ] || echo $GPUFLEET_ARRAY_INDEX >out/n; "
    "[ $GPUFLEET_ARRAY_INDEX != 7 ] || touch out/more"
)


async def ended_array(person: Client, indices: str = "2,4-7") -> int:
    """Items of which 4 leaves nothing, and 7 two files."""
    array = job_pb2.ArraySpec(indices=indices)
    job = await person.submit("/bin/sh", "-c", LEAVES, cwd="", results=["out/**"], array=array)
    await person.wait(job)
    return job


async def test_the_files_of_all_items_come_at_once_and_each_item_gets_a_folder(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    job = await ended_array(person)
    done = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:", "here")
    assert done.returncode == 0, done.stderr
    found = {
        path.relative_to(tmp_path / "here").as_posix() for path in (tmp_path / "here").rglob("*") if path.is_file()
    }
    assert found == {"item-2/out/n", "item-5/out/n", "item-6/out/n", "item-7/out/n", "item-7/out/more"}
    assert (tmp_path / "here/item-6/out/n").read_text() == "6\n"
    assert "each item come into a folder of its own: item-2, item-4, item-5, …" in done.stderr
    assert f"job {job}.4 left no file that its --download chooses" in done.stderr

    some = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}.5-6:out/n", "some")
    assert some.returncode == 0, some.stderr
    assert sorted(str(each.relative_to(tmp_path)) for each in (tmp_path / "some").rglob("n")) == [
        "some/item-5/n",
        "some/item-6/n",
    ]
    one = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}.6:out/n", "one")
    assert (one.returncode, (tmp_path / "one").read_text()) == (0, "6\n"), one.stderr


async def test_items_without_the_file_are_named_as_they_were_typed_and_those_of_the_others_are_here(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    job = await ended_array(person)
    missing = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:out/more", ".")
    assert missing.returncode == 3, missing.stderr
    assert f"files of 4 of 5 are missing: job {job}.2 left no 'out/more'; job {job}.4 left no" in missing.stderr
    assert (tmp_path / "item-7/more").exists()
    for which, why in (
        (f"{job}.4", f"job {job}.4 left no 'out/n'"),
        (f"{job}.20-22", f"array {job} has no items 20-22"),
        (f"{job}.3", f"array {job} has no item 3"),
    ):
        refused = await gpuctl(shared_fleet, tmp_path, "cp", f"{which}:out/n", ".")
        assert refused.returncode == 3 and why in refused.stderr, refused.stderr


async def test_the_files_of_an_array_are_listed_with_the_item_of_each(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    job = await ended_array(person)
    await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:", "here")  # waits until all is stored
    listed = await gpuctl(shared_fleet, tmp_path, "files", f"{job}.4-7")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["ITEM", "SIZE", "PATH"],
        ["5", "2B", "out/n"],
        ["6", "2B", "out/n"],
        ["7", "0B", "out/more"],
        ["7", "2B", "out/n"],
        ["Attempt", "1", "of", "item", "4", "left", "nothing", "that", "--download", "chooses."],
    ], listed.stderr
    listing = json.loads((await gpuctl(shared_fleet, tmp_path, "files", str(job), "-o", "json")).stdout)
    assert [each["index"] for each in listing["items"]] == [2, 4, 5, 6, 7]
    assert listing["items"][-1]["job_id"] == str(job + 5)


async def test_of_an_item_that_left_nothing_it_is_said_why(shared_fleet: Fleet, person: Client, tmp_path: Path) -> None:
    array = job_pb2.ArraySpec(indices="1-2", max_active_count=1)
    line = "touch a; [ $GPUFLEET_ARRAY_INDEX = 1 ] || sleep 600"
    job = await person.submit("/bin/sh", "-c", line, cwd="", results=["a"], array=array)
    await person.wait(job + 1)
    listed = await gpuctl(shared_fleet, tmp_path, "files", str(job))
    assert "Item 2 left nothing: it has not ended; what it leaves is stored then." in listed.stdout, listed.stderr
    done = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:", ".")
    assert done.returncode == 3 and f"job {job}.2 left nothing: it has not ended" in done.stderr
    assert (tmp_path / "item-1/a").exists()
    await person.cancel(job)
    await person.wait(job)


async def _read(person: Client, job: int) -> None:
    async for _ in person.stub.DownloadFile(files_pb2.DownloadFileRequest(job_id=job, path="out/n")):
        pass


async def test_items_come_in_pages_and_only_an_array_has_them(person: Client) -> None:
    job, plain = await ended_array(person), (await person.run("true")).id

    async def page(**fields: int | str) -> files_pb2.ListFilesResponse:
        request = files_pb2.ListFilesRequest(**fields)  # type: ignore[arg-type]
        return await person.stub.ListFiles(request, timeout=DEADLINE_SECONDS)

    await asyncio.gather(*(person.wait(job + number) for number in range(1, 6)))
    found: list[int] = []
    token = ""
    while token or not found:
        answer = await page(job_id=job, page_size=1, page_token=token, first_index=3, last_index=6)
        found += [each.index for each in answer.items]
        token = answer.next_page_token
    assert found == [4, 5, 6]
    assert not answer.ranks
    other = (await page(job_id=job, page_size=1)).next_page_token
    for refused, reason in (
        (page(job_id=plain, first_index=1), Reason.NOT_AN_ARRAY),
        (page(job_id=job, page_token=other, first_index=3), Reason.PAGE_TOKEN_INVALID),
        (page(job_id=job, page_size=1_001), Reason.INVALID_ARGUMENT),
        (_read(person, job), Reason.IS_AN_ARRAY),
    ):
        assert (await refusal(refused)).reason is reason


@pytest.mark.parametrize("what", ["cp", "files"])
async def test_an_array_that_is_to_leave_nothing_is_said_to_be_so(
    shared_fleet: Fleet, person: Client, tmp_path: Path, what: str
) -> None:
    job = await person.submit("true", array=job_pb2.ArraySpec(indices="1-2"))
    await person.wait(job)
    done = await gpuctl(shared_fleet, tmp_path, what, *([f"{job}:", "."] if what == "cp" else [str(job)]))
    assert done.returncode == 3 and f"array {job} was submitted without --download" in done.stderr
