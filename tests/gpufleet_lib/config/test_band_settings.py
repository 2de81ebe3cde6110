"""Who may ask for which band, in the scheduler's file: read, refused by name, shown, and changed by a reload."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.config.band_settings import BANDS, BandSettings
from gpufleet.config.live import Live
from gpufleet.config.merged import Resolved, load_program
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from scheduler.state.specs import Band

FILE = """\
[policy.bands]
roles = { user = ["low"] }

[policy.bands.users]
"bo@lab" = ["urgent", "low"]
ann = ["low", "normal", "high"]
"""


def load(file: Path, **environment: str) -> Resolved[SchedulerSettings]:
    return load_program(
        SchedulerSettings, "scheduler", flags={}, environment=environment, file=file, file_is_named=True
    )


def test_the_words_are_those_of_the_rules() -> None:
    assert tuple(band.name.lower() for band in Band) == BANDS


def test_roles_and_users_are_read_and_what_is_left_out_follows_the_default(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text(FILE)
    resolved = load(file)
    users = (("ann", ("low", "normal", "high")), ("bo@lab", ("low", "urgent")))
    assert resolved.settings.policy.bands == BandSettings(user=("low",), users=users)
    _, value, _ = next(row for row in resolved.rows() if row[0] == "policy.bands")
    assert value == (
        '{ roles = { user = ["low"], admin = ["low", "normal", "high", "urgent"] }, '
        'users = { ann = ["low", "normal", "high"], "bo@lab" = ["low", "urgent"] } }'
    )
    # What is shown is what may be written.
    again = load(_written(tmp_path, f"[policy]\nbands = {value}\n"))
    assert again.settings.policy.bands == resolved.settings.policy.bands


def test_a_variable_says_it_too(tmp_path: Path) -> None:
    resolved = load(_written(tmp_path, ""), GPUCTL_SCHEDULER_POLICY_BANDS='{ users = { ann = ["high"] } }')
    assert resolved.settings.policy.bands == BandSettings(users=(("ann", ("high",)),))


def _written(folder: Path, text: str) -> Path:
    file = folder / "other.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("1", "this is a table such as"),
        ('{ role = { user = ["low"] } }', 'role: there is no such table; did you mean "roles"?'),
        ('{ roles = { viewer = ["low"] } }', "roles.viewer: only user and admin submit jobs"),
        ("{ roles = { user = [] } }", "roles.user: this is a list of bands, one at least"),
        ('{ users = { ann = "high" } }', "users.ann: this is a list of bands, one at least"),
        ('{ users = { ann = ["hihg"] } }', 'users.ann: hihg is not low, normal, high or urgent; did you mean "high"?'),
        ("{ users = { ann = [3] } }", "users.ann: 3 is not low, normal, high or urgent"),
        ('{ users = { "a b" = ["low"] } }', "users.a b: a user is 1 to 63 letters"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, value: str, why: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        load(_written(tmp_path, f"[policy]\nbands = {value}\n"))
    assert refused.value.reason is Reason.CONFIG_INVALID
    assert why in refused.value.message


def test_a_reload_takes_it_at_once(tmp_path: Path) -> None:
    file = _written(tmp_path, FILE)
    live = Live(lambda: load(file))
    file.write_text(FILE.replace('"high"', '"urgent"'))
    assert [change.key for change in live.reload().applied] == ["policy.bands"]
    assert dict(live.now.policy.bands.users)["ann"] == ("low", "normal", "urgent")
