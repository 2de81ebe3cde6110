"""The commands that ask once: what they send, and what they show."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from cli.jobs.queue_view import QueueRequest
from cli.queue_watch.program import ShownJobs
from gpufleet.errors import FieldViolation, GpufleetError, Reason, invalid
from tests.cli import cluster
from tests.cli.conftest import Gpuctl, run_here
from tests.cli.fake_scheduler import FakeScheduler, Fault, job


@pytest.fixture(autouse=True)
def _jobs(fake: FakeScheduler) -> None:
    fake.jobs = {each.id: each for each in (cluster.running(), cluster.queued(), cluster.failed())}
    fake.nodes = cluster.nodes()
    fake.server = scheduler_pb2.GetServerInfoResponse(version="0.1.0", user="ada", store_kind="sqlite")


@pytest.mark.parametrize("form", ["table", "wide"])
def test_the_queue_shows_jobs_and_nodes(gpuctl: Gpuctl, form: str) -> None:
    shown = gpuctl("queue", "-o", form).text
    assert "resnet" in shown and "n1:0,1" in shown and "NVIDIA H200" in shown


def test_the_queue_as_json_is_the_proto(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    whole = json.loads(gpuctl("queue", "-o", "json").out)
    assert [each["id"] for each in whole["jobs"]] == ["12", "13", "9"]
    assert whole["jobs"][0]["submit_time"].endswith("Z") and whole["counts"]["running"] == "1"
    lines = gpuctl("queue", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["state"] for line in lines] == [
        "JOB_STATE_RUNNING",
        "JOB_STATE_QUEUED",
        "JOB_STATE_FAILED",
    ]
    assert gpuctl("queue", "-o", "name").text == "12\n13\n9\n"
    assert not [name for name, _ in fake.calls if name == "ListNodes"]


def test_a_job_as_json_is_read_as_the_contract_reads_it_and_all_64_bit_numbers_are_text(
    gpuctl: Gpuctl, fake: FakeScheduler
) -> None:
    """As grpcurl prints them: a program whose numbers are all doubles would round those beyond 2^53."""
    job = fake.jobs[12]
    job.attempts[-1].gpu_info.devices.add(index=1, uuid="GPU-1", memory_free_mb=80_000, availability_score=0.5)
    shown = json.loads(gpuctl("job", "12", "-o", "json").out)
    device = shown["attempts"][-1]["gpu_info"]["devices"][-1]
    assert (shown["id"], device["index"], device["memory_free_mb"]) == (str(job.id), 1, "80000")
    assert ParseDict(shown, job_pb2.Job()) == job


def test_the_format_comes_from_the_environment_when_no_flag_says(
    gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_OUTPUT", "name")
    assert gpuctl("queue").text == "12\n13\n9\n"
    assert "resnet" in gpuctl("queue", "-o", "table").text
    monkeypatch.setenv("GPUCTL_OUTPUT", "nmae")
    refused = gpuctl("queue")
    assert refused.code == 2 and 'did you mean "name"?' in refused.err


def test_the_queue_is_filtered_by_states(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    assert gpuctl("queue", "--state", "queued,Running").code == 0
    asked = fake.asked("Queue")[0]
    assert list(asked.states) == [job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING]
    assert not asked.include_finished
    gpuctl("queue", "--state", "timed-out")
    assert fake.asked("Queue")[1].include_finished
    refused = gpuctl("queue", "--state", "runing")
    assert refused.code == 2 and 'did you mean "running"' in refused.err


def test_a_watched_queue_tells_what_passes_the_filters_and_what_left_them() -> None:
    filters = ShownJobs(QueueRequest(name="", labels=("team=vision",), states=("queued",)))
    waits, runs, other = cluster.queued(), cluster.queued(), cluster.queued()
    for each in (waits, runs):
        each.spec.labels["team"] = "vision"
    runs.state = job_pb2.JOB_STATE_RUNNING
    assert [filters.shows(each) for each in (other, waits, waits, runs, runs)] == [False, True, True, True, False]


def test_a_long_queue_is_read_page_by_page_up_to_the_limit(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.jobs = {number: job(number) for number in range(1, 2501)}
    assert len(gpuctl("queue", "-o", "name", "--limit", "2200").out.splitlines()) == 2200
    assert [request.page_token for request in fake.asked("Queue")] == ["", "1000", "2000"]


def test_filters_go_to_the_scheduler(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    gpuctl("queue", "-a", "--mine", "--name", "resnet", "--label", "team=vision")
    request = fake.asked("Queue")[0]
    assert (request.user, request.name, dict(request.labels), request.include_finished) == (
        "ada",
        "resnet",
        {"team": "vision"},
        True,
    )


def test_one_job_by_id_name_and_last(gpuctl: Gpuctl) -> None:
    assert gpuctl("job", "12").text.startswith("Job 12 · resnet · running\n")
    assert gpuctl("job", "resnet").text == gpuctl("job", "12").text
    assert gpuctl("job", "last", "-o", "name").text == "13\n"
    assert json.loads(gpuctl("job", "9", "-o", "json").out)["exit"] == {"code": 127}
    assert gpuctl("job", "77").code == 3
    assert gpuctl("job", "12-13").code == 2


def test_a_story_and_an_explanation(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.stories[9] = [job_pb2.StoryLine(sequence=4, kind="JobSubmitted", sentence="ada submitted it")]
    assert "ada submitted it" in gpuctl("story", "9").text
    assert json.loads(gpuctl("story", "9", "-o", "jsonl").out)["kind"] == "JobSubmitted"
    fake.explanations[13] = job_pb2.Explanation(reason=cluster.queued().wait_reason, nearest_change="--gpus 5")
    assert "Would start it now: --gpus 5" in gpuctl("explain", "13").text
    assert gpuctl("explain", "13", "-o", "name").text == "DEVICES_IN_USE\n"


CHANGED = scheduler_pb2.JobChange(
    job_id=12, changed=True, state=job_pb2.JOB_STATE_STOPPING, message="job 12 is being stopped"
)


@pytest.mark.parametrize(
    ("arguments", "method", "fields"),
    [
        (["cancel", "12", "--reason", "wrong data"], "Cancel", {"reason": "wrong data"}),
        (["cancel", "12", "--abandon"], "Cancel", {"abandon": True}),
        (["signal", "usr1", "12"], "SignalJob", {"signal": 10}),
        (["signal", "SIGINT", "12"], "SignalJob", {"signal": 2}),
        (["signal", "9", "12"], "SignalJob", {"signal": 9}),
        (["hold", "12"], "UpdateJob", {"is_held": True}),
        (["release", "12"], "UpdateJob", {"is_held": False}),
        (["band", "high", "12"], "UpdateJob", {"band": job_pb2.BAND_HIGH}),
        (["requeue", "12", "--reason", "bad GPU"], "RequeueJob", {"reason": "bad GPU"}),
        (["update", "12", "--band", "low"], "UpdateJob", {"band": job_pb2.BAND_LOW}),
    ],
)
def test_a_change_is_sent_and_its_sentence_shown(
    gpuctl: Gpuctl, fake: FakeScheduler, arguments: list[str], method: str, fields: dict[str, Any]
) -> None:
    fake.changes = [CHANGED]
    done = gpuctl(*arguments)
    request = fake.asked(method)[0]
    assert list(request.jobs.job_ids) == [12]
    assert {name: getattr(request, name) for name in fields} == fields
    assert (done.code, done.text) == (0, "job 12 is being stopped\n")
    if method == "UpdateJob":
        assert list(request.update_mask.paths) == ["band" if "band" in fields else "is_held"]


@pytest.mark.parametrize(
    ("arguments", "paths", "seconds"),
    [
        (["--time-limit", "90m"], ["time_limit"], 5_400),
        (["--time-limit", "none"], ["time_limit"], None),
        (["--time-limit", "1h", "--name", "run 2", "--band", "low"], ["time_limit", "name", "band"], 3_600),
        (["--name", "run 2"], ["name"], None),
    ],
)
def test_an_update_names_what_it_changes_and_nothing_else(
    gpuctl: Gpuctl, fake: FakeScheduler, arguments: list[str], paths: list[str], seconds: int | None
) -> None:
    fake.changes = [CHANGED]
    assert gpuctl("update", "12", *arguments).code == 0
    request = fake.asked("UpdateJob")[0]
    assert (list(request.jobs.job_ids), list(request.update_mask.paths)) == ([12], paths)
    assert (request.time_limit.seconds if request.HasField("time_limit") else None) == seconds
    assert request.name == ("run 2" if "name" in paths else "")


def test_the_line_that_submits_a_job_again_is_of_what_it_was_updated_to(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    spec = job_pb2.JobSpec(name="run 1", argv=["python", "train.py"], band=job_pb2.BAND_NORMAL)
    spec.time_limit.FromSeconds(7_200)
    fake.jobs, fake.changes = {12: job(12, spec=spec)}, [CHANGED]

    def take(request: scheduler_pb2.UpdateJobRequest) -> None:
        given = job_pb2.JobSpec(name=request.name, band=request.band)
        if request.HasField("time_limit"):
            given.time_limit.CopyFrom(request.time_limit)
        request.update_mask.MergeMessage(given, fake.jobs[12].spec, replace_message_field=True)

    def again() -> list[str]:
        return shlex.split(gpuctl("job", "12").text.partition("Submit it again with:")[2])

    fake.before["UpdateJob"] = take
    before = dict(pairwise(again()))
    assert (before["--time-limit"], before["--name"], "--band" in before) == ("2h", "run 1", False)
    for options in (["--time-limit", "90m"], ["--name", "run 2", "--band", "low"]):
        assert gpuctl("update", "12", *options).code == 0
    after = dict(pairwise(again()))
    assert (after["--time-limit"], after["--name"], after["--band"]) == ("1h30m", "run 2", "low")
    assert gpuctl("update", "12", "--time-limit", "none").code == 0
    assert "--time-limit" not in again()

    # What it says is what makes such a job.
    assert gpuctl(*again()[1:]).code == 0
    (submitted,) = fake.asked("Submit")[0].specs
    assert (submitted.name, submitted.band, submitted.HasField("time_limit")) == ("run 2", job_pb2.BAND_LOW, False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "gpuctl update --help"),
        (["--time-limit", "90"], "--time-limit: 90 has no unit"),
        (["--band", "hihg"], 'did you mean "high"'),
    ],
)
def test_an_update_of_nothing_or_to_nonsense_is_refused_before_anything_is_asked(
    gpuctl: Gpuctl, fake: FakeScheduler, arguments: list[str], says: str
) -> None:
    refused = gpuctl("update", "12", *arguments)
    assert refused.code == 2 and says in refused.err and not fake.calls


CANNOT_BE_HELD = scheduler_pb2.JobChange(
    job_id=12, state=job_pb2.JOB_STATE_RUNNING, message="job 12 does not wait any more"
)
HAS_ENDED = scheduler_pb2.JobChange(job_id=9, state=job_pb2.JOB_STATE_FAILED, message="job 9 has ended")
IS_HELD = scheduler_pb2.JobChange(job_id=14, state=job_pb2.JOB_STATE_HELD, message="job 14 is held already")


@pytest.mark.parametrize(
    ("arguments", "change", "code"),
    [
        (["hold", "12"], CANNOT_BE_HELD, 4),
        (["hold", "all", "--yes"], CANNOT_BE_HELD, 0),
        (["hold", "14"], IS_HELD, 0),
        (["release", "9"], HAS_ENDED, 0),
        (["cancel", "9"], HAS_ENDED, 0),
        (["signal", "USR1", "9"], HAS_ENDED, 4),
        (["requeue", "9"], HAS_ENDED, 4),
        (["band", "high", "9"], HAS_ENDED, 4),
        (["band", "high", "14"], IS_HELD, 0),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_and_one_that_was_made_before_is_not(
    gpuctl: Gpuctl, fake: FakeScheduler, arguments: list[str], change: scheduler_pb2.JobChange, code: int
) -> None:
    fake.changes = [change]
    done = gpuctl(*arguments)
    assert (done.code, done.text) == (code, f"{change.message}\n")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["signal", "12", "USR1"], "gpuctl signal USR1 12"),
        (["band", "12", "13", "high"], "gpuctl band high 12 13"),
    ],
)
def test_what_comes_before_the_jobs_is_not_taken_for_one(
    gpuctl: Gpuctl, fake: FakeScheduler, arguments: list[str], meant: str
) -> None:
    refused = gpuctl(*arguments)
    assert refused.code == 2 and refused.err.endswith(f"Write: {meant}\n") and not fake.calls


def test_a_value_that_a_flag_cannot_have_is_named_once_with_the_values_that_it_can(gpuctl: Gpuctl) -> None:
    refused = gpuctl("queue", "-o", "yaml")
    assert refused.err.startswith('gpuctl: --output: "yaml" is not "table" or "wide" or ')
    assert refused.err.endswith("\nGive another value, or leave it out.\n")


def test_a_usage_error_names_the_help_of_the_very_command(gpuctl: Gpuctl) -> None:
    assert gpuctl("token", "create", "--rol", "x").err.endswith("See: gpuctl token create --help\n")


@pytest.mark.parametrize(
    ("words", "field", "typed"),
    [
        (["update", "12", "--time-limit", "5h"], "time_limit", "--time-limit"),
        (["update", "12", "--band", "high"], "band", "--band"),
        (["band", "high", "12"], "band", "BAND"),
        (["cancel", "12", "--reason", "x"], "reason", "--reason"),
    ],
)
def test_a_refused_change_names_what_was_typed_and_no_field_of_the_contract(
    gpuctl: Gpuctl, fake: FakeScheduler, words: list[str], field: str, typed: str
) -> None:
    method = "Cancel" if words[0] == "cancel" else "UpdateJob"
    why = f"{field}: is too much"
    violations = [FieldViolation(field, "is too much")]
    fake.faults[method].append(GpufleetError(Reason.TIME_LIMIT_REFUSED, why, violations=violations))
    refused = gpuctl(*words)
    assert refused.code == 4 and refused.err.startswith(f"gpuctl: {typed}: is too much\n"), refused.err


def test_a_label_that_is_none_is_refused_with_how_it_is_written(gpuctl: Gpuctl) -> None:
    refused = gpuctl("queue", "--label", "team")
    assert refused.code == 2
    assert refused.err == 'gpuctl: --label: "team" is not NAME=VALUE\nWrite it as --label team=VALUE.\n'


def test_what_a_scheduler_says_of_an_argument_does_not_name_a_field_that_nobody_typed(
    gpuctl: Gpuctl, fake: FakeScheduler
) -> None:
    missing = invalid("node", "no node is called 'n9'", reason=Reason.NODE_NOT_FOUND, next_step="list them with: x")
    fake.faults["UpdateNode"].append(missing)
    assert gpuctl("drain", "n9").err == "gpuctl: no node is called 'n9'\nList them with: x\n"


@pytest.mark.parametrize("words", ["top --nodes n9", "monitor --node n9", "nodes --free --node n9"])
def test_a_node_that_nobody_knows_is_told_by_the_option_that_was_typed(
    gpuctl: Gpuctl, fake: FakeScheduler, words: str
) -> None:
    missing = invalid("nodes[0]", "no node is called 'n9'", reason=Reason.NODE_NOT_FOUND, next_step="list them with: x")
    fake.faults["ListDevices"].append(missing)
    refused = gpuctl(*words.split())
    assert (refused.code, refused.err) == (3, "gpuctl: --node: no node is called 'n9'\nList them with: x\n")


def test_a_name_that_no_machine_has_is_no_broken_connection(gpuctl: Gpuctl) -> None:
    refused = gpuctl("queue", "--scheduler", "nowhere.invalid")
    assert refused.code == 5
    assert refused.err.startswith("gpuctl: no scheduler answers at nowhere.invalid:50051 (--scheduler): this machine")


def test_a_change_names_jobs_in_every_way(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    gpuctl("cancel", "40-42", "last", "resnet", "other")
    selectors = [request.jobs for request in fake.asked("Cancel")]
    assert [(list(each.job_ids), each.name) for each in selectors] == [
        ([40, 41, 42, 13], ""),
        ([], "resnet"),
        ([], "other"),
    ]


def test_all_needs_a_yes_where_nobody_can_be_asked(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    refused = gpuctl("cancel", "all")
    assert refused.code == 2 and "Say --yes" in refused.err and not fake.asked("Cancel")
    assert gpuctl("cancel", "all", "--yes").code == 0
    assert fake.asked("Cancel")[0].jobs.all_mine


@pytest.mark.parametrize("word", ["0", "65", "SIGNONE", "kil", ""])
def test_a_signal_that_does_not_exist_is_refused(gpuctl: Gpuctl, fake: FakeScheduler, word: str) -> None:
    refused = gpuctl("signal", word, "12")
    assert refused.code == 2 and "kill -l" in refused.err and not fake.asked("SignalJob")


def test_a_change_whose_answer_is_lost_is_sent_again(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.faults["SignalJob"] += [Fault.LOST_ANSWER]
    assert gpuctl("signal", "USR1", "12").code == 0
    first, second = fake.asked("SignalJob")
    assert first.request_id == second.request_id


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.JOB_NOT_FOUND, 3),
        (Reason.NOT_YOUR_JOB, 4),
        (Reason.JOB_FINISHED, 4),
        (Reason.QUOTA_EXCEEDED, 4),
        (Reason.TOKEN_MISSING, 4),
        (Reason.INVALID_ARGUMENT, 2),
        (Reason.INTERNAL, 1),
    ],
)
def test_a_refusal_has_its_exit_code_and_its_two_lines(
    gpuctl: Gpuctl, fake: FakeScheduler, reason: Reason, code: int
) -> None:
    fake.faults["Cancel"].append(GpufleetError(reason, metadata={"trace_id": "abc"}))
    done = gpuctl("cancel", "12")
    assert done.code == code
    assert done.err.splitlines() == [f"gpuctl: {reason.meaning}", reason.next_step, "Trace id: abc"]


def test_nodes_are_listed_in_every_format(gpuctl: Gpuctl) -> None:
    assert gpuctl("nodes").text.splitlines()[1].startswith("n1    ready")
    assert gpuctl("nodes", "-o", "name").text == "n1\nn2\nn3\n"
    assert len(json.loads(gpuctl("nodes", "-o", "json").out)["nodes"]) == 3
    assert gpuctl("nodes", "--node", "n2", "-o", "name").text == "n2\n"
    missing = gpuctl("nodes", "--node", "n22")
    assert missing.code == 3 and 'did you mean "n2"?' in missing.err


def test_nodes_are_drained_resumed_and_forgotten(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    assert gpuctl("drain", "n1", "--reason", "fan").text == "node n1 drains\n"
    assert gpuctl("resume", "n2").text == "node n2 takes work again (state: draining)\n"
    assert [(r.node, r.is_draining, r.reason) for r in fake.asked("UpdateNode")] == [
        ("n1", True, "fan"),
        ("n2", False, ""),
    ]
    assert gpuctl("nodes", "forget", "n3").text == (
        "node n3 is forgotten\nended as NODE_LOST: 3\nback in the queue: 4, 5\n"
    )


def test_a_token_is_made_with_its_secret_alone_on_stdout(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    done = gpuctl("token", "create", "grace", "--role", "viewer", "--valid-for", "90d", "--note", "dashboard")
    assert done.text == "gf_" + "s" * 43 + "\n"
    request = fake.asked("CreateToken")[0]
    assert (request.user, request.role, request.valid_for.seconds, request.note) == (
        "grace",
        scheduler_pb2.ROLE_VIEWER,
        90 * 86400,
        "dashboard",
    )
    refused = gpuctl("token", "create", "grace", "--role", "admn")
    assert refused.code == 2 and 'did you mean "admin"?' in refused.err


def test_tokens_are_listed_and_revoked(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.tokens = [scheduler_pb2.Token(id="ab12", user="ada", role=scheduler_pb2.ROLE_ADMIN, is_revoked=True)]
    shown = gpuctl("token", "list").text.splitlines()
    assert shown[0].split() == ["ID", "USER", "ROLE", "MADE", "VALID", "UNTIL", "NOTE"]
    assert shown[1].split()[:3] == ["ab12", "ada", "admin"] and "revoked" in shown[1]
    assert gpuctl("token", "revoke", "ab12").text == "token ab12 of ada is revoked\n"
    assert gpuctl("token", "revoke", "zz").code == 3


def test_a_token_lets_nodes_join_by_name_and_number(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    made = gpuctl("token", "create", "--role", "node", "--node", "gpu-*", "--uses", "4", "--expires", "1d")
    assert made.text == "gf_" + "s" * 43 + "\n"
    request = fake.asked("CreateToken")[0]
    assert (request.role, request.nodes, request.uses_max) == (scheduler_pb2.ROLE_NODE, "gpu-*", 4)
    assert request.valid_for.seconds == 86400
    nobody = gpuctl("token", "create", "--role", "viewer")
    assert nobody.code == 2 and "USER" in nobody.err
    fake.tokens = [
        scheduler_pb2.Token(id="ab12", user="ada", role=scheduler_pb2.ROLE_USER),
        scheduler_pb2.Token(id="cd34", user="nodes", role=scheduler_pb2.ROLE_NODE, nodes="gpu-*", uses_max=4, uses=1),
    ]
    shown = gpuctl("token", "list").text.splitlines()
    assert "NODES" in shown[0] and "gpu-* 1/4" in shown[2]


def test_a_node_is_approved_and_revoked(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    assert gpuctl("nodes", "approve", "n1").text == "node n1 takes part\n"
    revoked = gpuctl("nodes", "revoke", "n1", "--reason", "stolen")
    assert revoked.text == "the credential of node n1 is revoked; to let it in again: gpuctl nodes approve n1\n"
    assert [(each.node, each.reason) for each in fake.asked("RevokeNode")] == [("n1", "stolen")]


def test_versions_are_shown_and_skew_is_warned_of(
    gpuctl: Gpuctl, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.admin.version.own_version", lambda: "0.1.0")
    same = gpuctl("version")
    assert same.text.startswith("client  0.1.0") and "server  0.1.0" in same.text and same.err == ""
    fake.server.version = "0.2.0"
    other = gpuctl("version")
    assert "the server has version 0.2.0, and this gpuctl 0.1.0" in other.err
    assert json.loads(gpuctl("version", "-o", "json").out)["server"]["version"] == "0.2.0"


def test_an_internal_failure_shows_an_id_and_no_traceback_unless_asked(
    gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("cli.jobs.queue_view.print_queue", broken)
    done = gpuctl("queue")
    assert done.code == 1 and "internal error [" in done.err and "Traceback" not in done.err
    monkeypatch.setenv("GPUCTL_TRACEBACK", "1")
    assert "Traceback" in gpuctl("queue").err


def test_settings_are_shown_with_where_they_came_from(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    rows = json.loads(gpuctl("config", "show", "-o", "json", "--connection-timeout", "5s").out)
    found = {row["name"]: (row["value"], row["origin"]) for row in rows}
    assert found["scheduler"] == (f'"{fake.address}"', "GPUCTL_SCHEDULER")
    assert found["connection_timeout"] == ('"5s"', "--connection-timeout")
    assert found["output"] == ('"json"', "--output")
    assert "FROM" in gpuctl("config", "show", "--origin").text.splitlines()[0]


def test_the_schedulers_own_settings_are_shown(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.server.settings.add(name="port", value="50051", origin="default")
    assert gpuctl("config", "show", "--program", "scheduler").text == "port = 50051\n"


def test_a_log_level_is_changed_while_it_runs(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    assert gpuctl("config", "log-level", "agent:n1", "debug").code == 0
    request = fake.asked("UpdateServer")[0]
    assert (request.program.program, request.program.node, request.log_level) == ("agent", "n1", "debug")
    assert gpuctl("config", "log-level", "scheduler", "loud").code == 2


def test_a_settings_file_is_written_checked_and_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.toml"
    assert run_here("config", "init", "scheduler", "--file", str(file)).text == f"{file}\n"
    assert run_here("config", "check", str(file)).text == f"{file}: ok, settings of the scheduler\n"
    again = run_here("config", "init", "scheduler", "--file", str(file))
    assert again.code == 2 and "--force" in again.err
    file.write_text("prot = 50051\n")
    wrong = run_here("config", "check", str(file))
    assert wrong.code == 2 and f"{file}:1: prot" in wrong.err and 'did you mean "port"' in wrong.err
    assert run_here("config", "init", "browser").code == 2


def test_contexts_are_added_listed_and_chosen(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("gf_" + "a" * 43)
    token.chmod(0o600)
    added = run_here("config", "context", "add", "lab", "--scheduler", "gpu1", "--token-file", str(token), "--use")
    assert added.code == 0
    assert run_here("config", "context", "add", "home", "--scheduler", "[::1]:6000").code == 0
    assert run_here("config", "context", "list").text.splitlines()[1].split()[:3] == ["*", "lab", "gpu1:50051"]
    listed = json.loads(run_here("config", "context", "list", "-o", "json").out)
    assert listed[0] == {"name": "lab", "is_used": True, "scheduler": "gpu1:50051", "token_file": str(token)}
    assert run_here("config", "context", "use", "home").code == 0
    assert "[::1]:6000" in run_here("config", "show").text
    assert "gpu1:50051" in run_here("config", "show", "--context", "lab").text
    unknown = run_here("config", "context", "use", "hoem")
    assert unknown.code == 2 and 'did you mean "home"?' in unknown.err


def test_a_token_file_that_others_can_read_is_refused_and_never_sent(
    gpuctl: Gpuctl, fake: FakeScheduler, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("gf_" + "a" * 43)
    token.chmod(0o644)
    done = gpuctl("queue", "--token-file", str(token))
    assert done.code == 4 and f"chmod 600 {token}" in done.err and not fake.calls


def test_a_node_state_of_a_newer_server_is_shown_as_it_is(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.nodes[0].state = 17  # type: ignore[assignment]
    assert isinstance(fake.nodes[0], node_pb2.Node)
    assert gpuctl("nodes").text.splitlines()[1].split()[1] == "17"
