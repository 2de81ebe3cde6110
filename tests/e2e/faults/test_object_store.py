"""Files of jobs in an S3-compatible store, with real programs: all the ways of a file, and a store that goes away."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gpufleet.v1 import files_pb2, job_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal
from tests.e2e.faults.object_line import ObjectLine
from tests.e2e.faults.test_folder_trouble import digest_of, large
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.jobs.test_results import stored
from tests.e2e.processes import until
from tests.metrics.scraping import scrape, where
from tests.outputs.object_server import KEY, SECRET, ObjectServer

pytestmark = pytest.mark.nightly

BUCKET = "team-files"
PLACE = f"s3://{BUCKET}/fleet"
CUT_AFTER_BYTES = 12 * 2**20
SUCCEEDED, RUNNING = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_RUNNING


@pytest.fixture
async def line(objects: ObjectServer) -> AsyncIterator[ObjectLine]:
    """The way from the scheduler to the store."""
    made = ObjectLine(objects.port)
    await made.mend()
    yield made
    await made.end()


@pytest.fixture
async def fleet(objects: ObjectServer, line: ObjectLine, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet with a node, whose files are in a bucket of their own."""
    objects.new_bucket(BUCKET)
    settings = {
        "GPUCTL_SCHEDULER_FILES_STORE": PLACE,
        "GPUCTL_SCHEDULER_FILES_S3_ENDPOINT": line.url,
        "GPUCTL_SCHEDULER_FILES_S3_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    async with Fleet(tmp_path / "fleet", "--metrics-port", "0", environment=settings) as own:
        await own.add_node("n1", "--cpus", "4")
        yield own


async def file_store_failing(fleet: Fleet) -> list[float]:
    """What /metrics says of the store of files."""
    page = await scrape(await where(fleet.scheduler.log), fleet.scheduler.token("admin"))
    assert page.status == 200, page.text
    return page.values("gpufleet_file_store_failing")


async def found_by_doctor(fleet: Fleet, folder: Path, *words: str) -> dict[str, tuple[str, str]]:
    """What the doctor says of each thing."""
    done = await gpuctl(fleet, folder, "doctor", "-o", "json", *words)
    return {each["what"]: (each["verdict"], each["sentence"]) for each in json.loads(done.stdout)}


def whole_files(fleet: Fleet) -> list[Path]:
    """What lies in the data folder of files that are in the store, or are on their way there."""
    return [each for each in (fleet.scheduler.data / "blobs").rglob("*") if each.is_file() and each.name[0] != "."]


async def test_files_go_to_jobs_and_come_back_by_way_of_the_store(
    fleet: Fleet, admin: Client, objects: ObjectServer, tmp_path: Path
) -> None:
    project = large(tmp_path / "project", count=2)
    whole = digest_of(project)
    (tmp_path / "words.txt").write_text("beside the folder\n")
    makes = 'mkdir -p out && cat ? | sha256sum >out/sum && cat "$GPUFLEET_FILES/words.txt" >out/words'
    told = ("--upload", ".", "--file", "../words.txt", "--download", "out/**")
    done = await gpuctl(fleet, project, "run", *told, "--", makes)
    assert done.returncode == 0, done.stderr
    sums = f"{whole}  -\n"
    assert (project / "out/sum").read_text() == sums, done.stderr
    assert (project / "out/words").read_text() == "beside the folder\n"
    # With a --cwd of its own, what --file brings is found by its variable.
    elsewhere = await gpuctl(
        fleet, project, "run", "--file", "../words.txt", "--cwd", "/", "--", 'pwd; cat "$GPUFLEET_FILES/words.txt"'
    )
    assert (elsewhere.returncode, elsewhere.stdout) == (0, "/\nbeside the folder\n"), elsewhere.stderr

    listed = await gpuctl(fleet, tmp_path, "files", "1", "-o", "name")
    assert listed.stdout.split() == ["out/sum", "out/words"]
    copied = await gpuctl(fleet, tmp_path, "cp", "1:out/sum", "here")
    assert (copied.returncode, (tmp_path / "here").read_text()) == (0, sums), copied.stderr

    held = await gpuctl(
        fleet, tmp_path, "submit", "--upload", "project", "--", "until test -e go; do sleep 0.01; done; cat go"
    )
    job = int(held.stdout)
    await admin.wait(job, RUNNING)
    (tmp_path / "data.bin").write_bytes(b"brought while it runs")
    out = await gpuctl(fleet, tmp_path, "cp", f"{job}:0", "first")
    assert (tmp_path / "first").read_bytes() == (project / "0").read_bytes(), out.stderr
    into = await gpuctl(fleet, tmp_path, "cp", "data.bin", f"{job}:go")
    assert into.returncode == 0, into.stderr
    await admin.wait(job, SUCCEEDED)
    assert await admin.stdout(job) == b"brought while it runs"

    digest = hashlib.sha256(b"beside the folder\n").hexdigest()
    names = objects.keys(BUCKET)
    assert [each for each in names if each.endswith(f"/{digest}")], names
    assert [each for each in names if each.startswith("fleet/.results/1/")], names
    assert whole_files(fleet) == [], "in the data folder is nothing but what is on its way"
    found = await found_by_doctor(fleet, tmp_path, "--files")
    assert found["file store"][0] == "OK" and found["file store"][1].startswith(f"{PLACE}: written "), found
    assert found["files n1"][0] == "OK", found


async def test_a_store_that_dies_in_the_middle_of_an_upload_has_the_same_line_send_the_rest(
    fleet: Fleet, line: ObjectLine, admin: Client, tmp_path: Path
) -> None:
    project = large(tmp_path / "project", count=6)
    words = ("run", "--upload", ".", "--", "cat * | sha256sum")
    assert await file_store_failing(fleet) == [0.0]
    line.left_bytes = CUT_AFTER_BYTES
    refused = await gpuctl(fleet, project, *words)
    assert line.is_cut and refused.returncode != 0 and not refused.stdout
    assert f"the store of files, {PLACE}, is away" in refused.stderr, refused.stderr
    assert "an upload goes on where it stands" in refused.stderr and "Traceback" not in refused.stderr
    assert not (await admin.queue(include_finished=True)).jobs

    verdict, sentence = (await found_by_doctor(fleet, tmp_path))["file store"]
    assert verdict == "FAILED" and f"{PLACE}, is away" in sentence, sentence
    assert SECRET not in sentence
    assert await file_store_failing(fleet) == [1.0]
    without = await gpuctl(fleet, tmp_path, "run", "--", "echo goes on")
    assert (without.returncode, without.stdout) == (0, "goes on\n"), without.stderr

    await line.mend()
    done = await gpuctl(fleet, project, *words)
    assert (done.returncode, done.stdout) == (0, f"{digest_of(project)}  -\n"), done.stderr
    assert "; sends 0B in" in done.stderr, done.stderr
    assert whole_files(fleet) == []
    assert await file_store_failing(fleet) == [0.0]
    assert (await found_by_doctor(fleet, tmp_path)).get("file store", ("OK", ""))[0] == "OK"


async def test_while_the_store_is_away_what_was_taken_waits_and_what_a_job_left_is_stored_once_it_is_back(
    fleet: Fleet, line: ObjectLine, admin: Client, tmp_path: Path
) -> None:
    project = large(tmp_path / "project", count=2)
    taken = await gpuctl(fleet, project, "submit", "--hold", "--upload", ".", "--", "cat * | sha256sum")
    assert taken.returncode == 0, taken.stderr
    waits = int(taken.stdout)
    early = (await admin.run("/bin/sh", "-c", "echo early >a", cwd="", results=["a"])).id
    await stored(admin, early)
    makes = f"until test -e {tmp_path}/go; do sleep 0.01; done; head -c 3000000 /dev/urandom >left; sha256sum <left"
    leaves = await admin.submit("/bin/sh", "-c", makes, cwd="", results=["left"])
    await admin.wait(leaves, RUNNING)

    line.cut()
    (tmp_path / "go").touch()
    release = await gpuctl(fleet, tmp_path, "release", str(waits))
    assert release.returncode == 0, release.stderr
    assert (await admin.wait(leaves)).state == SUCCEEDED, "its end waits for nobody"

    async def is_told() -> bool:
        (rank,) = (await admin.stub.ListFiles(files_pb2.ListFilesRequest(job_id=leaves))).ranks
        return not rank.is_stored and PLACE in rank.message

    await until("why nothing is stored is told", is_told)
    assert await file_store_failing(fleet) == [1.0]
    assert (await admin.job(waits)).state not in (SUCCEEDED, job_pb2.JOB_STATE_FAILED)
    # A scheduler that dies meanwhile, and starts while the store is still away, knows all of it.
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    assert (await found_by_doctor(fleet, tmp_path))["file store"][0] == "FAILED"
    told = (await admin.job(early)).results
    assert (told.state, PLACE in told.message) == (files_pb2.RESULTS_STATE_UNKNOWN, True), told
    shown = await gpuctl(fleet, tmp_path, "job", str(early))
    assert shown.returncode == 0 and "cannot be told now: the store of files" in shown.stdout, shown.stdout
    error = await refusal(admin.stub.ListFiles(files_pb2.ListFilesRequest(job_id=early)))
    assert error.reason is Reason.STORE_UNAVAILABLE, error

    await line.mend()

    async def is_let_in() -> bool:
        return (await admin.job(early)).results.state == files_pb2.RESULTS_STATE_STORED

    await until("the store is let in again", is_let_in)
    assert [each.path for each in (await stored(admin, early)).files] == ["a"]
    (file,) = (await stored(admin, leaves)).files
    assert (file.path, file.size_bytes) == ("left", 3_000_000)
    brought = await gpuctl(fleet, tmp_path, "cp", f"{leaves}:left", "here")
    assert brought.returncode == 0, brought.stderr
    said = (await admin.stdout(leaves)).split()[0].decode()
    assert hashlib.sha256((tmp_path / "here").read_bytes()).hexdigest() == said
    assert (await admin.wait(waits)).state == SUCCEEDED
    assert await admin.stdout(waits) == f"{digest_of(project)}  -\n".encode()
