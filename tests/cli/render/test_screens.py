"""What people see, in 80 columns, as golden texts; and that no screen is ever wider."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import inference_pb2, job_pb2, scheduler_pb2, sessions_pb2
from hypothesis import given
from hypothesis import strategies as st

from cli.render import jobs as jobs_view
from cli.render import nodes as nodes_view
from cli.render.job import RANKS_SHOWN, explain_screen, job_screen, story_screen
from cli.render.sessions import models_screen
from cli.render.table import Cell, Colour, Column, Look, cut, draw, shown_width, wrapped
from cli.render.words import since
from cli.screen import with_tilde
from gpufleet.text.cleaning import clean
from tests.cli.cluster import NOW, ago, failed, gang, held, nodes, queue_answer, queued, running, shared_nodes, warned
from tests.cli.golden import assert_golden

LOOK = Look()


def text(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def queue(*jobs: job_pb2.Job, look: Look = LOOK) -> list[str]:
    answer = queue_answer(*jobs)
    return jobs_view.queue_screen(answer, answer.jobs, nodes(), NOW, look, with_finished=True)


def test_the_queue_with_its_nodes() -> None:
    assert_golden("queue", text(queue(running(), queued(), held(), failed())))


def test_a_job_that_runs_shows_what_it_was_warned_of_last_in_the_queue() -> None:
    job = warned()
    assert jobs_view.where_or_why(job, NOW) == "n1:0,1 ! time limit near"
    job.state = job_pb2.JOB_STATE_SUCCEEDED
    assert jobs_view.where_or_why(job, NOW) == "n1:0,1"


def test_the_wide_queue() -> None:
    assert_golden("queue_wide", text(queue(running(), queued(), failed(), look=Look(width=None, is_wide=True))))


def test_the_empty_queue_says_what_to_do() -> None:
    answer = scheduler_pb2.QueueResponse()
    assert_golden("queue_empty", text(jobs_view.queue_screen(answer, [], [], NOW, LOOK, with_finished=False)))


def test_the_nodes() -> None:
    assert_golden("nodes", text(nodes_view.nodes_screen(nodes(), NOW, LOOK)))


def test_the_wide_nodes() -> None:
    assert_golden("nodes_wide", text(nodes_view.nodes_screen(nodes(), NOW, Look(width=None, is_wide=True))))


def test_a_gpu_that_somebody_else_computes_on_says_so() -> None:
    (node, *_) = nodes()
    for pid in (4711, 4712):
        node.devices[3].sample.processes.add(pid=pid, is_foreign=True)
        node.devices[3].is_used_by_others = True
    node.devices[3].is_free = False
    node.devices[4].sample.processes.add(pid=4713)  # drawn on, or already gone
    (row,) = [line for line in nodes_view.nodes_screen([node], NOW, Look(width=None, is_wide=True)) if "4711" in line]
    assert "foreign process 4711 and 1 more" in row


def test_the_free_gpus() -> None:
    devices = [each for each in nodes()[0].devices if each.is_free][:3]
    for each in devices:
        each.node = "n1"
    devices[0].availability_score = 0.9978
    devices[0].sample.temperature_c, devices[0].sample.power_mw = 41, 76_400
    devices[2].ClearField("sample")
    assert_golden("nodes_free", text(nodes_view.free_screen(devices, LOOK)))
    assert nodes_view.free_screen([], LOOK)[0].startswith("No GPU is free")


def test_the_nodes_whose_gpus_are_shared() -> None:
    screen = nodes_view.nodes_screen(shared_nodes(), NOW, Look(width=None, is_wide=True))
    assert_golden("nodes_shared", text(screen))


@pytest.mark.parametrize(("milli", "gpus", "shown"), [(0, 2, "2"), (500, 1, "0.5"), (125, 2, "2×0.125"), (0, 0, "-")])
def test_a_part_of_a_gpu_stands_in_the_queue_as_such(milli: int, gpus: int, shown: str) -> None:
    job = queued()
    del job.spec.devices[:]
    if gpus:
        job.spec.devices.add(count=gpus).share.milli = milli
    assert jobs_view.gpus_in_words(job.spec) == shown
    assert shown in queue(job)[1].split()


@pytest.mark.parametrize("name", ["running", "queued", "failed", "gang", "warned"])
def test_one_job(name: str) -> None:
    job = {"running": running, "queued": queued, "failed": failed, "gang": gang, "warned": warned}[name]()
    assert_golden(f"job_{name}", text(job_screen(job, NOW, LOOK)))


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("score", "the best by score: 0 (0.84), 1"),
        ("pinned", "those that were named: 0 (0.84), 1"),
        ("fragmentation", "the fullest that had room: 0 (0.84), 1"),
        ("fallback", "in plain order, not by their readings: 0 (0.84), 1"),
    ],
)
def test_a_job_says_how_its_gpus_were_chosen(method: str, shown: str) -> None:
    job = running()
    info = job.attempts[-1].gpu_info
    info.allocation_method = method
    info.indices.extend(["0", "1"])
    info.devices.add(availability_score=0.84)
    info.devices.add()
    assert f"  GPUs       {shown}" in job_screen(job, NOW, LOOK)


def test_of_a_gang_with_many_ranks_those_that_did_not_end_well_are_shown_first() -> None:
    job = gang()
    attempt = job.attempts[0]
    for number in range(3, 2 * RANKS_SHOWN):
        attempt.ranks.add(rank=number, node=f"n{number + 1}")
    attempt.ranks[-1].exit_reason = "NODE_LOST"
    lines = text(job_screen(job, NOW, LOOK)).splitlines()
    begin = lines.index("Ranks of attempt 1:") + 2
    shown = [int(line.split()[0]) for line in lines[begin : begin + RANKS_SHOWN]]
    assert shown == [0, 1, 2, *range(3, RANKS_SHOWN - 1), 2 * RANKS_SHOWN - 1]
    assert lines[begin + RANKS_SHOWN] == f"(all {2 * RANKS_SHOWN} are in: gpuctl job 12 --output json)"


def test_a_job_without_an_estimate_says_why() -> None:
    job = queued()
    job.ClearField("estimated_start_time")
    job.estimate_sentence = "no estimate: nobody knows when what it waits for ends"
    assert any(
        line.split(maxsplit=1) == ["estimate", "nobody knows when what it waits for ends"]
        for line in job_screen(job, NOW, LOOK)
    )
    explanation = job_pb2.Explanation(reason=job.wait_reason, estimate_sentence=job.estimate_sentence)
    shown = explain_screen(scheduler_pb2.ExplainResponse(job=job, explanation=explanation), NOW, LOOK)
    assert "No estimate: nobody knows when what it waits for ends" in shown


def test_a_story() -> None:
    lines = [
        job_pb2.StoryLine(sequence=1, time=ago(3100), kind="JobSubmitted", sentence="ada submitted it"),
        job_pb2.StoryLine(sequence=2, time=ago(3001), kind="AttemptPlaced", sentence="attempt 1 was placed on n2:0"),
        job_pb2.StoryLine(
            sequence=9,
            time=ago(1995),
            kind="JobFinished",
            sentence="it failed with exit code 127: there is no program trian in the job's PATH on n1",
        ),
    ]
    assert_golden("story", text(story_screen(lines, NOW, LOOK)))


def test_an_explanation() -> None:
    job = queued()
    explanation = job_pb2.Explanation(
        reason=job.wait_reason,
        ahead_job_ids=[12, 11],
        ahead_count=5,
        estimated_start_time=job.estimated_start_time,
        latest_start_time=job.latest_start_time,
        bound_sentence="job 12 has no time limit",
        nearest_change="--gpus 5 or less",
    )
    explanation.nodes.add(node="n1", reason="TOO_FEW_FREE", sentence="5 of its 8 GPUs are free, and 8 are asked for")
    explanation.nodes.add(node="n2", reason="DRAINING", sentence="it is draining: fan")
    explanation.nodes.add(node="n4", fits=True)
    answer = scheduler_pb2.ExplainResponse(job=job, explanation=explanation)
    assert_golden("explain", text(explain_screen(answer, NOW, LOOK)))


def test_an_explanation_of_a_job_that_waits_for_nothing() -> None:
    shown = [explain_screen(scheduler_pb2.ExplainResponse(job=job), NOW, LOOK) for job in (running(), failed())]
    assert shown[0] == ["Job 12: running; it waits for nothing"]
    assert shown[1][0].startswith("Job 9: failed with exit code 127 (COMMAND_NOT_FOUND)")


def test_colour_is_used_for_states_only() -> None:
    plain = queue(running(), failed())
    coloured = queue(running(), failed(), look=replace(LOOK, has_colour=True))
    assert "\x1b[32mrunning\x1b[0m" in text(coloured)
    for escape in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"):
        coloured = [line.replace(escape, "") for line in coloured]
    assert coloured == plain


NAMES = st.text(min_size=0, max_size=90)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), max_size=6), st.integers(40, 120))
def test_a_table_fits_its_width_and_holds_one_line_a_row(rows: list[tuple[str, str, str]], width: int) -> None:
    columns: list[Column[tuple[int, tuple[str, str, str]]]] = [
        Column("ID", lambda row: str(row[0])),
        Column("NAME", lambda row: Cell(row[1][0], Colour.GOOD), least=4),
        Column("WHY", lambda row: row[1][2], least=6),
    ]
    numbered = list(enumerate(rows, start=1000))
    lines = draw(columns, numbered, Look(width=width))
    assert len(lines) == 1 + len(rows)
    for number, line in enumerate(lines[1:]):
        assert line.startswith(str(1000 + number)) and "\n" not in line
    assert all(shown_width(line) <= width for line in lines)


@given(st.text(max_size=60), st.integers(1, 40))
def test_a_cut_text_is_a_beginning_of_it_and_not_too_wide(given_text: str, width: int) -> None:
    shown = clean(given_text)
    short = cut(shown, width)
    assert shown_width(short) <= width
    assert short == shown or shown.startswith(short.removesuffix("…"))
    assert clean(short).isprintable()


def test_ids_are_never_cut_however_narrow_it_is() -> None:
    job = running()
    job.id = 123456789012
    job.user = "a-user-with-a-very-long-name"
    assert "123456789012" in queue(job, look=Look(width=40))[1]


def test_a_path_that_is_too_long_is_broken_between_its_parts() -> None:
    assert wrapped("~/.config/gpufleet/contexts.toml:4", 22) == ["~/.config/gpufleet/", "contexts.toml:4"]
    assert wrapped("see " + "a" * 30, 20) == ["see", "a" * 30], "words are never broken"


def test_where_a_table_is_too_wide_for_whole_words_the_last_column_has_lines_of_its_own() -> None:
    explanation = job_pb2.Explanation(reason=queued().wait_reason)
    long_name = "gpu-of-the-institute-" + "x" * 40 + ".example.org"
    explanation.nodes.add(node=long_name, sentence="has no GPU of that model (it has: NVIDIA-RTX-PRO-6000-Blackwell)")
    lines = explain_screen(scheduler_pb2.ExplainResponse(job=queued(), explanation=explanation), NOW, LOOK)
    at = next(number for number, line in enumerate(lines) if line.startswith(long_name))
    assert lines[at + 1 : at + 2] == ["    has no GPU of that model (it has: NVIDIA-RTX-PRO-6000-Blackwell)"]
    assert all(len(line) <= 80 for line in lines)


def test_a_uuid_is_never_broken_by_a_narrow_terminal_that_shows_all_columns() -> None:
    fleet = nodes()
    uuid = "GPU-8f6d7a52-6f0e-4d29-8b5e-1f2a3b4c5d6e"
    fleet[0].devices[0].device.uuid = uuid
    narrow = nodes_view.nodes_screen(fleet, NOW, Look(width=None, is_wide=True, terminal_width=80))
    assert f"    {uuid}" in narrow
    wide = nodes_view.nodes_screen(fleet, NOW, Look(width=None, is_wide=True, terminal_width=200))
    assert any(line.startswith("n1") and line.endswith(uuid) for line in wide)


def test_a_name_is_cut_only_where_room_is_short() -> None:
    job = queued()
    assert job.spec.name not in text(queue(job))
    assert job.spec.name in text(queue(job, look=Look(width=160)))


def test_what_still_goes_on_is_told_in_whole_seconds() -> None:
    stamp = Timestamp()
    stamp.FromNanoseconds(round((NOW.timestamp() - 0.892) * 1e9))
    assert since(stamp, NOW) == "0s"
    assert since(ago(61.9), NOW) == "1m01s"


def test_a_home_folder_is_written_as_people_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert with_tilde("context (/home/ada/x.toml:4)") == "context (~/x.toml:4)"
    assert with_tilde("/srv/home/ada/x and /home/adam/x") == "/srv/home/ada/x and /home/adam/x"


def test_a_name_with_a_newline_or_an_escape_moves_no_cursor() -> None:
    job = running()
    job.spec.name = "evil\n\x1b[2Jname"
    lines = queue(job) + job_screen(job, NOW, LOOK)
    assert all(line.isprintable() for line in lines)


def _models() -> list[sessions_pb2.Model]:
    """One of each kind: with workers, failed, on its way, on demand, by hand."""
    ready, starting, queued = (
        inference_pb2.WORKER_STATE_READY,
        inference_pb2.WORKER_STATE_STARTING,
        inference_pb2.WORKER_STATE_QUEUED,
    )
    canvas = sessions_pb2.Model(name="canvas", entry_point="canvas", min_workers=1, waiting_count=2, turn_count=5)
    canvas.limits.access = sessions_pb2.MODEL_ACCESS_PASS_PHRASE
    open_to_all = sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_OPEN)
    canvas.workers.add(
        worker_start="4f2a9c01d3",
        worker_version="0.2.0",
        endpoint="10.0.0.7:8001",
        state=ready,
        seats=4,
        taken_seats=4,
        load=0.93,
        job_id=12,
        last_contact_time=ago(1),
        revision=1,
    )
    canvas.workers.add(state=starting, message="starts", job_id=15, revision=1)
    painter = sessions_pb2.Model(name="Painter", entry_point="painter:Painter", min_workers=1)
    painter.limits.access = sessions_pb2.MODEL_ACCESS_LOGIN
    painter.failure.message = "painter:Painter: the model needs torch, which is not installed in /home/ada/venv"
    painter.failure.job_id = 16
    painter.failure.last_lines.extend(["Traceback (most recent call last):", "ModuleNotFoundError: torch"])
    depth = sessions_pb2.Model(name="depth", entry_point="depth:Depth", min_workers=1, limits=open_to_all)
    depth.workers.add(state=queued, message="waits: node n1 has 0 of 2 CPUs free", job_id=17)
    return [
        canvas,
        depth,
        sessions_pb2.Model(name="on-demand", entry_point="on_demand:Model", max_workers=1, limits=open_to_all),
        painter,
        sessions_pb2.Model(name="by-hand", limits=open_to_all),
    ]


def test_models() -> None:
    assert_golden("models", text(models_screen(_models(), NOW, LOOK)))
    assert_golden("models_wide", text(models_screen(_models(), NOW, Look(width=None, is_wide=True))))
    assert_golden("models_empty", text(models_screen([], NOW, LOOK)))


def test_programs_that_share_a_gpu() -> None:
    ready, queued = inference_pb2.WORKER_STATE_READY, inference_pb2.WORKER_STATE_QUEUED
    chat, code, draw, rare = (
        sessions_pb2.Model(name=name, max_workers=1, exclusive_group="small", http=sessions_pb2.HttpService(argv=["s"]))
        for name in ("chat", "code", "draw", "rare")
    )
    chat.in_group.state = sessions_pb2.GROUP_STATE_AWAKE
    chat.workers.add(worker_start="4f2a9c01d3", endpoint="10.0.0.7:8001", state=ready, seats=64, job_id=12, revision=1)
    code.in_group.state = sessions_pb2.GROUP_STATE_ASLEEP
    code.in_group.message = "gave its GPU to chat, which 3 requests waited for"
    draw.in_group.state, draw.in_group.message = sessions_pb2.GROUP_STATE_WAITING, "waits for the GPU of chat"
    draw.request_count = 2
    draw.workers.add(state=queued, message="waits: node n1 has no free GPU (1 in use)", job_id=15, revision=1)
    rare.in_group.state = sessions_pb2.GROUP_STATE_ASLEEP
    lone = sessions_pb2.Model(name="alone", max_workers=1)
    assert_golden("models_group", text(models_screen([lone, chat, code, draw, rare], NOW, Look(width=None))))


def test_programs_of_images() -> None:
    chat, slow = (sessions_pb2.Model(name=name, min_workers=1) for name in ("chat", "slow"))
    chat.worker.container.image = "registry.example.com/team/chat:1"
    chat.http.port = 8000
    message = "waits for port 8000 of its container to open"
    chat.workers.add(state=inference_pb2.WORKER_STATE_LOADING, message=message, job_id=15, revision=1)
    assert_golden("models_image", text(models_screen([chat, slow], NOW, Look(width=None, is_wide=True))))
    assert all(len(line) <= 80 for line in models_screen([chat, slow], NOW, Look(width=80)))


def test_models_that_are_updated() -> None:
    ready, queued = inference_pb2.WORKER_STATE_READY, inference_pb2.WORKER_STATE_QUEUED
    chat = sessions_pb2.Model(name="chat", min_workers=2, revision=3, former_revision=2)
    chat.http.argv.append("serve")
    chat.update.SetInParent()
    chat.workers.add(worker_start="4f2a9c01d3", endpoint="10.0.0.7:8001", state=ready, seats=64, job_id=12, revision=3)
    chat.workers.add(worker_start="4f2a9c01d4", endpoint="10.0.0.7:8002", state=ready, seats=64, job_id=9, revision=2)
    waits = chat.workers.add(state=queued, message="waits: node n1 has 0 of 2 GPUs free", job_id=15, revision=3)
    waits.replaces_job_id, waits.wait_reason = 9, "GPUS_BUSY"
    draw = sessions_pb2.Model(name="draw", min_workers=1, revision=2, former_revision=1)
    draw.http.argv.append("serve")
    draw.workers.add(worker_start="4f2a9c01d5", endpoint="10.0.0.7:8003", state=ready, seats=64, job_id=7, revision=1)
    draw.update.failure.message = "exited with code 1: ModuleNotFoundError: torch"
    draw.update.failure.job_id = 16
    draw.update.failure.last_lines.extend(["Traceback (most recent call last):", "ModuleNotFoundError: torch"])
    rare = sessions_pb2.Model(name="rare", max_workers=1, revision=2, former_revision=1)
    rare.update.SetInParent()
    assert_golden("models_updated", text(models_screen([chat, draw, rare], NOW, Look(width=None, is_wide=True))))


def test_a_workers_job() -> None:
    job = running()
    job.spec.serves, job.spec.kind, job.spec.name = "canvas", job_pb2.JOB_KIND_SERVICE, "canvas"
    assert_golden("job_worker", text(job_screen(job, NOW, LOOK)))


def test_a_job_of_somebody_else_has_no_line_that_would_submit_another_one() -> None:
    job = running()
    job.spec.env["HF_TOKEN"] = "<hidden>"
    job.spec.hidden_fields.append("env")
    screen = text(job_screen(job, NOW, LOOK))
    assert "gpuctl submit" not in screen
    assert f"Only {job.user} and admins see env of it" in screen
    del job.spec.env["HF_TOKEN"]
    assert "gpuctl submit" in text(job_screen(job, NOW, LOOK)), "what goes by itself is not missed"


def test_what_its_limit_does_and_where_its_output_is_copied_stand_on_a_jobs_screen() -> None:
    job = running()
    job.spec.time_limit.FromSeconds(3600)
    job.spec.limit_signal.CopyFrom(job_pb2.LimitSignal(signal=10, leader_only=True))
    job.spec.limit_signal.before.FromSeconds(300)
    job.spec.requeue_on_timeout = True
    job.spec.output_file = "train-%j.log"
    job.spec.submit_cwd = "/home/ada/elsewhere"
    job.spec.process.nice = 5
    job.spec.process.rlimits.add(name="NOFILE", soft=4096, hard=8192)
    job.attempts[0].exit.signal = 15
    job.attempts[0].exit_reason = "TIME_LIMIT"
    lines = job_screen(job, NOW, replace(LOOK, width=160))
    shown = "\n".join(lines)
    assert "at limit   USR1 to the process that was started 5m before, queued again" in shown
    assert "copy       of its output, on its node: train-%j.log" in shown
    assert "from       /home/ada/elsewhere" in shown
    assert "SIGTERM (time limit)" in shown
    assert "process    niceness 5, limit NOFILE=4096:8192" in shown
    assert "--output-file train-%j.log --nice 5 --rlimit NOFILE=4096:8192 " in shown
    assert "--time-limit 1h --signal B:USR1@5m --requeue-on-timeout" in shown


def test_what_a_job_keeps_for_its_next_attempt_stands_on_its_screen() -> None:
    job = running()
    assert not any("kept" in line for line in job_screen(job, NOW, LOOK))
    for rank, attempt in ((0, 2), (1, 1)):
        job.kept.add(rank=rank, attempt=attempt, file_count=1, size_bytes=1_500_000)
    shown = text(job_screen(job, NOW, LOOK))
    assert "2 files, 3MB, of attempt 1, 2 for the next one" in shown
