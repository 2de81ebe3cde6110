"""Numbers of models in the scheduler's file: read, refused by name, shown, and changed by a reload."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.config.live import Live
from gpufleet.config.merged import Resolved, load_program
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.config.session_numbers import SessionNumbers
from gpufleet.errors import GpufleetError, Reason

FILE = """\
port = 0

[sessions.canvas]
turn = "2m"
line_length = 50

[sessions."my.model"]
idle = "30s"
access = "login"
"""


def load(file: Path) -> Resolved[SchedulerSettings]:
    return load_program(SchedulerSettings, "scheduler", flags={}, environment={}, file=file, file_is_named=True)


def test_each_model_has_a_table_and_what_is_left_out_follows_the_default(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text(FILE)
    resolved = load(file)
    assert dict(resolved.settings.sessions) == {
        "canvas": SessionNumbers(turn=timedelta(minutes=2), line_length=50),
        "my.model": SessionNumbers(idle=timedelta(seconds=30), access="login"),
    }
    key, value, origin = next(row for row in resolved.rows() if row[0] == "sessions")
    assert value == '{ canvas = { turn = "2m", line_length = 50 }, "my.model" = { idle = "30s", access = "login" } }'
    assert (key, origin) == ("sessions", f"{file}:3")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('[sessions.canvas]\nturns = "2m"', 'canvas.turns: there is no such number; did you mean "turn"?'),
        ('[sessions.canvas]\nturn = "0s"', 'canvas.turn: must be "1s" to "1d"'),
        ("[sessions.canvas]\nturn = 5", "canvas.turn: a whole number is not a duration"),
        ('[sessions.canvas]\naccess = "friends"', 'canvas.access: must be "open", "pass-phrase" or "login"'),
        ("[sessions.canvas]\nplaces_per_address = -1", "canvas.places_per_address: must be 0 to 1,000,000"),
        ("[sessions.canvas]\nline_length = 0", "canvas.line_length: must be 1 to 1,000,000"),
        ('[sessions.canvas]\nidle = "9s"\nidle_warning = "9s"', "canvas.idle_warning: must be shorter than idle"),
        ('[sessions]\ncanvas = "2m"', "canvas is not a table"),
        ("sessions = 1", "this is a table for each model"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, table: str, why: str) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text(table)
    with pytest.raises(GpufleetError) as refused:
        load(file)
    assert refused.value.reason is Reason.CONFIG_INVALID
    assert why in refused.value.message


def test_a_reload_takes_new_numbers_at_once(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text(FILE)
    live = Live(lambda: load(file))
    file.write_text(FILE.replace('"2m"', '"3m"'))
    changes = live.reload()
    assert [change.key for change in changes.applied] == ["sessions"]
    assert dict(live.now.sessions)["canvas"].turn == timedelta(minutes=3)
