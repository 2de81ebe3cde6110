"""`top`: every GPU in a line, in any order, on a terminal and without one."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from gpufleet.v1 import node_pb2, scheduler_pb2

from cli.full_screen.view import KeyReader, Order, View, Wish
from cli.render.table import Look
from cli.top_view.fleet import SORTS, Fleet, Gpu, gpu_of
from cli.top_view.picture import HELP, frame, layout_for, table, totals_text
from tests.cli.cluster import nodes
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import Break, FakeScheduler, Fault, Until
from tests.cli.golden import assert_golden
from tests.cli.terminal import Terminal

CLOSED = "\x1b[?1049l"
REDIALS_OF_TWO_SECONDS = 6
"""The pause between them doubles from a tenth of a second on; what is shorter is not worth a word."""


def devices() -> list[node_pb2.NodeDevice]:
    found = []
    for node in nodes():
        for each in node.devices:
            each.node, each.device.uuid = node.name, f"GPU-{node.name}-{each.device.index}"
            each.sample.memory_used_bytes = each.device.memory_bytes // 10 * (9 if each.job_id else 0)
            each.sample.power_mw, each.sample.temperature_c = 690_000 if each.job_id else 80_000, 30 + each.device.index
            each.user = "ada" if each.job_id else ""
            found.append(each)
    found[-1].ClearField("sample")
    found[2].shares.add(job_id=7, user="bob")
    found[2].shares.add(job_id=9, user="eve")
    found[3].sample.processes.add(pid=1, is_foreign=True)
    found[3].is_used_by_others = True
    found[4].sample.age.FromSeconds(75)
    return found


def fleet(order: Order[Gpu] | None = None, user: str = "") -> Fleet:
    made = Fleet(order or Order(SORTS, "n"), user)
    made.put(devices(), 1000.0)
    return made


def many(count: int) -> Fleet:
    made = Fleet(Order(SORTS, "n"))
    (pattern, *_) = devices()
    copies = []
    for number in range(count):
        copy = node_pb2.NodeDevice()
        copy.CopyFrom(pattern)
        copy.node, copy.device.index, copy.device.uuid = f"n{number // 8:03}", number % 8, f"GPU-{number}"
        copies.append(copy)
    made.put(copies, 0.0)
    return made


def places(shown: Fleet) -> list[tuple[str, int]]:
    return [(gpu.node, gpu.index) for gpu in shown.shown]


# --- the picture


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_gpu_is_a_line_that_fits(columns: int) -> None:
    view = View(fleet())
    lines = frame(view, Look(), columns, 16, totals_text(view.rows.totals, view.rows.count), 1003.0)
    assert len(lines) == 16 and all(len(line) <= columns for line in lines)
    assert_golden(f"top_{columns}", "".join(f"{line}\n" for line in lines))


def test_the_help_fits_a_small_terminal() -> None:
    assert len(HELP.splitlines()) <= 24 - 2 and max(map(len, HELP.splitlines())) <= 80
    view = View(fleet())
    view.press("h")
    assert "Any key goes back." in frame(view, Look(), 80, 24, "", 0.0)


def test_only_the_rows_that_are_seen_are_drawn_and_nothing_jumps_when_one_scrolls() -> None:
    view = View(many(1000))
    first = frame(view, Look(), 80, 24, "", 0.0)
    assert len(first) == 24 and first[-1] == "0 above, 979 below"
    view.press("end")
    last = frame(view, Look(), 80, 24, "", 0.0)
    assert last[-1] == "979 above, 0 below" and last[1] == first[1], "the titles stay where they are"
    assert last[-2].startswith("n124")
    view.press("page-up")
    view.press("up")
    assert frame(view, Look(), 80, 24, "", 0.0)[-1] == "958 above, 21 below"


@pytest.mark.parametrize(("columns", "is_whole"), [(80, False), (200, True)])
def test_a_long_name_of_a_node_is_whole_where_there_is_room(columns: int, is_whole: bool) -> None:
    device, *_ = devices()
    device.node = "a-node-with-a-long-name.of-some-lab.example.org"
    gpu = gpu_of(device, 0.0)
    (_, row) = table([gpu], layout_for([gpu], columns), Look(), 0.0)
    assert (device.node in row) is is_whole and len(row) <= columns


def test_what_is_not_heard_any_more_is_in_no_sum() -> None:
    gone, heard = devices()[:2]
    gone.sample.age.FromSeconds(60)
    shown = Fleet(Order(SORTS, "n"))
    shown.put([gone, heard], 0.0)
    assert (shown.totals.count, shown.totals.load_percent) == (2, heard.sample.utilization_percent)
    assert shown.totals.power_w == heard.sample.power_mw / 1000


def test_a_terminal_of_three_lines_still_shows_a_row() -> None:
    assert len(frame(View(fleet()), Look(), 40, 3, "head", 0.0)) == 4  # one row is always there


def test_an_unhealthy_gpu_and_an_old_reading_stand_out_in_colour_and_only_there() -> None:
    device, *_ = devices()
    device.device.is_healthy = False
    gpu = gpu_of(device, 0.0)
    (_, row) = table([gpu], layout_for([gpu], 80), Look(has_colour=True), 0.0)
    assert row.count("\x1b[") == 2 and "\x1b[31m" in row and "bad\x1b[0m" in row
    assert "\x1b" not in "".join(table([gpu], layout_for([gpu], 80), Look(), 0.0))


# --- which rows, in which order


@pytest.mark.parametrize("key", SORTS)
def test_what_is_most_comes_first_and_what_is_not_told_last_both_ways(key: str) -> None:
    found, other_way = fleet(Order(SORTS, key)), fleet(Order(SORTS, key, is_reversed=True))
    assert len(found.shown) == 11
    assert places(found)[0] == {"t": ("n1", 7), "j": ("n1", 2)}.get(key, ("n1", 0))
    if key != "n":
        assert places(found)[-1] == places(other_way)[-1] == ("n2", 2)
    measure = SORTS[key].measure
    told = [each for gpu in found.shown if (each := measure(gpu)) is not None]
    backwards = [each for gpu in other_way.shown if (each := measure(gpu)) is not None]
    assert told == backwards[::-1] and len(set(told)) > 1


def test_a_filter_takes_words_of_node_model_job_and_user() -> None:
    found = fleet()
    for text, wanted in (
        ("N2:1", [("n2", 1)]),
        ("h200 eve", [("n1", 2)]),
        ("foreign", [("n1", 3)]),
        ("unhealthy", [("n2", 1)]),
        ("nobody", []),
    ):
        found.filter(text)
        assert places(found) == wanted, text
    assert found.count == 11


def test_a_user_is_shown_the_gpus_that_they_share_too() -> None:
    assert places(fleet(user="eve")) == [("n1", 2)]
    assert places(fleet(user="ada")) == [("n1", 0), ("n1", 1)]


def test_a_user_without_a_gpu_is_told_where_their_jobs_are() -> None:
    view = View(fleet(user="nora"))
    wanted = "No GPU is held by a job of nora. See their jobs with: gpuctl queue --user nora"
    assert wanted in frame(view, Look(), 90, 24, "", 0.0)


def test_a_whole_picture_replaces_what_was_known_and_news_only_what_they_name() -> None:
    found = fleet()
    one, two, *_ = devices()
    one.sample.utilization_percent = 3
    found.take(scheduler_pb2.WatchDevicesResponse(devices=[one], removed_uuids=[two.device.uuid]), 0.0)
    assert len(found.shown) == 10 and found.shown[0].load_percent == 3
    found.take(scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=[two]), 0.0)
    assert places(found) == [("n1", 1)]


def test_what_comes_in_pieces_is_shown_once_it_is_whole_also_when_the_stream_broke_between_two() -> None:
    found = fleet()
    shown, (one, two, three, *_) = places(found), devices()
    whole = scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=[one], has_more=True)
    news = scheduler_pb2.WatchDevicesResponse(devices=[two], has_more=True)
    assert not found.take(whole, 0.0) and not found.take(news, 0.0)
    assert places(found) == shown, "no half is shown"
    # The stream breaks here, and the next one begins with a whole.
    assert not found.take(scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=[three], has_more=True), 0.0)
    assert found.take(scheduler_pb2.WatchDevicesResponse(devices=[one]), 0.0)
    assert places(found) == [("n1", 0), ("n1", 2)]


def test_a_gpu_with_another_index_is_not_shown_twice() -> None:
    found = Fleet(Order(SORTS, "n"), user="")
    one, two, three, *_ = devices()
    found.take(scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=[one, two, three]), 0.0)
    two.device.index, three.device.index = 0, 1
    found.take(scheduler_pb2.WatchDevicesResponse(removed_uuids=[one.device.uuid], devices=[two, three]), 0.0)
    assert [(each.index, each.uuid) for each in found.shown] == [(0, two.device.uuid), (1, three.device.uuid)]
    two.device.index, three.device.index = 1, 0
    found.take(scheduler_pb2.WatchDevicesResponse(devices=[two, three]), 0.0)
    assert [(each.index, each.uuid) for each in found.shown] == [(0, three.device.uuid), (1, two.device.uuid)]


# --- keys


def test_keys_are_read_however_their_bytes_are_cut() -> None:
    typed = b"q\x1b[A\x1bOB\xc3\xa9\x1b[5~\x1b[1;5C\x7f"
    keys = ["q", "up", "down", "é", "page-up", "backspace"]
    assert KeyReader().feed(typed) == keys
    for cut in range(len(typed)):
        reader = KeyReader()
        assert reader.feed(typed[:cut]) + reader.feed(typed[cut:]) == keys, cut


def test_escape_alone_is_told_when_nothing_follows() -> None:
    reader = KeyReader()
    assert reader.feed(b"\x1b") == [] and reader.is_pending
    assert reader.flush() == ["escape"] and not reader.is_pending
    assert reader.feed(b"\x1b[1;") == [] and reader.flush() == []
    assert reader.feed(b"\x1bh") == ["escape", "h"]
    assert reader.feed(b"\x1b[" + b"1" * 100) and not reader.is_pending


def test_the_filter_is_typed_and_dropped_and_its_letters_are_no_commands() -> None:
    view = View(fleet())
    for key in "/eqh":
        assert view.press(key) is Wish.NOTHING
    assert view.filter == "eqh" and not view.rows.shown
    for key in ("backspace", "backspace", "v", "e", "enter"):
        view.press(key)
    assert view.filter == "eve" and places(view.rows) == [("n1", 2)]
    view.press("escape")
    assert not view.filter and len(view.rows.shown) == 11
    assert view.press("q") is Wish.LEAVE


def test_columns_are_chosen_by_name_or_one_after_the_other() -> None:
    view = View(fleet())
    for keys, word in (
        ("os", "load"),
        ("oG", "memory reversed"),
        (".", "power reversed"),
        ("on,", "user"),
        ("ox", "user"),
    ):
        for key in keys:
            view.press(key)
        assert view.rows.order.word == word, keys
    assert view.press("r") is Wish.REFRESH


# --- the program


def test_without_a_terminal_it_is_printed_once(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.nodes = nodes()
    done = gpuctl("top")
    assert done.code == 0 and done.text.splitlines()[0].split()[:2] == ["NODE", "GPU"]
    assert len(json.loads(gpuctl("top", "-o", "json").text)["devices"]) == len(done.text.splitlines()) - 1
    assert gpuctl("top", "--nodes", "n1,n2", "-o", "name").text.startswith("n1:0\n")
    assert fake.asked("ListDevices")[-1].nodes == ["n1", "n2"]
    assert gpuctl("top", "--sort", "lod").err.startswith('gpuctl: --sort: "lod" is none of')


@pytest.fixture
def terminal(fake: FakeScheduler) -> Iterator[Terminal]:
    """`top` on a terminal, with eleven GPUs and news when `fake.device_news` has some."""
    fake.nodes = nodes()
    opened = Terminal("top", environment={**os.environ, "GPUCTL_SCHEDULER": fake.address})
    yield opened
    opened.close()


def test_on_a_terminal_it_stays_sorts_and_puts_the_terminal_back(terminal: Terminal) -> None:
    at = terminal.wait_for("by node")
    taken = terminal.modes()
    terminal.type("os")
    at = terminal.wait_for("by load", at)
    terminal.type("?")
    at = terminal.wait_for("Any key goes back.", at)
    terminal.type("xq")
    terminal.wait_for(CLOSED, at)
    assert terminal.modes() != taken, "echo and lines are back"
    assert terminal.end() == 0


def test_what_is_pushed_is_drawn_and_nothing_else_of_the_screen(fake: FakeScheduler) -> None:
    fake.nodes = nodes()
    device = node_pb2.NodeDevice()
    device.CopyFrom(fake.nodes[0].devices[1])
    device.node, device.sample.utilization_percent = "n1", 42
    go_on = threading.Event()
    fake.device_news = [Until(go_on), scheduler_pb2.WatchDevicesResponse(devices=[device])]
    terminal = Terminal("top", environment={**os.environ, "GPUCTL_SCHEDULER": fake.address})
    try:
        at = terminal.wait_for("by node")
        at = terminal.wait_for("n2", at)
        go_on.set()
        terminal.wait_for("42%", at)
        drawn = terminal.shown[at:].decode()
        assert "\x1b[4;1H" in drawn and "\x1b[5;1H" not in drawn, "only the rows that changed are written"
    finally:
        terminal.close()


def test_it_is_marked_stale_while_the_scheduler_is_away_and_comes_back_by_itself(fake: FakeScheduler) -> None:
    fake.nodes = nodes()
    go_away = threading.Event()
    fake.device_news = [Until(go_away), Break()]
    fake.before["WatchDevices"] = lambda request: None if go_away.is_set() else fake.faults["WatchDevices"].clear()
    terminal = Terminal("top", environment={**os.environ, "GPUCTL_SCHEDULER": fake.address})
    try:
        at = terminal.wait_for("by node")
        fake.faults["WatchDevices"].extend([Fault.UNAVAILABLE] * REDIALS_OF_TWO_SECONDS)
        go_away.set()
        at = terminal.wait_for("STALE: ", at)
        terminal.wait_for("by node", at)
        terminal.type("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_it_fills_a_window_that_is_made_larger_or_smaller(terminal: Terminal) -> None:
    at = terminal.wait_for("by node")
    terminal.resize(8, 60)
    at = terminal.wait_for("0 above, 6 below", at)
    terminal.resize(40, 140)
    terminal.wait_for("\x1b[13;1Hn2", at)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_puts_the_terminal_back(terminal: Terminal, number: signal.Signals) -> None:
    at = terminal.wait_for("by node")
    terminal.signal(number)
    at = terminal.wait_for(CLOSED, at)
    terminal.wait_for("Come back with: gpuctl top", at)
    assert terminal.end() == 128 + number


def test_a_window_that_is_closed_ends_it_without_a_word(terminal: Terminal) -> None:
    terminal.wait_for("by node")
    assert terminal.close_window() == 128 + signal.SIGHUP


def test_a_window_that_is_closed_is_left_the_same_way_before_the_signal_for_it_comes(fake: FakeScheduler) -> None:
    fake.nodes = nodes()
    environment = {**os.environ, "GPUCTL_SCHEDULER": fake.address}
    terminal = Terminal("top", environment=environment, is_controlling=False)  # so that no signal comes at all
    try:
        terminal.wait_for("by node")
        assert terminal.close_window() == 128 + signal.SIGHUP
    finally:
        terminal.close()


def test_it_takes_the_terminal_back_after_it_was_suspended(terminal: Terminal) -> None:
    at = terminal.wait_for("by node")
    terminal.suspend()
    at = terminal.wait_for(CLOSED, at)
    terminal.signal(signal.SIGCONT)
    terminal.wait_for("by node", at)
    terminal.type("q")
    assert terminal.end() == 0
