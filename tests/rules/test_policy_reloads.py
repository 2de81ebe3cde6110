"""Every setting of `[policy]` and `[placement]` may change while the scheduler runs, and changes what it decides by."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gpufleet.config.band_settings import BandSettings
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.config.settings import build, settings_of, value_of
from scheduler.program import limits_of

SETTINGS = settings_of(SchedulerSettings)
KEYS = [key for key in SETTINGS if key.split(".")[0] in ("policy", "placement")]


def another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case BandSettings():
            return BandSettings(user=("low",))
        case timedelta():
            return value * 2
        case int():
            return value + 1
        case float():
            return value / 2
        case _:
            return {"fragmentation": "idle"}[value]


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_of_the_policy_is_reloaded_and_decided_by(key: str) -> None:
    now = SchedulerSettings()
    values = {each: value_of(now, each) for each in SETTINGS}
    changed = build(SchedulerSettings, {**values, key: another(values[key])})
    assert SETTINGS[key].reloadable
    assert limits_of(changed) != limits_of(now)
