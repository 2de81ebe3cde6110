"""What a refused request leaves behind: nothing, not even a gap in the ids; and odd input that is right and works."""

from __future__ import annotations

import stat

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet

s = scheduler_pb2


async def marker(client: Client) -> int:
    """A new job that is cancelled at once: its id shows which ids were given."""
    job = await client.submit("true", is_held=True)
    await client.cancel(job)
    return job


async def audited(client: Client) -> int:
    """The newest thing that anybody did, and was not refused."""
    answer = await client.stub.ListAuditEntries(s.ListAuditEntriesRequest())
    return int(next(entry.sequence for entry in answer.entries if entry.code == "OK"))


@pytest.mark.parametrize("dry_run", [False, True])
async def test_refused_requests_take_no_id_and_leave_no_record(admin: Client, dry_run: bool) -> None:
    first = await marker(admin)
    before = await audited(admin)
    good = admin.spec("true", is_held=True)
    for wrong, reason in (
        (admin.spec(), Reason.COMMAND_EMPTY),
        (admin.spec("echo", *["x" * 100_000] * 100), Reason.ARGV_TOO_LONG),
        (admin.spec("true", gpus=-1), Reason.INVALID_ARGUMENT),
        (admin.spec("true", gpus=3), Reason.NEVER_FITS),
        (admin.spec("true", nodelist=["n2"]), Reason.UNKNOWN_NODE),
        (admin.spec("true", cwd="here"), Reason.INVALID_ARGUMENT),
        (admin.spec("true", env={"A=B": ""}), Reason.ENV_NAME_INVALID),
        (admin.spec("true", kind=job_pb2.JOB_KIND_SERVICE), Reason.INVALID_ARGUMENT),
    ):
        request = s.SubmitRequest(specs=[good, wrong], dry_run=dry_run, request_id=f"refused {reason.name} {dry_run}")
        error = await refusal(admin.stub.Submit(request))
        assert error.reason is reason
        assert error.violations[0].field.startswith("specs[1]."), error
        assert error.next_step
        # A refused request does not use up its id either.
        again = await admin.stub.Submit(s.SubmitRequest(specs=[good], dry_run=True, request_id=request.request_id))
        assert (again.first_job_id, again.count) == (0, 1)
    assert await audited(admin) == before
    assert await marker(admin) == first + 1


async def test_a_page_token_is_of_its_own_list_only(admin: Client) -> None:
    jobs = [await admin.submit("true", is_held=True) for _ in range(2)]
    queue = await admin.queue(page_size=1)
    await admin.cancel(*jobs)
    stories = [await admin.stub.GetStory(s.GetStoryRequest(job_id=job, page_size=1)) for job in jobs]
    tokens = {
        "Queue": queue.next_page_token,
        "GetStory": stories[0].next_page_token,
        "ListTokens": (await admin.stub.ListTokens(s.ListTokensRequest(page_size=1))).next_page_token,
        "ListAuditEntries": (await admin.stub.ListAuditEntries(s.ListAuditEntriesRequest(page_size=1))).next_page_token,
    }
    assert all(tokens.values()), tokens

    def ask(call: str, token: str) -> object:
        match call:
            case "Queue":
                return admin.stub.Queue(s.QueueRequest(page_size=1, page_token=token))
            case "GetStory":
                return admin.stub.GetStory(s.GetStoryRequest(job_id=jobs[0], page_size=1, page_token=token))
            case "ListTokens":
                return admin.stub.ListTokens(s.ListTokensRequest(page_size=1, page_token=token))
            case _:
                return admin.stub.ListAuditEntries(s.ListAuditEntriesRequest(page_size=1, page_token=token))

    for call, own in tokens.items():
        others = [token for name, token in tokens.items() if name != call]
        tampered = [own[:place] + ("A" if own[place] != "A" else "B") + own[place + 1 :] for place in (0, 9, -5)]
        cut = [own[:-4], own + "AAAA", "é", " ", "=" * 40, own * 50]
        for wrong in (*others, *tampered, *cut):
            error = await refusal(ask(call, wrong))
            assert error.reason is Reason.PAGE_TOKEN_INVALID, (call, wrong, error)
            assert [violation.field for violation in error.violations] == ["page_token"]
            assert "first page" in error.next_step
    foreign = s.GetStoryRequest(job_id=jobs[0], page_size=1, page_token=stories[1].next_page_token)
    assert (await refusal(admin.stub.GetStory(foreign))).reason is Reason.PAGE_TOKEN_INVALID


async def test_an_id_of_a_signal_or_a_submit_stands_for_one_request_only(admin: Client) -> None:
    job = await admin.submit("sleep", "600")
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    (sent,) = (await admin.stub.SignalJob(s.SignalJobRequest(jobs=select(job), signal=18, request_id="one"))).changes
    assert sent.changed
    spec = admin.spec("true", is_held=True)
    for call in (
        admin.stub.SignalJob(s.SignalJobRequest(jobs=select(job), signal=15, request_id="one")),
        admin.stub.SignalJob(s.SignalJobRequest(jobs=select(job, job), signal=18, request_id="one")),
        admin.stub.Submit(s.SubmitRequest(specs=[spec], request_id="one")),
    ):
        error = await refusal(call)
        assert error.reason is Reason.REQUEST_ID_REUSED
        assert [violation.field for violation in error.violations] == ["request_id"]
        assert "new" in error.next_step
    assert (await admin.job(job)).state == job_pb2.JOB_STATE_RUNNING
    await admin.cancel(job)
    await admin.wait(job)


async def test_the_own_client_refuses_a_message_of_a_hundred_megabytes_by_itself(admin: Client) -> None:
    error = await refusal(admin.stub.Submit(s.SubmitRequest(specs=[admin.spec("x" * 100_000_000)])))
    assert error.reason is Reason.MESSAGE_TOO_LARGE
    assert "file" in error.next_step
    assert (await admin.queue()).view_time.seconds


async def test_paths_arguments_and_values_with_newlines_arrive_as_they_are(fleet: Fleet, admin: Client) -> None:
    folder = fleet.work / "a\nfolder \t'of\" ünïcödé\\"
    folder.mkdir()
    program = folder / "a\nprogram"
    program.write_text('#!/bin/sh\npwd\nprintf "%s|" "$0" "$@" "$ODD"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    odd = ["two\nlines", "", " ", "$HOME", "*", "-n", "\r\n", "\x1b[31m", "ünï"]
    job = await admin.run(str(program), *odd, cwd=str(folder), env={"ODD": "x=\ny\n=z"})
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
    expected = f"{folder}\n" + "".join(f"{each}|" for each in (program, *odd, "x=\ny\n=z"))
    assert (await admin.stdout(job.id)).decode() == expected
    assert list(job.spec.argv) == [str(program), *odd]
    assert job.spec.name == "a?program", "a name is one line"


async def test_a_shell_line_is_called_by_its_first_word_unless_it_has_a_name(fleet: Fleet, admin: Client) -> None:
    for line, name, wanted in (
        ("A=1 /bin/true | cat", "", "true"),
        ("/bin/true", "mine", "mine"),
        ("'a\nb' || true", "", "a?b"),
        ("x" * 900 + " || true", "", "x" * 200),
    ):
        job = await admin.run("/bin/sh", "-c", line, name=name)
        assert (job.spec.name, job.state) == (wanted, job_pb2.JOB_STATE_SUCCEEDED), line


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "bell\x07", "delete\x7f", "c1\x9b"])
async def test_a_name_that_would_harm_a_terminal_is_refused(admin: Client, name: str) -> None:
    error = await refusal(admin.stub.Submit(s.SubmitRequest(specs=[admin.spec("true", name=name)])))
    assert [violation.field for violation in error.violations] == ["specs[0].name"]
