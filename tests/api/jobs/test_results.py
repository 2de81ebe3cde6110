"""What jobs left at a real scheduler: brought by the node that they ran on, once, and nothing that is not right."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import files_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.folders import Entry, EntryKind, Folder, FolderChunk, manifest_of
from node_agent.credential import CREDENTIAL_FILE
from node_agent.identity import IDENTITY_FILE
from scheduler.api.jobs.results import _begin, _listed
from scheduler.api.jobs.what_came import RankLeft
from scheduler.blobs.folders import IndexedFolder, indexed
from scheduler.blobs.results import Stored
from scheduler.state.ids import JobId, RankKey, UserName
from scheduler.state.units import Span
from tests.api.test_own_node import agent, why
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.jobs.test_results import stored
from tests.e2e.processes import DEADLINE_SECONDS, until

pb = node_agent_pb2
DATA = b"a result"
DIGEST = hashlib.sha256(DATA).hexdigest()
MANIFEST = manifest_of(Folder((Entry("r", size_bytes=len(DATA)),), (FolderChunk(DIGEST, len(DATA)),)))


async def test_nobody_brings_what_no_attempt_of_theirs_left_and_what_is_stored_stays(
    fleet: Fleet, admin: Client
) -> None:
    job = (await admin.run("/bin/sh", "-c", "echo first >r", cwd="", results=["r"])).id
    plain = (await admin.run("true")).id
    assert [each.size_bytes for each in (await stored(admin, job)).files] == [6]
    data = fleet.agents["n1"].data
    lineage = (await admin.job(job)).attempts[-1].lineage
    key = pb.AttemptKey(job_id=job, attempt=1, lineage=lineage)
    incarnation = int(json.loads((data / IDENTITY_FILE).read_text())["incarnation"])

    def first(**changed: Any) -> pb.StoreResultsRequest:
        usual: dict[str, Any] = {"node": "n1", "incarnation": incarnation, "key": key, "manifest": MANIFEST}
        return pb.StoreResultsRequest(**(usual | changed))

    async def sent(*requests: pb.StoreResultsRequest) -> AsyncIterator[pb.StoreResultsRequest]:
        for each in requests:
            yield each

    link = manifest_of(Folder((Entry("a", size_bytes=0), Entry("l", EntryKind.LINK, target="a")), ()))
    async with agent(fleet, (data / CREDENTIAL_FILE).read_text().strip()) as node:
        for changed in (
            {"key": pb.AttemptKey(job_id=plain, attempt=1, lineage=lineage)},
            {"key": pb.AttemptKey(job_id=job, attempt=2, lineage=lineage)},
            {"key": pb.AttemptKey(job_id=job, attempt=1, rank=1, lineage=lineage)},
            {"key": pb.AttemptKey(job_id=job, attempt=1, lineage="0" * 16)},
            {"incarnation": incarnation + 1},
            {"node": "elsewhere"},
        ):
            call = node.StoreResults(sent(first(**changed)), timeout=DEADLINE_SECONDS)
            assert await why(call) is Reason.PERMISSION_DENIED, changed
        for wrong in ({"manifest": b"x"}, {"manifest": link}, {"problems": ["x"] * 101}):
            call = node.StoreResults(sent(first(**wrong)), timeout=DEADLINE_SECONDS)
            assert await why(call) is Reason.INVALID_ARGUMENT, wrong
        unknown = pb.AttemptKey(job_id=job + 1_000, attempt=1, lineage=lineage)
        answers: tuple[tuple[dict[str, Any], pb.StoreResultsResponse], ...] = (
            ({"key": unknown, "gives_up": "it could not be stored for 7 d"}, pb.StoreResultsResponse(is_lost=True)),
            ({"gives_up": "it could not be stored for 7 d"}, pb.StoreResultsResponse(is_stored=True)),
        )
        for given, answer in answers:
            told = [each async for each in node.StoreResults(sent(first(**given)), timeout=DEADLINE_SECONDS)]
            assert told == [answer], "what is stored is not lost, and what nobody knows is, once that is on record"
        again = [each async for each in node.StoreResults(sent(first()), timeout=DEADLINE_SECONDS)]
        assert [each.is_stored for each in again] == [True]
    assert [each.size_bytes for each in (await stored(admin, job)).files] == [6]
    for request, reason in (
        (files_pb2.DownloadFileRequest(job_id=job, path="other"), Reason.FILE_NOT_FOUND),
        (files_pb2.DownloadFileRequest(job_id=job, path="r", offset=7), Reason.OFFSET_OUT_OF_RANGE),
        (files_pb2.DownloadFileRequest(job_id=job, path="r", offset=-1), Reason.OFFSET_OUT_OF_RANGE),
        (files_pb2.DownloadFileRequest(job_id=job, path="r", rank=1), Reason.INVALID_ARGUMENT),
        (files_pb2.DownloadFileRequest(job_id=plain, path="r"), Reason.FILE_NOT_FOUND),
    ):
        assert await why(admin.stub.DownloadFile(request, timeout=DEADLINE_SECONDS)) is reason
    assert not (await admin.stub.ListFiles(files_pb2.ListFilesRequest(job_id=plain))).ranks


async def results_of(person: Client, job: int) -> files_pb2.JobResults:
    return (await person.job(job)).results


async def told_in_story(person: Client, job: int, text: str) -> None:
    async def is_told() -> bool:
        return text in "\n".join(await person.story(job))

    await until("the story tells of what it left", is_told)


async def test_what_became_of_results_is_told_until_they_are_stored(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("[files]\nfree_bytes_min = '900TB'\n")
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as admin:
        await fleet.add_node("n1")
        waits = await admin.submit("sleep", "600", cwd="", results=["*"], after=[])
        assert not (await admin.job(waits)).HasField("results")
        job = (await admin.run("/bin/sh", "-c", "echo first >r", cwd="", results=["*"])).id

        async def is_told_why() -> bool:
            return "is sent again, as the disk" in (await results_of(admin, job)).message

        await until("it is told why nothing comes", is_told_why)
        assert (await results_of(admin, job)).state == files_pb2.RESULTS_STATE_COMING
        settings.write_text("[files]\nfree_bytes_min = '100MB'\n")
        fleet.scheduler.signal(signal.SIGHUP)
        assert [each.path for each in (await stored(admin, job)).files] == ["r"]
        assert (await results_of(admin, job)).state == files_pb2.RESULTS_STATE_STORED
        await told_in_story(admin, job, f"What {job}/1 left is stored: 1 file of 6 bytes.")
        await admin.cancel(waits)
        await admin.wait(waits)


async def test_files_that_a_job_left_come_in_pages(fleet: Fleet, admin: Client) -> None:
    jobs = [
        (await admin.run("/bin/sh", "-c", f"touch a b c d {more}", cwd="", results=["*"])).id for more in ("e", "f")
    ]
    for job in jobs:
        await stored(admin, job)

    async def page(size: int, token: str, job: int = jobs[0]) -> files_pb2.ListFilesResponse:
        request = files_pb2.ListFilesRequest(job_id=job, page_size=size, page_token=token)
        return await admin.stub.ListFiles(request, timeout=DEADLINE_SECONDS)

    found: list[list[str]] = []
    token = ""
    while token or not found:
        answer = await page(2, token)
        (rank,) = answer.ranks
        assert (rank.is_stored, rank.file_count) == (True, 5)
        found.append([each.path for each in rank.files])
        token = answer.next_page_token
    assert found == [["a", "b"], ["c", "d"], ["e"]]
    whole = await page(0, "")
    assert ([each.path for each in whole.ranks[0].files], whole.next_page_token) == (["a", "b", "c", "d", "e"], "")
    assert not (await page(5, "")).next_page_token
    foreign = (await page(2, "")).next_page_token
    for size, sent, job, field, expected in (
        (-1, "", jobs[0], "page_size", Reason.INVALID_ARGUMENT),
        (1_001, "", jobs[0], "page_size", Reason.INVALID_ARGUMENT),
        (2, "abc", jobs[0], "page_token", Reason.PAGE_TOKEN_INVALID),
        (2, foreign, jobs[1], "page_token", Reason.PAGE_TOKEN_INVALID),
    ):
        error = await refusal(page(size, sent, job))
        assert (error.reason, error.violations[0].field) == (expected, field), error


def test_a_page_goes_over_all_ranks_and_names_each() -> None:
    class Blobs:
        def __init__(self) -> None:
            self.folders = self

        def indexed(self, user: str, digest: str) -> IndexedFolder:
            return indexed(Folder(tuple(Entry(name, size_bytes=0) for name in digest), ()))

    def left(rank: int, names: str | None) -> RankLeft:
        came = None if names is None else Stored(UserName("ann"), names, ())
        return RankLeft(RankKey(JobId(7), 2, rank, "x"), came, files_pb2.RESULTS_STATE_STORED)

    ranks = [left(0, "ab"), left(1, None), left(2, ""), left(3, "cde")]
    found: list[list[str]] = []
    begin: tuple[int, int] | None = (0, 0)
    while begin is not None:
        answer, begin = _listed(Blobs(), ranks, Span(0), begin, 2)  # type: ignore[arg-type]
        assert [each.rank for each in answer.ranks] == [0, 1, 2, 3]
        assert [each.file_count for each in answer.ranks] == [2, 0, 0, 3]
        found.append([each.path for rank in answer.ranks for each in rank.files])
    assert found == [["a", "b"], ["c", "d"], ["e"]]
    with pytest.raises(GpufleetError) as caught:
        _begin(ranks, [1, "x", 0, 1])
    assert caught.value.reason is Reason.PAGE_TOKEN_INVALID


async def test_of_who_has_no_room_left_it_is_said_that_nothing_is_stored(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("[files]\nuser_bytes_max = '1MB'\n")
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as admin:
        await fleet.add_node("n1")
        fills = (await admin.run("/bin/sh", "-c", "head -c 950000 /dev/urandom >a", cwd="", results=["*"])).id
        assert (await stored(admin, fills)).state == files_pb2.RESULTS_STATE_STORED
        job = (await admin.run("/bin/sh", "-c", "head -c 200000 /dev/urandom >b", cwd="", results=["*"])).id
        left = await stored(admin, job)
        assert (left.state, list(left.files)) == (files_pb2.RESULTS_STATE_INCOMPLETE, [])
        told = await results_of(admin, job)
        assert told.state == files_pb2.RESULTS_STATE_INCOMPLETE
        assert "nothing is stored: root has" in told.message
        copied = await gpuctl(fleet, tmp_path, "cp", f"{job}:", ".")
        assert copied.returncode == 3 and f"of what job {job} left nothing is stored: root has" in copied.stderr
        await told_in_story(admin, job, "stored in part, 0 files of 0 bytes: not among it: nothing is stored")


async def test_the_newest_attempt_counts_that_left_anything(fleet: Fleet, admin: Client) -> None:
    leaves = 'if [ "$GPUFLEET_ATTEMPT" = 1 ]; then echo first >r; fi; exit 3'
    job = (await admin.run("/bin/sh", "-c", leaves, cwd="", results=["r"], retries=1)).id
    assert [each.number for each in (await admin.job(job)).attempts] == [1, 2]
    await told_in_story(admin, job, f"What {job}/2 left is stored: 0 files")
    left = await stored(admin, job)
    assert (left.attempt, [each.path for each in left.files]) == (1, ["r"])
    assert (await results_of(admin, job)).state == files_pb2.RESULTS_STATE_STORED


@pytest.mark.parametrize("line", ["", " ", "# all", "a\nb", "x" * 1_025, "!"])
async def test_a_line_that_chooses_nothing_is_refused(fleet: Fleet, admin: Client, line: str) -> None:
    spec = admin.spec("true", cwd="", results=[line])
    error = await refusal(admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec])))
    assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "specs[0].results[0]")


async def test_lines_that_only_take_files_out_are_refused(fleet: Fleet, admin: Client) -> None:
    spec = admin.spec("true", cwd="", results=["!*.tmp", "!out/"])
    error = await refusal(admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec], dry_run=True)))
    assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "specs[0].results")


async def test_of_a_job_that_works_elsewhere_than_in_its_folder_it_is_said_where_results_are_looked_for(
    fleet: Fleet, admin: Client
) -> None:
    for cwd, is_noted in (("/", True), ("", False)):
        spec = admin.spec("true", cwd=cwd, results=["out/**"])
        answer = await admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec], dry_run=True))
        assert any("$GPUFLEET_FILES" in note for note in answer.notes) == is_noted, answer
